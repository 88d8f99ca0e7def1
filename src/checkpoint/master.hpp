#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/meta.hpp"

namespace offstage::checkpoint {

/// The files of one rank, as the master names them.
struct RankEntry {
  std::string file;  ///< the rank's own file or its node's
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
  std::vector<ExtentEntry> extents;  ///< extents that the checkpoint holds by reference
};

/// A sound checkpoint that this run may not take. An older one would be refused as well.
class Refused : public DataError {
 public:
  using DataError::DataError;
};

/// Whether a master can show the tensors of these ranks. All ranks wait while rank 0 describes them
/// to HDF5: 20 us for each of up to three parts that a piece has in a plane. So at most 32,768
/// pieces in all planes are shown (2 s, measured): 70 B parameters on 64 ranks, 7 B on 160.
[[nodiscard]] bool can_show(std::span<Manifest const> manifests, StateLayout const& layout);

/// Writes a master file under `path`, and does not sync it. Manifests are in rank order; without
/// any the master shows no tensors. Errors: IoError.
void write_master(std::string const& path, Master const& master,
                  std::span<Manifest const> manifests);
/// Reads back the file that write_master wrote with these arguments. Checks everything that a
/// restart needs, and that every tensor shows as many parts as it should. Errors: IoError if
/// anything is missing, different or unreadable.
void read_back_master(std::string const& path, Master const& master,
                      std::span<Manifest const> manifests);

/// Reads a master. It is plausible (plausible.hpp) and names the files of ranks and extents as
/// writers do.
/// Errors: DataError if it is not there or damaged (its own checksum covers all that is returned);
///         Refused if its format is newer than this program's.
[[nodiscard]] Master read_master(std::string const& step_directory);

/// A master without its tensors as bytes, and the master that read_master returned from these
/// bytes. So one rank reads it for all.
/// Errors: IoError; unpack_master: as read_master, but a master that was read before causes none.
[[nodiscard]] std::string pack_master(Master const& master, std::string const& step_directory);
[[nodiscard]] Master unpack_master(std::string const& bytes, std::string const& step_directory);

/// The checksum of everything that read_master returns. It is equal for two masters of one save.
[[nodiscard]] std::uint64_t checksum_of_contents(Master const& master);

/// Turns the error about a file that this process wrote a moment ago into one of the write. Such a
/// file is not damaged: its write failed.
[[nodiscard]] IoError not_as_written(DataError const& error);

/// Returns the size of a file, and checks that it is `bytes`. Errors: DataError if it is missing,
/// no regular file or its size is wrong.
Bytes require_file(std::string const& path, Bytes bytes);
/// Returns the bytes of a rank's two files, and checks both. Errors: as require_file.
Bytes require_files(std::string const& step_directory, RankEntry const& rank);

/// Checks that a checkpoint is of the run's model. Keys on which no parameter depends may differ.
/// Errors: Refused, naming the keys that differ.
void require_same_model(std::string const& step_directory, state::ModelShape const& stored,
                        state::ModelShape const& run);
void require_same_optimizer(std::string const& step_directory, OptimizerState const& stored,
                            OptimizerState const& run);

}  // namespace offstage::checkpoint
