#include "checkpoint/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/plausible.hpp"

namespace offstage::checkpoint {
namespace {

// Three descriptors each.
constexpr std::size_t most_open_files = 64;

// What is read at a time where values do not begin and end with blocks.
constexpr Bytes buffer_bytes = 4 * MiB;
static_assert(buffer_bytes % block_bytes == 0);

/// True if the error tells of the files themselves: they end too early, are gone or are no files.
bool is_damage(IoError const& error) {
  switch (error.error_number()) {
    case 0:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
      return true;
    default:
      return false;
  }
}

/// A system call's failure that tells of the checkpoint becomes a DataError.
template <class Work>
decltype(auto) telling_damage(Work&& work) {
  try {
    return work();
  } catch (IoError const& error) {
    if (is_damage(error)) {
      throw DataError{error.what()};
    }
    throw;
  }
}

/// Up to format 3. Errors: as require_planes.
void require_array(h5::File const& file, std::string const& path, std::string const& dataset,
                   h5::Shape const& shape, Bytes offset) {
  if (file.offset(dataset, h5::Type::f32, shape) != offset) {
    throw DataError{fmt::format(
        "{}: {} does not stand where the manifest says; the file is damaged", path, dataset)};
  }
}

/// What goes around HDF5 must be what others read through it. `file`: the one that holds the subgroup.
void require_place(h5::File const& file, std::string const& path, Manifest const& manifest,
                   std::size_t subgroup, StateLayout const& layout) {
  StoredSubgroup const& stored = manifest.subgroups[subgroup];
  std::string const place = stored.place(subgroup, manifest.format);
  if (manifest.format >= format_of_planes) {
    require_planes(file, path, place, layout, stored.elements, stored.offset);
  } else if (stored.own_file) {
    require_array(file, path, place, {stored.own_file->dataset_elements}, stored.offset);
  } else {
    require_array(file, path, place, {3, stored.elements}, stored.offset);
  }
}

bool is_aligned(std::span<std::byte const> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) % aio::direct_alignment == 0 &&
         std::ssize(bytes) % aio::direct_alignment == 0;
}

state::ShardMap map_of(std::string const& directory, Meta const& meta) {
  try {
    state::validate(meta.model);
  } catch (UsageError const& error) {
    throw DataError{fmt::format("{}/{}: {}", directory, master_name, error.what())};
  }
  return {state::layers_of(meta.model), static_cast<int>(meta.ranks)};
}

}  // namespace

Reader::Reader(std::string step_directory, Master master, std::shared_ptr<aio::Kernel> kernel)
    : directory_{std::move(step_directory)},
      master_{std::move(master)},
      map_{map_of(directory_, master_.meta)},
      engine_{{}, std::move(kernel)} {}

Reader::Places Reader::places_in(Manifest const& manifest) {
  Places places;
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    std::vector<state::Piece> const& pieces = manifest.subgroups[k].pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      places.emplace(std::pair{pieces[i].layer, pieces[i].chunks.first}, std::pair{k, i});
    }
  }
  return places;
}

Manifest Reader::manifest(int rank) const {
  RankEntry const& entry = master_.ranks.at(static_cast<std::size_t>(rank));
  std::string const path = directory_ + "/" + entry.manifest;
  return telling_damage([&] {
    require_files(directory_, entry);
    std::string const text = read_text(path, manifest_limit(map_, rank));
    if (checksum_of(text) != entry.manifest_checksum) {
      throw DataError{path + ": does not match its checksum in the master; the file is damaged"};
    }
    Manifest parsed = parse_manifest(text, layout(), path);
    if (parsed.format != master_.format) {
      throw DataError{path + ": has another format than the master"};
    }
    if (parsed.rank != rank || parsed.ranks != map_.ranks() || parsed.file != entry.file ||
        parsed.file_bytes != entry.file_bytes) {
      throw DataError{path + ": names another rank or file than the master does"};
    }
    require_shard(parsed, map_, path);
    for (StoredSubgroup const& stored : parsed.subgroups) {
      if (stored.own_file) {
        require_file(directory_ + "/" + stored.own_file->name, stored.own_file->bytes);
      }
    }
    return parsed;
  });
}

