#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/master.hpp"

namespace offstage::checkpoint {

/// Chunks of the state that commands read at a time: 48 MiB of p, m and v in FP32.
constexpr std::int64_t batch_chunks = 1024;

/// The state of a step directory, as far as names and sizes tell.
struct Inspection {
  Completeness state{};
  std::string problem;       ///< names the file; empty if complete
  Master master;             ///< if complete, partial or incomplete
  Bytes bytes{};             ///< bytes of all its files; if complete or partial
  std::vector<bool> here{};  ///< by rank, whether its files are to be here; if complete or partial
};

[[nodiscard]] Inspection inspect(std::string const& step_directory);

/// The first problem in the files of a complete checkpoint beside the state itself (1/2048 of it):
/// manifests, and the checksums by which the state will be judged. Empty if there is none. A file
/// that cannot be read is a problem, too.
[[nodiscard]] std::string problem_beside_state(std::string const& step_directory,
                                               Inspection const& complete);

}  // namespace offstage::checkpoint
