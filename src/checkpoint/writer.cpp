#include "checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "checkpoint/allowance.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/older_layout.hpp"
#include "checkpoint/permissions.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

// Bounds of HDF5's own bookkeeping in a rank file: for the file, and for a plane or its group.
constexpr Bytes file_bookkeeping = 2 * KiB;
constexpr Bytes array_bookkeeping = 512;
constexpr int most_attempts = 6;
// Number of parameters that are joined at a time: 4 MiB.
constexpr std::int64_t joined_elements = std::int64_t{1} << 20U;
// Bytes of a held version that are read and written at a time.
constexpr Bytes drained_bytes = 4 * MiB;

using Checksums = std::vector<std::vector<std::uint64_t>>;
static_assert(tiers::checksum_block_bytes == block_bytes);
static_assert(plane_alignment == aio::direct_alignment);
static_assert(joined_elements % chunk_elements == 0 &&
              block_bytes == chunk_elements * static_cast<Bytes>(sizeof(float)));

void go_on_unless(std::atomic<bool> const* given_up) {
  if (given_up != nullptr && *given_up) {
    throw Error{ExitCode::other, "the save was given up"};
  }
}

/// A file to which state is written around the HDF5 library.
class StateFile {
 public:
  /// `path`: the path through which the file is written; null: it is written past all paths.
  StateFile(aio::File const& file, tiers::StoragePath* path) : file_{file}, path_{path} {}

  void write(
      Bytes offset, std::span<std::byte const> bytes,
      tiers::LetsPass const& lets_pass = [] { return false; }) {
    if (path_ != nullptr) {
      path_->write(file_, bytes, offset, lets_pass);
      return;
    }
    if (!engine_) {
      engine_.emplace();
    }
    engine_->write(file_, bytes, offset);
  }

 private:
  aio::File const& file_;
  tiers::StoragePath* path_;
  std::optional<aio::Engine> engine_;
};

/// The heads of extent files, by the elements of the extent.
class Heads {
 public:
  Heads(StateLayout const& layout, std::string scratch)
      : layout_{layout}, scratch_{std::move(scratch)} {}

  /// Gives a slot file the head of this extent, durably, because it begins with that of the largest
  /// extent. A file that was given away before has the right one.
  void give(std::string const& path, Bytes offset, std::int64_t elements) {
    std::vector<std::byte> const& head = of(elements);
    require(offset == std::ssize(head), "checkpoint: a slot file has the head of an extent");
    std::string const found = read_part(path, 0, offset);
    if (std::ranges::equal(std::as_bytes(std::span{found}), head)) {
      return;
    }
    memory::HugeBuffer const aligned{offset};
    std::ranges::copy(head, aligned.bytes().data());
    aio::File const file = aio::File::open_read_write(path);
    aio::Engine engine;
    engine.write(file, aligned.bytes().first(head.size()), 0);
    file.sync_for_good();
  }

 private:
  std::vector<std::byte> const& of(std::int64_t elements) {
    auto const known = heads_.find(elements);
    return known != heads_.end()
               ? known->second
               : heads_.emplace(elements, extent_head(scratch_, layout_, elements)).first->second;
  }

  StateLayout const& layout_;
  std::string scratch_;
  std::map<std::int64_t, std::vector<std::byte>> heads_;
};

/// Takes the files of extents that the tiers give away, each with its checksums. The checksums of
/// other extents are empty.
Checksums give_extents(std::string const& step_directory, Manifest& manifest,
                       StateLayout const& layout, tiers::Tiers& tiers,
                       std::atomic<bool> const* given_up) {
  Checksums checksums(manifest.subgroups.size());
  Heads heads{layout, step_directory + "/" + head_file_name(manifest.rank)};
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    go_on_unless(given_up);
    StoredSubgroup& stored = manifest.subgroups[k];
    std::string const name = extent_file_name(manifest.rank, k);
    std::string const path = fmt::format("{}/{}", step_directory, name);
    auto given = tiers.give(static_cast<tiers::Key>(k), path);
    if (!given) {
      continue;
    }
    require(std::ssize(given->checksums) == stored.blocks(layout) &&
                given->offset % aio::direct_alignment == 0,
            "checkpoint: an extent holds the planes of its subgroup, aligned");
    heads.give(path, given->offset, stored.elements);
    stored.offset = given->offset;
    stored.own_file = {name, given->file_bytes};
    checksums[k] = std::move(given->checksums);
  }
  return checksums;
}