Reader::Source& Reader::source(int rank) {
  auto const known = sources_.find(rank);
  if (known != sources_.end()) {
    return known->second;
  }
  if (sources_.size() >= most_open_files) {
    sources_.clear();
  }
  Manifest parsed = manifest(rank);
  std::string const path = directory_ + "/" + parsed.file;
  std::vector<std::vector<std::uint64_t>> no_checksums(parsed.subgroups.size());
  auto places = places_in(parsed);
  Source opened{std::move(parsed),
                std::move(places),
                h5::File::open_read(path),
                aio::File::open_read(path),
                {},
                std::move(no_checksums)};
  return sources_.emplace(rank, std::move(opened)).first->second;
}

aio::File const& Reader::file_of(Source& source, std::size_t subgroup) const {
  StoredSubgroup const& stored = source.manifest.subgroups[subgroup];
  if (!stored.own_file) {
    return source.file;
  }
  std::string const path = directory_ + "/" + stored.own_file->name;
  if (source.extent.path() != path) {
    require_place(h5::File::open_read(path), path, source.manifest, subgroup, layout());
    source.extent = aio::File::open_read(path);
  }
  return source.extent;
}

void Reader::require_checksums(int rank) {
  telling_damage([&] {
    Source& from = source(rank);
    for (std::size_t k = 0; k < from.manifest.subgroups.size(); ++k) {
      (void)checksums(from, k);
      from.checksums[k] = {};
    }
  });
}

std::vector<std::uint64_t> const& Reader::checksums(Source& source, std::size_t subgroup) {
  std::vector<std::uint64_t>& loaded = source.checksums[subgroup];
  if (loaded.empty()) {
    StoredSubgroup const& stored = source.manifest.subgroups[subgroup];
    if (!stored.own_file) {
      require_place(source.arrays, source.file.path(), source.manifest, subgroup, layout());
    }
    bool const has_planes = source.manifest.format >= format_of_planes;
    auto checksums = source.arrays.read<std::uint64_t>(
        checksum_name(subgroup), has_planes ? h5::Shape{stored.blocks(layout())}
                                            : h5::Shape{3, stored.elements / chunk_elements});
    if (checksum_of(std::as_bytes(std::span{checksums})) != stored.checksum) {
      throw DataError{fmt::format("{}: {} does not match its checksum; the file is damaged",
                                  source.file.path(), checksum_name(subgroup))};
    }
    loaded = std::move(checksums);
  }
  return loaded;
}

Reader::Run Reader::locate(int layer, state::ChunkRange chunks, std::int64_t target) {
  // The rank follows from how chunks are dealt; its manifest says where they lie.
  std::int64_t const total = map_.layers()[static_cast<std::size_t>(layer)].chunks();
  auto const rank = static_cast<int>(chunks.first * map_.ranks() / total);
  Source const& from = source(rank);
  auto const next = from.places.upper_bound({layer, chunks.first});
  if (next != from.places.begin()) {
    auto const [subgroup, index] = std::prev(next)->second;
    state::Piece const& piece = from.manifest.subgroups[subgroup].pieces[index];
    std::int64_t const skipped = chunks.first - piece.chunks.first;
    if (piece.layer == layer && skipped < piece.chunks.count) {
      return {.rank = rank,
              .subgroup = subgroup,
              .source = piece.offset + skipped * chunk_elements,
              .target = target,
              .elements = std::min(chunks.count, piece.chunks.count - skipped) * chunk_elements};
    }
  }
  throw DataError{fmt::format("{}/{}: no subgroup holds chunk {} of layer {}; the file is damaged",
                              directory_, master_.ranks[static_cast<std::size_t>(rank)].manifest,
                              chunks.first, layer)};
}

std::vector<Reader::Run> Reader::runs_of(std::span<state::Piece const> pieces) {
  std::vector<Run> runs;
  for (state::Piece const& piece : pieces) {
    std::int64_t done = 0;
    while (done < piece.chunks.count) {
      Run const run = locate(piece.layer, {piece.chunks.first + done, piece.chunks.count - done},
                             piece.offset + done * chunk_elements);
      done += run.elements / chunk_elements;
      bool const joined = !runs.empty() && runs.back().rank == run.rank &&
                          runs.back().subgroup == run.subgroup &&
                          runs.back().source + runs.back().elements == run.source &&
                          runs.back().target + runs.back().elements == run.target;
      if (joined) {
        runs.back().elements += run.elements;
      } else {
        runs.push_back(run);
      }
    }
  }
  return runs;
}

