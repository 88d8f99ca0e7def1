#include "checkpoint/writer.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
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

/// A valid HDF5 file with all arrays in place and nothing in them.
Manifest lay_out(std::string const& path, int rank, int ranks,
                 std::vector<state::Subgroup> const& subgroups) {
  Manifest manifest;
  manifest.rank = rank;
  manifest.ranks = ranks;
  manifest.file = rank_file_name(rank);
  h5::File file = h5::File::create(path, alignment);
  for (state::Subgroup const& subgroup : subgroups) {
    std::size_t const k = manifest.subgroups.size();
    require(subgroup.index == static_cast<std::int64_t>(k), "checkpoint: subgroups in order");
    Bytes const offset = file.reserve(dataset_name(k), h5::Type::f32, {3, subgroup.size});
    StoredSubgroup stored{offset, subgroup.size, 0, subgroup.pieces};
    require(stored.offset % aio::direct_alignment == 0, "checkpoint: HDF5 aligns the state");
    file.reserve(checksum_name(k), h5::Type::u64, checksum_shape(stored));
    manifest.subgroups.push_back(std::move(stored));
  }
  file.close();
  return manifest;
}

using ChunkChecksums = std::vector<std::vector<std::uint64_t>>;

/// Writes all state around the HDF5 library; fills in the manifest's checksums.
ChunkChecksums write_state(aio::File const& file, Manifest& manifest, tiers::Tiers& tiers) {
  ChunkChecksums checksums;
  if (manifest.subgroups.empty()) {
    return checksums;
  }
  aio::Engine engine;
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    Waiting const busy{"the save of subgroup", static_cast<std::int64_t>(k)};
    StoredSubgroup& stored = manifest.subgroups[k];
    tiers::Lease const lease = tiers.fetch(static_cast<tiers::Key>(k));
    require(static_cast<Bytes>(lease.bytes().size()) == 12 * stored.elements,
            "checkpoint: an extent holds p, m and v of its subgroup");
    engine.write(file, lease.bytes(), stored.offset);
    std::vector<std::uint64_t>& chunks = checksums.emplace_back(stored.chunks());
    checksum_chunks(lease.bytes(), chunks);
    stored.checksum = checksum_of(std::as_bytes(std::span{chunks}));
  }
  return checksums;
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

}  // namespace

Bytes space_for(std::vector<state::Subgroup> const& subgroups) {
  Bytes space = metadata_bytes;
  for (state::Subgroup const& subgroup : subgroups) {
    // State, alignment, checksums and headers.
    space += subgroup.state_bytes() + 2 * aio::direct_alignment + subgroup.state_bytes() / 2048;
  }
  return space;
}

std::string write_rank_file(std::string const& step_directory, int rank, int ranks,
                            std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers) {
  Waiting const busy{"the rank file of a checkpoint"};
  std::string const path = step_directory + "/" + rank_file_name(rank);
  Manifest manifest = lay_out(path, rank, ranks, subgroups);
  aio::File const file = aio::File::open_read_write(path);
  manifest.file_bytes = file.size();
  file.allocate(manifest.file_bytes);
  write_checksums(path, write_state(file, manifest, tiers));
  require(file.size() == manifest.file_bytes, "checkpoint: a rank file keeps its size");
  file.sync();
  std::string text = to_json(manifest);
  write_text(step_directory + "/" + manifest_name(rank), text);
  aio::sync_directory(step_directory);
  return text;
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
  }
  std::string const unfinished = step_directory + "/" + unfinished_master_name;
  std::string const finished = step_directory + "/" + master_name;
  write_master(unfinished, master, parsed);
  sync_file(unfinished);
  if (std::rename(unfinished.c_str(), finished.c_str()) != 0) {
    throw IoError{"cannot rename to", finished, errno};
  }
  aio::sync_directory(step_directory);
  aio::sync_directory(std::filesystem::absolute(step_directory).parent_path().string());
}

}  // namespace offstage::checkpoint