/// Reserves the planes of all subgroups without a file of their own. Returns false if the file's
/// room for HDF5's own bytes is too small.
bool lay_out_planes(h5::File& file, Manifest& manifest, StateLayout const& layout) {
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    StoredSubgroup& stored = manifest.subgroups[k];
    if (!stored.own_file) {
      auto const offset = reserve_planes(file, manifest.place(k), layout, stored.elements);
      if (!offset) {
        return false;
      }
      stored.offset = *offset;
    }
  }
  return true;
}

/// Makes a valid HDF5 file with its space allocated, and all arrays of these ranks in place and
/// empty.
void lay_out(std::string const& path, std::span<Manifest> manifests, StateLayout const& layout) {
  Bytes bookkeeping = file_bookkeeping;
  for (Manifest const& manifest : manifests) {
    auto const copied = std::ranges::count_if(manifest.subgroups,
                                              [](auto const& stored) { return !stored.own_file; });
    bookkeeping += (1 + copied * static_cast<Bytes>(layout.size() + 1)) * array_bookkeeping;
  }
  for (int attempt = 1;; ++attempt, bookkeeping *= 2) {
    h5::File file = h5::File::create(path, {plane_alignment, aio::direct_alignment, bookkeeping});
    if (std::ranges::all_of(manifests, [&](Manifest& manifest) {
          return lay_out_planes(file, manifest, layout);
        })) {
      for (Manifest& manifest : manifests) {
        for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
          StoredSubgroup& stored = manifest.subgroups[k];
          stored.checksum_offset =
              file.reserve(manifest.checksum_name(k), h5::Type::u64, {stored.blocks(layout)});
        }
      }
      file.close();
      aio::File const laid_out = aio::File::open_read_write(path);
      for (Manifest& manifest : manifests) {
        manifest.file_bytes = laid_out.size();
      }
      laid_out.allocate(laid_out.size());
      return;
    }
    require(attempt < most_attempts, "checkpoint: HDF5 puts planes one after the other");
    file.close();
    remove_file(path);
  }
}

/// Waits until the files that the ranks say they wrote are here. Errors: IoError: they are not, as
/// where a node has another directory at that path.
void require_seen(std::string const& step_directory, Master const& master, Seconds patience) {
  Stopwatch const watch;
  for (std::size_t rank = 0; rank < master.ranks.size();) {
    try {
      require_files(step_directory, master.ranks[rank]);
      ++rank;
    } catch (DataError const& error) {
      if (watch.elapsed() >= patience) {
        throw IoError{fmt::format(
            "{}, as the node of rank 0 sees it, but rank {} has written it; checkpoint.dir "
            "must be one directory for all nodes: is it mounted on that rank's?",
            error.what(), rank)};
      }
      std::this_thread::sleep_for(std::min(patience, Seconds{0.2}));
    }
  }
}

/// Gives extent files the permissions of the rank file, which has them from the directory of
/// checkpoints: extents were made in that of slots, or of a storage path.
void give_permissions(std::string const& step_directory, Manifest const& manifest) {
  if (std::ranges::none_of(manifest.subgroups,
                           [](auto const& stored) { return stored.own_file.has_value(); })) {
    return;  // each look is a call of a metadata server
  }
  auto const wanted = permissions_of(step_directory + "/" + manifest.file);
  for (StoredSubgroup const& stored : manifest.subgroups) {
    if (!stored.own_file || !wanted) {
      continue;
    }
    std::string const path = step_directory + "/" + stored.own_file->name;
    if (!give_permissions(*wanted, path)) {
      log::warning("{}: cannot have the permissions of {}: {}; others may be unable to read it",
                   path, manifest.file, std::generic_category().message(errno));
      return;
    }
  }
}

