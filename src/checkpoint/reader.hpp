#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/older_layout.hpp"
#include "checkpoint/read_ahead.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Reads the state of any chunks from a checkpoint of any ranks, subgroups and format. Opens the
/// files that hold these chunks and no others. Layers and chunks are those of state::layers_of.
///
/// Memory:  manifests and checksums of a bounded number of rank files; 4 MiB for runs of values
///          that begin or end inside the block of a checksum.
/// Threads: one calls the members; others (ReadAhead) read the parts that it verifies next.
///          Checksums use OpenMP.
/// Errors:  DataError naming the file if one is missing or damaged. IoError, with its errno, if the
///          system could not read one: the next call opens the files anew. Refused: a value of an
///          older format that stands for several elements, such as a scale of 8-bit moments, and
///          that is no value of today's layers.
class Reader {
 public:
  /// `kernel` moves the state; several threads call it at a time.
  Reader(std::string step_directory, Master master,
         std::shared_ptr<aio::Kernel> kernel = aio::libaio_kernel());

  [[nodiscard]] Meta const& meta() const noexcept { return master_.meta; }
  [[nodiscard]] StateLayout const& layout() const noexcept { return master_.meta.state.layout; }
  [[nodiscard]] state::ShardMap const& map() const noexcept { return map_; }
  /// A rank's manifest. Its checksum and the sizes of its files are verified.
  [[nodiscard]] Manifest manifest(int rank) const;
  /// Reads a rank's manifest and the checksums of every chunk, and verifies them. The state is not
  /// read.
  void require_checksums(int rank);

  /// Fills `state`, an extent of N elements in the checkpoint's layout, with the chunks of
  /// `pieces`, which cover it. The padding of planes is left as it is; the rest is verified.
  /// `state` is aligned for direct I/O, as buffers of tiers and HugeBuffers are.
  void read(std::span<state::Piece const> pieces, std::span<std::byte> state);
  /// Reads the parameters alone: N elements, aligned too.
  void read_parameters(std::span<state::Piece const> pieces, std::span<float> parameters);

  /// begin() and finish() are read() in two parts. The state is read while the caller does
  /// something else. `pieces` and `state` live until finish() has returned for them, or abandon().
  /// Errors of the checkpoint are thrown by finish().
  void begin(std::span<state::Piece const> pieces, std::span<std::byte> state);
  /// Says that nothing more will be begun. The threads and asynchronous I/O of reading ahead are
  /// given back meanwhile.
  void begun_all() noexcept;
  /// The threads that read ahead, after begun_all(). Destroying them waits for their end. Null if
  /// there are none.
  [[nodiscard]] std::shared_ptr<ReadAhead> take_ending() noexcept {
    begun_all();
    return std::move(ahead_);
  }
  /// Returns when the parameters of the first begin() that was not finished are there and verified.
  /// The planes after them are still being read. After an error the same call reads all of it anew.
  void await_parameters();
  /// Returns when the state of the first begin() that was not finished is there and verified. After
  /// an error the same call reads it anew.
  void finish();
  /// Forgets every begin() that was not finished. Nothing is written to its memory any more when
  /// this returns.
  void abandon() noexcept;

 private:
  /// Subgroup and piece by layer and first chunk.
  using Places = std::map<std::pair<int, std::int64_t>, std::pair<std::size_t, std::size_t>>;
  /// A rank's file. What is known of it stays, and its descriptors go where others need theirs:
  /// layers lie on all ranks in turn.
  struct Source {
    Manifest manifest;
    Places places;
    std::optional<h5::File> arrays{};
    std::shared_ptr<aio::File const> file{};    ///< null: it is closed
    std::shared_ptr<aio::File const> extent{};  ///< the extent file that was used last; null: none
    /// Checksums of the subgroups that were used, block by block.
    std::vector<std::vector<std::uint64_t>> checksums;
  };
  /// Elements that are contiguous both in the checkpoint and in the extent that is filled.
  struct Run {
    int rank{};
    std::size_t subgroup{};
    std::int64_t source{};  ///< first element in the subgroup
    std::int64_t target{};
    std::int64_t elements{};
  };