/// Whole blocks of the extent from byte `begin` on; the last may be that of the extent.
void Reader::read_blocks(Source& from, Run const& run, std::size_t plane, Bytes begin,
                         std::span<std::byte> target) {
  StoredSubgroup const& stored = from.manifest.subgroups[run.subgroup];
  std::span<std::uint64_t const> const expected = checksums(from, run.subgroup);
  aio::File const& file = file_of(from, run.subgroup);
  engine_.read(file, target, stored.offset + begin);
  auto const wrong = first_mismatch(
      target,
      expected.subspan(static_cast<std::size_t>(begin / block_bytes),
                       static_cast<std::size_t>(ceil_div(std::ssize(target), block_bytes))));
  if (wrong) {
    Plane const& values = layout().planes()[plane];
    Bytes const inside = std::max<Bytes>(
        0, begin + *wrong * block_bytes - layout().plane_offset(plane, stored.elements));
    throw DataError{fmt::format(
        "{}: chunk {} of the {} in {} does not match its checksum; the file is damaged",
        file.path(), inside / bytes_of(values.type) * values.elements_per_value / chunk_elements,
        values.name, stored.place(run.subgroup, from.manifest.format))};
  }
}

void Reader::read_values(Source& from, Run const& run, std::size_t plane,
                         std::span<std::byte> target) {
  StoredSubgroup const& stored = from.manifest.subgroups[run.subgroup];
  Bytes const begin =
      layout().plane_offset(plane, stored.elements) + layout().plane_bytes(plane, run.source);
  Bytes const end = begin + std::ssize(target);
  Bytes const extent_end = layout().bytes(stored.elements);
  if (begin % block_bytes == 0 && (end % block_bytes == 0 || end == extent_end) &&
      is_aligned(target)) {
    read_blocks(from, run, plane, begin, target);
    return;
  }
  if (blocks_.size() == 0) {
    blocks_ = memory::HugeBuffer{buffer_bytes};
  }
  for (Bytes at = begin / block_bytes * block_bytes; at < end; at += buffer_bytes) {
    Bytes const until = std::min({at + buffer_bytes, round_up(end, block_bytes), extent_end});
    auto const blocks = blocks_.bytes().first(static_cast<std::size_t>(until - at));
    read_blocks(from, run, plane, at, blocks);
    Bytes const first = std::max(begin, at);
    std::ranges::copy(blocks.subspan(static_cast<std::size_t>(first - at),
                                     static_cast<std::size_t>(std::min(end, until) - first)),
                      target.data() + (first - begin));
  }
}

void Reader::read_run(Run const& run, std::span<std::byte> state, std::int64_t elements,
                      std::size_t planes) {
  Source& from = source(run.rank);
  for (std::size_t plane = 0; plane < planes; ++plane) {
    Bytes const target =
        layout().plane_offset(plane, elements) + layout().plane_bytes(plane, run.target);
    read_values(from, run, plane,
                state.subspan(static_cast<std::size_t>(target),
                              static_cast<std::size_t>(layout().plane_bytes(plane, run.elements))));
  }
}

void Reader::read_runs(std::span<state::Piece const> pieces, std::span<std::byte> state,
                       std::int64_t elements, std::size_t planes) {
  Waiting const busy{"reading a checkpoint"};
  try {
    telling_damage([&] {
      for (Run const& run : runs_of(pieces)) {
        read_run(run, state, elements, planes);
      }
    });
  } catch (Error const&) {
    sources_.clear();  // the next try opens them anew
    throw;
  }
}

void Reader::read(std::span<state::Piece const> pieces, std::span<std::byte> state) {
  std::int64_t elements = 0;
  for (state::Piece const& piece : pieces) {
    elements += piece.chunks.count * chunk_elements;
  }
  require(std::ssize(state) == layout().bytes(elements),
          "checkpoint: what is read has an extent's room");
  read_runs(pieces, state, elements, layout().size());
}

void Reader::read_parameters(std::span<state::Piece const> pieces, std::span<float> parameters) {
  read_runs(pieces, std::as_writable_bytes(parameters), std::ssize(parameters), 1);
}

}  // namespace offstage::checkpoint