/// Writes these bytes and their checksums.
void write_bytes(StateFile& file, Bytes offset, std::span<std::byte const> bytes,
                 std::span<std::uint64_t> checksums) {
  file.write(offset, bytes);
  checksum_blocks(bytes, checksums);
}

/// Writes an extent with whole parameters, which are whole blocks. The planes after them are as in
/// the tiers.
void write_joined(StateFile& file, Bytes offset, SplitParameters const& split,
                  state::Subgroup const& subgroup, std::span<std::byte const> extent,
                  std::span<std::uint64_t> checksums) {
  memory::HugeBuffer const buffer{std::min(joined_elements, subgroup.size) *
                                  static_cast<Bytes>(sizeof(float))};
  for (std::int64_t begin = 0; begin < subgroup.size; begin += joined_elements) {
    auto const count = std::min(joined_elements, subgroup.size - begin);
    auto const parameters = buffer.as<float>().first(static_cast<std::size_t>(count));
    split.join(subgroup, extent, begin, parameters);
    write_bytes(file, offset + begin * static_cast<Bytes>(sizeof(float)), std::as_bytes(parameters),
                checksums.subspan(static_cast<std::size_t>(begin / chunk_elements),
                                  static_cast<std::size_t>(count / chunk_elements)));
  }
  write_bytes(file, offset + subgroup.size * static_cast<Bytes>(sizeof(float)),
              extent.subspan(static_cast<std::size_t>(split.layout.padded_bytes(0, subgroup.size))),
              checksums.subspan(static_cast<std::size_t>(subgroup.size / chunk_elements)));
}

/// Writes subgroups without a file of their own, and their checksums to `checksums`.
void write_state(StateFile& file, Manifest const& manifest, StateLayout const& layout,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                 Checksums& checksums, Manner const& manner) {
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of subgroup", static_cast<std::int64_t>(k)};
    StoredSubgroup const& stored = manifest.subgroups[k];
    go_on_unless(manner.given_up);
    if (stored.own_file || (manner.drain.holds() && tiers.is_held(static_cast<tiers::Key>(k)))) {
      continue;
    }
    tiers::Lease const lease = tiers.fetch_aside(static_cast<tiers::Key>(k));
    checksums[k].resize(static_cast<std::size_t>(stored.blocks(layout)));
    if (manner.split != nullptr) {
      write_joined(file, stored.offset, *manner.split, subgroups[k], lease.bytes(), checksums[k]);
      continue;
    }
    require(std::ssize(lease.bytes()) == layout.bytes(stored.elements),
            "checkpoint: an extent holds the planes of its subgroup");
    write_bytes(file, stored.offset, lease.bytes(), checksums[k]);
  }
}

/// Bytes per second with which a held version may be saved; 0: no limit.
double rate_of(SaveRate const& rate, tiers::Tiers const& tiers, tiers::Key key) {
  tiers::StoragePath const* const path = rate.of_paths > 0.0 ? tiers.path_of_held(key) : nullptr;
  double const read_rate = path != nullptr ? path->rate().read : 0.0;
  return read_rate > 0.0 ? std::min(rate.bytes_per_second, rate.of_paths * read_rate)
                         : rate.bytes_per_second;
}

