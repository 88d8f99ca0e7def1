#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Where one subgroup's state lies in a rank file.
struct StoredSubgroup {
  Bytes offset{};            ///< of p's first byte in the file
  std::int64_t elements{};   ///< N; m and v follow, N elements each
  std::uint64_t checksum{};  ///< of the array of chunk checksums
  std::vector<state::Piece> pieces;

  /// Of p, m and v together.
  [[nodiscard]] std::size_t chunks() const;
};

/// What one rank saved; stands beside its file as JSON.
struct Manifest {
  int rank{};
  int ranks{};
  std::string file;  ///< without directory
  Bytes file_bytes{};
  std::vector<StoredSubgroup> subgroups;  ///< K counts them
};

/// "/subgroup/K" and "/checksum/K".
[[nodiscard]] std::string dataset_name(std::size_t subgroup);
[[nodiscard]] std::string checksum_name(std::size_t subgroup);

[[nodiscard]] std::string to_json(Manifest const& manifest);

/// Errors: DataError naming `path` and the field that is missing, of another type or out of range.
///         What it returns is consistent: every subgroup lies inside the file, pieces fill it.
[[nodiscard]] Manifest parse_manifest(std::string const& text, std::string const& path);

}  // namespace offstage::checkpoint
