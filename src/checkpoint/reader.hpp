#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Reads the state of any chunks from a checkpoint, whatever ranks and subgroups wrote it; opens
/// the files that hold them and no others.
///
/// Memory:  manifests and checksums of a bounded number of rank files; 4 MiB for runs of values that begin or end
///          inside a block of a checksum.
/// Threads: one; checksums use OpenMP.
/// Errors:  DataError naming the file if one is missing or damaged; IoError, with its errno, if the system could not
///          read one: the next call opens the files anew.
class Reader {
 public:
  /// `kernel`: what moves the state.
  Reader(std::string step_directory, Master master,
         std::shared_ptr<aio::Kernel> kernel = aio::libaio_kernel());

  [[nodiscard]] Meta const& meta() const noexcept { return master_.meta; }
  [[nodiscard]] StateLayout const& layout() const noexcept { return master_.meta.state.layout; }
  [[nodiscard]] state::ShardMap const& map() const noexcept { return map_; }
  /// A rank's manifest, its checksum verified and its files there in the right size.
  [[nodiscard]] Manifest manifest(int rank) const;
  /// Reads all of a rank's files but the state: its manifest and the checksums of every chunk are sound.
  void require_checksums(int rank);

  /// Fills `state`, the extent of N elements in the checkpoint's layout but for what pads its planes, with the chunks
  /// of `pieces`, which cover it; everything is verified. `state` is aligned for direct I/O, as tiers and HugeBuffers
  /// are.
  void read(std::span<state::Piece const> pieces, std::span<std::byte> state);
  /// The same of the parameters alone: N elements, aligned too.
  void read_parameters(std::span<state::Piece const> pieces, std::span<float> parameters);

 private:
  /// Subgroup and piece by layer and first chunk.
  using Places = std::map<std::pair<int, std::int64_t>, std::pair<std::size_t, std::size_t>>;
  /// An open rank file.
  struct Source {
    Manifest manifest;
    Places places;
    h5::File arrays;
    aio::File file;
    aio::File extent;  ///< the extent file that was used last
    std::vector<std::vector<std::uint64_t>>
        checksums;  ///< of subgroups that were used, block by block
  };
  /// Elements that are contiguous in the checkpoint and in what is read.
  struct Run {
    int rank{};
    std::size_t subgroup{};
    std::int64_t source{};  ///< of the first element in the subgroup
    std::int64_t target{};
    std::int64_t elements{};
  };

  static Places places_in(Manifest const& manifest);
  Source& source(int rank);
  aio::File const& file_of(Source& source, std::size_t subgroup) const;
  std::vector<std::uint64_t> const& checksums(Source& source, std::size_t subgroup);
  Run locate(int layer, state::ChunkRange chunks, std::int64_t target);
  std::vector<Run> runs_of(std::span<state::Piece const> pieces);
  void read_runs(std::span<state::Piece const> pieces, std::span<std::byte> state,
                 std::int64_t elements, std::size_t planes);
  void read_run(Run const& run, std::span<std::byte> state, std::int64_t elements,
                std::size_t planes);
  void read_values(Source& from, Run const& run, std::size_t plane, std::span<std::byte> target);
  void read_blocks(Source& from, Run const& run, std::size_t plane, Bytes begin,
                   std::span<std::byte> target);

  std::string directory_;
  Master master_;
  state::ShardMap map_;  ///< of the ranks that wrote it
  std::map<int, Source> sources_;
  aio::Engine engine_;
  memory::HugeBuffer blocks_;  ///< empty until it is needed
};

}  // namespace offstage::checkpoint