/// Writes held versions, as write_state does others. Returns the time of its pauses.
Seconds write_held(StateFile& file, Manifest const& manifest, StateLayout const& layout,
                   tiers::Tiers& tiers, Checksums& checksums, Manner const& manner) {
  Drain const& drain = manner.drain;
  if (drain.only_held_is_left) {
    drain.only_held_is_left();
  }
  std::optional<memory::HugeBuffer> buffer;
  Allowance allowance;
  auto const hurries = [&] {
    return (drain.hurries != nullptr && *drain.hurries) ||
           (manner.given_up != nullptr && *manner.given_up);
  };
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of what is held of subgroup", static_cast<std::int64_t>(k)};
    auto const key = static_cast<tiers::Key>(k);
    StoredSubgroup const& stored = manifest.subgroups[k];
    if (stored.own_file || !drain.holds() || !tiers.is_held(key)) {
      continue;
    }
    if (!buffer) {
      buffer.emplace(drained_bytes);
    }
    double const rate = rate_of(drain.rate, tiers, key);
    auto const worth = [rate](Bytes bytes) { return Seconds{static_cast<double>(bytes) / rate}; };
    auto const lets_pass = [&] {
      return rate > 0.0 && !hurries() && allowance.has_time(worth(drained_bytes));
    };
    checksums[k].resize(static_cast<std::size_t>(stored.blocks(layout)));
    auto const take = [&](std::span<std::byte const> piece, Bytes offset) {
      go_on_unless(manner.given_up);
      file.write(stored.offset + offset, piece, lets_pass);
      checksum_blocks(
          piece, std::span{checksums[k]}
                     .subspan(static_cast<std::size_t>(offset / block_bytes))
                     .first(static_cast<std::size_t>(ceil_div(std::ssize(piece), block_bytes))));
      if (rate > 0.0) {
        allowance.add(worth(std::ssize(piece)));
        allowance.pause(hurries);
      }
    };
    tiers.read_held(key, buffer->bytes(), take, lets_pass);
    tiers.release(key);
  }
  return allowance.paused();
}

/// Writes the checksums around the HDF5 library too, because other ranks may have the file open.
void write_checksums(std::string const& path, Manifest const& manifest,
                     Checksums const& checksums) {
  static_assert(std::endian::native == std::endian::little, "as in the file");
  std::vector<FilePart> parts;
  for (std::size_t k = 0; k < checksums.size(); ++k) {
    parts.push_back(
        {manifest.subgroups[k].checksum_offset, std::as_bytes(std::span{checksums[k]})});
  }
  write_parts(path, parts);
}

/// Compares the parts of a rank file that no checksum covers: names, shapes and checksums.
void read_back(std::string const& path, Manifest const& manifest, StateLayout const& layout,
               Checksums const& checksums) {
  try {
    h5::File const file = h5::File::open_read(path);
    for (std::size_t k = 0; k < checksums.size(); ++k) {
      StoredSubgroup const& stored = manifest.subgroups[k];
      if (!stored.own_file) {
        require_planes(file, path, manifest.place(k), layout, stored.elements, stored.offset);
      }
      std::string const name = manifest.checksum_name(k);
      if (file.read<std::uint64_t>(name, {stored.blocks(layout)}) != checksums[k]) {
        throw DataError{fmt::format("{}: {} holds other values", path, name)};
      }
    }
  } catch (DataError const& error) {
    throw not_as_written(error);
  }
}

}  // namespace

Bytes space_for(StateLayout const& layout, std::vector<state::Subgroup> const& subgroups) {
  Bytes space = 64 * KiB;
  for (state::Subgroup const& subgroup : subgroups) {
    Bytes const state = layout.bytes(subgroup.size);
    // State, headers and alignment, checksums.
    space += state + 2 * aio::direct_alignment + state / 2048;
  }
  return space;
}

