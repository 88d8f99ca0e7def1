#include "checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/pacer.hpp"
#include "base/watch.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

// HDF5's own bookkeeping in a rank file, generously: of the file, of a plane or its group.
constexpr Bytes file_bookkeeping = 2 * KiB;
constexpr Bytes array_bookkeeping = 512;
constexpr int most_attempts = 6;
// Parameters that are joined at a time: 4 MiB.
constexpr std::int64_t joined_elements = std::int64_t{1} << 20U;
// What is held is read and written so much at a time.
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

/// The heads of extent files, by the elements of the extent.
class Heads {
 public:
  Heads(StateLayout const& layout, std::string scratch)
      : layout_{layout}, scratch_{std::move(scratch)} {}

  /// A slot file begins as that of the largest extent does: gives it the head of this extent, durably. What was shared
  /// before has it.
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
    file.sync();
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

/// Takes the files of what the tiers share, each with its checksums; those of the others are empty.
Checksums share_extents(std::string const& step_directory, Manifest& manifest,
                        StateLayout const& layout, tiers::Tiers& tiers,
                        std::atomic<bool> const* given_up) {
  Checksums checksums(manifest.subgroups.size());
  Heads heads{layout, step_directory + "/" + head_file_name(manifest.rank)};
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    go_on_unless(given_up);
    StoredSubgroup& stored = manifest.subgroups[k];
    std::string const name = extent_file_name(manifest.rank, k);
    std::string const path = fmt::format("{}/{}", step_directory, name);
    auto shared = tiers.share(static_cast<tiers::Key>(k), path);
    if (!shared) {
      continue;
    }
    require(std::ssize(shared->checksums) == stored.blocks(layout) &&
                shared->offset % aio::direct_alignment == 0,
            "checkpoint: an extent holds the planes of its subgroup, aligned");
    heads.give(path, shared->offset, stored.elements);
    stored.offset = shared->offset;
    stored.own_file = {name, shared->file_bytes};
    checksums[k] = std::move(shared->checksums);
  }
  return checksums;
}

/// Reserves the planes of all that has no file of its own. False if `bookkeeping` does not suffice.
bool lay_out_planes(h5::File& file, Manifest& manifest, StateLayout const& layout) {
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    StoredSubgroup& stored = manifest.subgroups[k];
    if (!stored.own_file) {
      auto const offset =
          reserve_planes(file, stored.place(k, format_of_planes), layout, stored.elements);
      if (!offset) {
        return false;
      }
      stored.offset = *offset;
    }
  }
  return true;
}

/// A valid HDF5 file with all arrays in place and nothing in them.
void lay_out(std::string const& path, Manifest& manifest, StateLayout const& layout) {
  auto const copied = std::ranges::count_if(manifest.subgroups,
                                            [](auto const& stored) { return !stored.own_file; });
  Bytes bookkeeping =
      file_bookkeeping + copied * static_cast<Bytes>(layout.size() + 1) * array_bookkeeping;
  for (int attempt = 1;; ++attempt, bookkeeping *= 2) {
    h5::File file = h5::File::create(path, {plane_alignment, aio::direct_alignment, bookkeeping});
    if (lay_out_planes(file, manifest, layout)) {
      for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
        file.reserve(checksum_name(k), h5::Type::u64, {manifest.subgroups[k].blocks(layout)});
      }
      file.close();
      return;
    }
    require(attempt < most_attempts, "checkpoint: HDF5 puts planes one after the other");
    file.close();
    remove_file(path);
  }
}

/// Extent files are to be read by whoever may read the rank file.
void give_permissions(std::string const& step_directory, Manifest const& manifest) {
  namespace fs = std::filesystem;
  std::error_code error;
  auto const permissions = fs::status(step_directory + "/" + manifest.file, error).permissions();
  for (StoredSubgroup const& stored : manifest.subgroups) {
    if (stored.own_file && !error) {
      fs::permissions(step_directory + "/" + stored.own_file->name, permissions, error);
    }
  }
  if (error) {
    throw IoError{"cannot set the permissions of files in", step_directory, error.value()};
  }
}

