#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/store.hpp"

namespace offstage::checkpoint {

/// The files of one rank, as the master names them.
struct RankEntry {
  std::string file;  ///< its own or its node's
  Bytes file_bytes{};
  std::string manifest;
  std::uint64_t manifest_checksum{};
};

/// A file that holds one extent.
struct ExtentEntry {
  std::string file;
  Bytes bytes{};
};

struct Master {
  std::int64_t format = format_of_rank_files;
  Meta meta;
  std::vector<RankEntry> ranks;
  std::vector<ExtentEntry> extents;  ///< that are here by reference
};

/// A sound checkpoint that this run may not take: going back to an older one would not help.
class Refused : public DataError {
 public:
  using DataError::DataError;
};

/// Writes a master file under `path`, not yet synced. `ranks` and `manifests` are in rank order; without manifests it
/// shows no tensors. Errors: IoError.
void write_master(std::string const& path, Master const& master,
                  std::span<Manifest const> manifests);
/// Reads back what write_master wrote with these arguments: all that a restart needs, and that every tensor shows as
/// many parts as it should. Errors: IoError if anything is missing, different or unreadable.
void read_back_master(std::string const& path, Master const& master,
                      std::span<Manifest const> manifests);

/// What it returns is plausible (plausible.hpp) and names the files of ranks and extents as writers do.
/// Errors: DataError if it is not there or damaged (its own checksum covers all that is returned);
///         Refused if its format is newer than this program's.
[[nodiscard]] Master read_master(std::string const& step_directory);

/// A master without its tensors as bytes, and back, as read_master had it: one rank reads it for all.
/// Errors: IoError; of unpack_master as read_master, which a master that was read before does not meet.
[[nodiscard]] std::string pack_master(Master const& master, std::string const& step_directory);
[[nodiscard]] Master unpack_master(std::string const& bytes, std::string const& step_directory);

/// The checksum of all that read_master returns: equal for two masters of one save.
[[nodiscard]] std::uint64_t checksum_of_contents(Master const& master);

/// What is wrong with a file that this process wrote a moment ago is no damage: its write failed.
[[nodiscard]] IoError not_as_written(DataError const& error);

/// The size of a file, as it should be. Errors: DataError if it is missing, no regular file or its size is wrong.
Bytes require_file(std::string const& path, Bytes bytes);
/// The bytes of a rank's two files. Errors: as require_file.
Bytes require_files(std::string const& step_directory, RankEntry const& rank);

/// Errors: Refused, naming the keys that differ; of the model, those on which no parameter depends may.
void require_same_model(std::string const& step_directory, state::ModelShape const& stored,
                        state::ModelShape const& run);
void require_same_optimizer(std::string const& step_directory, OptimizerState const& stored,
                            OptimizerState const& run);

}  // namespace offstage::checkpoint