RankFiles write_rank_file(std::string const& step_directory, int rank, int ranks,
                          StateLayout const& layout, std::vector<state::Subgroup> const& subgroups,
                          tiers::Tiers& tiers, Manner const& manner) {
  Waiting const busy{"the rank file of a checkpoint"};
  std::optional<NodeFile::Turn> turn;
  if (manner.node != nullptr) {
    turn.emplace(*manner.node, manner.number);
  }
  Manifest manifest{.format = turn ? format_of_node_files : format_of_rank_files,
                    .rank = rank,
                    .ranks = ranks,
                    .file = turn ? manner.node->name() : rank_file_name(rank)};
  for (state::Subgroup const& subgroup : subgroups) {
    require(subgroup.index == std::ssize(manifest.subgroups), "checkpoint: subgroups in order");
    manifest.subgroups.push_back({.elements = subgroup.size, .pieces = subgroup.pieces});
  }
  Checksums checksums(subgroups.size());
  if (manner.split == nullptr) {
    checksums = give_extents(step_directory, manifest, layout, tiers, manner.given_up);
  }
  std::string const path = step_directory + "/" + manifest.file;
  if (turn) {
    turn->place(
        manifest, [&](std::span<Manifest> all) { lay_out(path, all, layout); }, manner.given_up);
  } else {
    lay_out(path, {&manifest, 1}, layout);
  }
  give_permissions(step_directory, manifest);
  aio::File const file = aio::File::open_read_write(path);
  StateFile state{file, manner.path};
  write_state(state, manifest, layout, subgroups, tiers, checksums, manner);
  RankFiles written;
  written.paused = write_held(state, manifest, layout, tiers, checksums, manner);
  write_checksums(path, manifest, checksums);
  require(file.size() == manifest.file_bytes, "checkpoint: a rank file keeps its size");
  file.sync();
  read_back(path, manifest, layout, checksums);
  for (std::size_t k = 0; k < checksums.size(); ++k) {
    StoredSubgroup& stored = manifest.subgroups[k];
    stored.checksum = checksum_of(std::as_bytes(std::span{checksums[k]}));
    (stored.own_file ? written.referred : written.copied) += layout.bytes(stored.elements);
  }
  written.manifest = to_json(manifest);
  write_text(step_directory + "/" + manifest_name(rank), written.manifest);
  aio::sync_directory(step_directory);
  return written;
}

void commit_master(std::string const& step_directory, Meta const& meta,
                   std::vector<std::string> const& manifests, bool is_local, Seconds patience) {
  Waiting const busy{"the master of a checkpoint"};
  Master master;
  master.meta = meta;
  master.meta.ranks = static_cast<std::int64_t>(manifests.size());
  std::vector<Manifest> parsed;
  for (std::string const& text : manifests) {
    std::string const name = manifest_name(static_cast<int>(parsed.size()));
    Manifest const& manifest = parsed.emplace_back(parse_manifest(text, meta.state.layout, name));
    master.format = manifest.format;
    master.ranks.push_back({manifest.file, manifest.file_bytes, name, checksum_of(text)});
    for (StoredSubgroup const& stored : manifest.subgroups) {
      if (stored.own_file) {
        master.extents.push_back({stored.own_file->name, stored.own_file->bytes});
      }
    }
  }
  if (!is_local) {
    require_seen(step_directory, master, patience);
  }
  std::string const unfinished = step_directory + "/" + unfinished_master_name;
  std::string const finished = step_directory + "/" + master_name;
  if (is_local || !can_show(parsed, meta.state.layout)) {
    parsed.clear();
  }
  write_master(unfinished, master, parsed);
  sync_file(unfinished);
  read_back_master(unfinished, master, parsed);
  rename_file("cannot rename to", unfinished, finished);
  aio::sync_directory(step_directory);
  aio::sync_name(step_directory);
}

void rewrite_configuration(std::string const& step_directory, std::string const& configuration) {
  Master const master = read_master(step_directory);
  if (master.format < format_of_two_layers) {
    return;  // its manifests count other layers than those that a master shows today
  }
  std::vector<std::string> manifests;
  for (RankEntry const& rank : master.ranks) {
    auto& text = manifests.emplace_back(read_text(step_directory + "/" + rank.manifest));
    if (checksum_of(text) != rank.manifest_checksum) {
      throw DataError{
          fmt::format("{}/{} does not match its checksum", step_directory, rank.manifest)};
    }
  }
  Meta meta = master.meta;
  meta.configuration = configuration;
  try {
    commit_master(step_directory, meta, manifests);
  } catch (...) {
    std::error_code left;
    std::filesystem::remove(step_directory + "/" + unfinished_master_name, left);
    throw;
  }
}

}  // namespace offstage::checkpoint