/// Writes these bytes and their checksums.
void write_bytes(aio::Engine& engine, aio::File const& file, Bytes offset,
                 std::span<std::byte const> bytes, std::span<std::uint64_t> checksums) {
  engine.write(file, bytes, offset);
  checksum_blocks(bytes, checksums);
}

/// Writes the extent of whole parameters. Those are whole blocks, and what follows them is as in the tiers.
void write_joined(aio::Engine& engine, aio::File const& file, Bytes offset,
                  SplitParameters const& split, state::Subgroup const& subgroup,
                  std::span<std::byte const> extent, std::span<std::uint64_t> checksums) {
  memory::HugeBuffer const buffer{std::min(joined_elements, subgroup.size) *
                                  static_cast<Bytes>(sizeof(float))};
  for (std::int64_t begin = 0; begin < subgroup.size; begin += joined_elements) {
    auto const count = std::min(joined_elements, subgroup.size - begin);
    auto const parameters = buffer.as<float>().first(static_cast<std::size_t>(count));
    split.join(subgroup, extent, begin, parameters);
    write_bytes(engine, file, offset + begin * static_cast<Bytes>(sizeof(float)),
                std::as_bytes(parameters),
                checksums.subspan(static_cast<std::size_t>(begin / chunk_elements),
                                  static_cast<std::size_t>(count / chunk_elements)));
  }
  write_bytes(engine, file, offset + subgroup.size * static_cast<Bytes>(sizeof(float)),
              extent.subspan(static_cast<std::size_t>(split.layout.padded_bytes(0, subgroup.size))),
              checksums.subspan(static_cast<std::size_t>(subgroup.size / chunk_elements)));
}

/// Writes what has no file of its own around the HDF5 library, and its checksums to `checksums`.
void write_state(aio::File const& file, Manifest const& manifest, StateLayout const& layout,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                 Checksums& checksums, std::atomic<bool> const* given_up,
                 SplitParameters const* split) {
  if (manifest.subgroups.empty()) {
    return;
  }
  aio::Engine engine;
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of subgroup", static_cast<std::int64_t>(k)};
    StoredSubgroup const& stored = manifest.subgroups[k];
    go_on_unless(given_up);
    if (stored.own_file || tiers.is_held(static_cast<tiers::Key>(k))) {
      continue;
    }
    tiers::Lease const lease = tiers.fetch_aside(static_cast<tiers::Key>(k));
    checksums[k].resize(static_cast<std::size_t>(stored.blocks(layout)));
    if (split != nullptr) {
      write_joined(engine, file, stored.offset, *split, subgroups[k], lease.bytes(), checksums[k]);
      continue;
    }
    require(std::ssize(lease.bytes()) == layout.bytes(stored.elements),
            "checkpoint: an extent holds the planes of its subgroup");
    write_bytes(engine, file, stored.offset, lease.bytes(), checksums[k]);
  }
}

/// The same of what the tiers hold.
void write_held(aio::File const& file, Manifest const& manifest, StateLayout const& layout,
                tiers::Tiers& tiers, Checksums& checksums, std::atomic<bool> const* given_up,
                Drain const& drain) {
  if (drain.only_held_is_left) {
    drain.only_held_is_left();
  }
  std::optional<aio::Engine> engine;
  std::optional<memory::HugeBuffer> buffer;
  Pacer pacer{drain.bytes_per_second};
  auto const hurries = [&] { return drain.hurries != nullptr && *drain.hurries; };
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of what is held of subgroup", static_cast<std::int64_t>(k)};
    auto const key = static_cast<tiers::Key>(k);
    StoredSubgroup const& stored = manifest.subgroups[k];
    if (stored.own_file || !tiers.is_held(key)) {
      continue;
    }
    if (!engine) {
      engine.emplace();
      buffer.emplace(drained_bytes);
    }
    checksums[k].resize(static_cast<std::size_t>(stored.blocks(layout)));
    tiers.read_held(key, buffer->bytes(), [&](std::span<std::byte const> piece, Bytes offset) {
      go_on_unless(given_up);
      auto const write = [&] {
        write_bytes(*engine, file, stored.offset + offset, piece,
                    std::span{checksums[k]}
                        .subspan(static_cast<std::size_t>(offset / block_bytes))
                        .first(static_cast<std::size_t>(ceil_div(std::ssize(piece), block_bytes))));
      };
      if (hurries()) {
        write();
      } else {
        pacer.run(static_cast<double>(piece.size()), write,
                  [&] { return hurries() || (given_up != nullptr && *given_up); });
      }
    });
    tiers.release(key);
  }
}

