#include "checkpoint/writer.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

// The smallest subgroup state; everything from this size on is aligned for direct I/O.
constexpr h5::File::Alignment alignment{3 * chunk_bytes, aio::direct_alignment};
// HDF5's own bookkeeping in a rank file, generously.
constexpr Bytes metadata_bytes = 64 * KiB;

h5::Shape checksum_shape(StoredSubgroup const& subgroup) {
  return {3, subgroup.elements / chunk_elements};
}

using ChunkChecksums = std::vector<std::vector<std::uint64_t>>;
static_assert(tiers::checksum_block_bytes == chunk_bytes);

void go_on_unless(std::atomic<bool> const* given_up) {
  if (given_up != nullptr && *given_up) {
    throw Error{ExitCode::other, "the save was given up"};
  }
}

/// The elements in an extent file of this run.
std::int64_t elements_in(std::string const& path) {
  try {
    return h5::File::open_read(path).shape(extent_dataset).at(0);
  } catch (DataError const& error) {
    throw not_as_written(error);
  }
}

/// Takes the files of what the tiers share, each with its checksums; those of the others are empty.
ChunkChecksums share_extents(std::string const& step_directory, Manifest& manifest,
                             tiers::Tiers& tiers, std::atomic<bool> const* given_up) {
  ChunkChecksums checksums(manifest.subgroups.size());
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    go_on_unless(given_up);
    StoredSubgroup& stored = manifest.subgroups[k];
    std::string const name = extent_file_name(manifest.rank, k);
    std::string const path = fmt::format("{}/{}", step_directory, name);
    auto shared = tiers.share(static_cast<tiers::Key>(k), path);
    if (!shared) {
      continue;
    }
    require(
        shared->checksums.size() == stored.chunks() && shared->offset % aio::direct_alignment == 0,
        "checkpoint: an extent holds p, m and v of its subgroup, aligned");
    stored.offset = shared->offset;
    stored.own_file = {name, shared->file_bytes, elements_in(path)};
    checksums[k] = std::move(shared->checksums);
  }
  return checksums;
}

/// A valid HDF5 file with all arrays in place and nothing in them.
void lay_out(std::string const& path, Manifest& manifest) {
  h5::File file = h5::File::create(path, alignment);
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    StoredSubgroup& stored = manifest.subgroups[k];
    if (!stored.own_file) {
      stored.offset = file.reserve(stored.dataset(k), h5::Type::f32, {3, stored.elements});
      require(stored.offset % aio::direct_alignment == 0, "checkpoint: HDF5 aligns the state");
    }
    file.reserve(checksum_name(k), h5::Type::u64, checksum_shape(stored));
  }
  file.close();
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

/// Writes what has no file of its own around the HDF5 library, and its checksums to `checksums`.
void write_state(aio::File const& file, Manifest const& manifest, tiers::Tiers& tiers,
                 ChunkChecksums& checksums, std::atomic<bool> const* given_up) {
  if (manifest.subgroups.empty()) {
    return;
  }
  aio::Engine engine;
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of subgroup", static_cast<std::int64_t>(k)};
    StoredSubgroup const& stored = manifest.subgroups[k];
    go_on_unless(given_up);
    if (stored.own_file) {
      continue;
    }
    tiers::Lease const lease = tiers.fetch(static_cast<tiers::Key>(k));
    require(static_cast<Bytes>(lease.bytes().size()) == 12 * stored.elements,
            "checkpoint: an extent holds p, m and v of its subgroup");
    engine.write(file, lease.bytes(), stored.offset);
    checksums[k].resize(stored.chunks());
    checksum_chunks(lease.bytes(), checksums[k]);
  }
}

void write_checksums(std::string const& path, ChunkChecksums const& checksums) {
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
void read_back(std::string const& path, Manifest const& manifest, ChunkChecksums const& checksums) {
  try {
    h5::File const file = h5::File::open_read(path);
    for (std::size_t k = 0; k < checksums.size(); ++k) {
      StoredSubgroup const& stored = manifest.subgroups[k];
      if (!stored.own_file && file.shape(stored.dataset(k)) != h5::Shape{3, stored.elements}) {
        throw DataError{fmt::format("{}: {} has another shape", path, stored.dataset(k))};
      }
      if (file.read<std::uint64_t>(checksum_name(k), checksum_shape(stored)) != checksums[k]) {
        throw DataError{fmt::format("{}: {} holds other values", path, checksum_name(k))};
      }
    }
  } catch (DataError const& error) {
    throw not_as_written(error);
  }
}

}  // namespace

Bytes space_for(std::vector<state::Subgroup> const& subgroups) {
  Bytes space = metadata_bytes;
  for (state::Subgroup const& subgroup : subgroups) {
    // State, alignment, checksums and headers.
    space += subgroup.state_bytes() + 2 * aio::direct_alignment + subgroup.state_bytes() / 2048;
  }
  return space;
}

RankFiles write_rank_file(std::string const& step_directory, int rank, int ranks,
                          std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                          std::atomic<bool> const* given_up) {
  Waiting const busy{"the rank file of a checkpoint"};
  Manifest manifest{.rank = rank, .ranks = ranks, .file = rank_file_name(rank)};
  for (state::Subgroup const& subgroup : subgroups) {
    require(subgroup.index == std::ssize(manifest.subgroups), "checkpoint: subgroups in order");
    manifest.subgroups.push_back({.elements = subgroup.size, .pieces = subgroup.pieces});
  }
  ChunkChecksums checksums = share_extents(step_directory, manifest, tiers, given_up);
  std::string const path = step_directory + "/" + manifest.file;
  lay_out(path, manifest);
  give_permissions(step_directory, manifest);
  aio::File const file = aio::File::open_read_write(path);
  manifest.file_bytes = file.size();
  file.allocate(manifest.file_bytes);
  write_state(file, manifest, tiers, checksums, given_up);
  write_checksums(path, checksums);
  require(file.size() == manifest.file_bytes, "checkpoint: a rank file keeps its size");
  file.sync();
  read_back(path, manifest, checksums);
  RankFiles written;
  for (std::size_t k = 0; k < checksums.size(); ++k) {
    StoredSubgroup& stored = manifest.subgroups[k];
    stored.checksum = checksum_of(std::as_bytes(std::span{checksums[k]}));
    (stored.own_file ? written.referred : written.copied) += subgroups[k].state_bytes();
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
    Manifest const& manifest = parsed.emplace_back(parse_manifest(text, name));
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