  /// The read that one begin() has begun.
  struct Begun {
    std::span<state::Piece const> pieces;
    std::span<std::byte> state;
    std::int64_t elements{};
    std::size_t planes{};
    std::int64_t parts = 0;            ///< parts that were asked for and are not verified
    std::int64_t parameter_parts = 0;  ///< parts of the first plane among them
    bool dropped = false;              ///< its parts have to be asked for again
  };
  /// Whole blocks of an extent that the read-ahead was asked for.
  struct Part {
    Begun* of;
    std::shared_ptr<Source> from;
    std::shared_ptr<aio::File const> file;
    std::size_t subgroup;
    std::size_t plane;
    Bytes begin;
    std::span<std::byte> memory;
  };

  static Places places_in(Manifest const& manifest);
  std::shared_ptr<Source> const& source(int rank);
  /// Opens a rank's file if it is closed, and closes the one that was opened first if there are
  /// many.
  void open(std::shared_ptr<Source> const& source);
  void forget_sources() noexcept;
  std::shared_ptr<aio::File const> const& file_of(std::shared_ptr<Source> const& source,
                                                  std::size_t subgroup);
  std::vector<std::uint64_t> const& checksums(std::shared_ptr<Source> const& source,
                                              std::size_t subgroup);
  Run locate(Section const& section);
  std::vector<Run> runs_of(std::span<state::Piece const> pieces, std::size_t planes);
  /// Checks that values of several elements lie inside the section. Errors: Refused.
  void require_whole_values(Section const& section, std::size_t planes) const;
  /// Returns whether the checkpoint was written with other layers than today's.
  [[nodiscard]] bool is_relaid() const { return master_.format < format_of_two_layers; }
  /// Adds a read whose parts have not been asked for.
  void expect(std::span<state::Piece const> pieces, std::span<std::byte> state,
              std::int64_t elements, std::size_t planes);
  void expect_all(std::span<state::Piece const> pieces, std::span<std::byte> state);
  /// Asks for all parts of a read. Runs that are not whole blocks are read at once.
  void ask(Begun& begun);
  void ask_run(Begun& begun, Run const& run);
  void ask_values(Begun& begun, Run const& run, std::size_t plane, std::span<std::byte> target);
  void ask_blocks(Begun& begun, Run const& run, std::size_t plane, Bytes begin,
                  std::span<std::byte> target);
  void read_inside(Run const& run, std::size_t plane, Bytes begin, std::span<std::byte> target);
  /// Verifies parts until `parts` of the first read is zero.
  void verify_until_none(std::int64_t Begun::*parts);
  /// Waits for the part that was asked for first, and verifies it.
  void verify_next();
  void verify(std::shared_ptr<Source> const& from, aio::File const& file, std::size_t subgroup,
              std::size_t plane, Bytes begin, std::span<std::byte const> bytes);
  void drop() noexcept;

  std::string directory_;
  Master master_;
  std::shared_ptr<aio::Kernel> kernel_;
  state::ShardMap stored_;  ///< layers of the checkpoint's format, dealt to the ranks that wrote it
  state::ShardMap map_;     ///< today's layers, dealt to as many ranks
  std::map<int, std::shared_ptr<Source>> sources_;
  /// Sources whose files are open, the first opened first.
  std::deque<std::shared_ptr<Source>> open_;
  memory::HugeBuffer blocks_;            ///< empty until it is needed
  std::unique_ptr<aio::Engine> engine_;  ///< reads into blocks_; null until it is needed
  std::deque<Begun> begun_;
  std::deque<Part> parts_;
  std::unique_ptr<ReadAhead> ahead_;  ///< null until it is needed
};

}  // namespace offstage::checkpoint