void write_checksums(std::string const& path, Checksums const& checksums) {
  if (checksums.empty()) {
    return;
  }
  h5::File file = h5::File::open_read_write(path);
  for (std::size_t k = 0; k < checksums.size(); ++k) {
    file.fill<std::uint64_t>(checksum_name(k), checksums[k]);
  }
  file.close();
}

/// Compares what no checksum covers once it is lost: the names, shapes and checksums in a rank file.
void read_back(std::string const& path, Manifest const& manifest, StateLayout const& layout,
               Checksums const& checksums) {
  try {
    h5::File const file = h5::File::open_read(path);
    for (std::size_t k = 0; k < checksums.size(); ++k) {
      StoredSubgroup const& stored = manifest.subgroups[k];
      if (!stored.own_file) {
        require_planes(file, path, stored.place(k, format_of_planes), layout, stored.elements,
                       stored.offset);
      }
      if (file.read<std::uint64_t>(checksum_name(k), {stored.blocks(layout)}) != checksums[k]) {
        throw DataError{fmt::format("{}: {} holds other values", path, checksum_name(k))};
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
                          tiers::Tiers& tiers, std::atomic<bool> const* given_up,
                          SplitParameters const* split, Drain const& drain) {
  Waiting const busy{"the rank file of a checkpoint"};
  Manifest manifest{
      .format = format_version, .rank = rank, .ranks = ranks, .file = rank_file_name(rank)};
  for (state::Subgroup const& subgroup : subgroups) {
    require(subgroup.index == std::ssize(manifest.subgroups), "checkpoint: subgroups in order");
    manifest.subgroups.push_back({.elements = subgroup.size, .pieces = subgroup.pieces});
  }
  Checksums checksums(subgroups.size());
  if (split == nullptr) {
    checksums = share_extents(step_directory, manifest, layout, tiers, given_up);
  }
  std::string const path = step_directory + "/" + manifest.file;
  lay_out(path, manifest, layout);
  give_permissions(step_directory, manifest);
  aio::File const file = aio::File::open_read_write(path);
  manifest.file_bytes = file.size();
  file.allocate(manifest.file_bytes);
  write_state(file, manifest, layout, subgroups, tiers, checksums, given_up, split);
  write_held(file, manifest, layout, tiers, checksums, given_up, drain);
  write_checksums(path, checksums);
  require(file.size() == manifest.file_bytes, "checkpoint: a rank file keeps its size");
  file.sync();
  read_back(path, manifest, layout, checksums);
  RankFiles written;
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
                   std::vector<std::string> const& manifests) {
  Waiting const busy{"the master of a checkpoint"};
  Master master;
  master.meta = meta;
  master.meta.ranks = static_cast<std::int64_t>(manifests.size());
  std::vector<Manifest> parsed;
  for (std::string const& text : manifests) {
    std::string const name = manifest_name(static_cast<int>(parsed.size()));
    Manifest const& manifest = parsed.emplace_back(parse_manifest(text, meta.state.layout, name));
    master.ranks.push_back({manifest.file, manifest.file_bytes, name, checksum_of(text)});
    for (StoredSubgroup const& stored : manifest.subgroups) {
      if (stored.own_file) {
        master.extents.push_back({stored.own_file->name, stored.own_file->bytes});
      }
    }
  }
  std::string const unfinished = step_directory + "/" + unfinished_master_name;
  std::string const finished = step_directory + "/" + master_name;
  write_master(unfinished, master, parsed);
  sync_file(unfinished);
  read_back_master(unfinished, master, parsed);
  if (std::rename(unfinished.c_str(), finished.c_str()) != 0) {
    throw IoError{"cannot rename to", finished, errno};
  }
  aio::sync_directory(step_directory);
  aio::sync_directory(std::filesystem::absolute(step_directory).parent_path().string());
}

}  // namespace offstage::checkpoint
