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

// Each open file takes three descriptors.
constexpr std::size_t most_open_files = 64;

// Bytes that are verified at a time while the next are read.
constexpr Bytes part_bytes = 32 * MiB;
static_assert(part_bytes % block_bytes == 0);

// Parts that are asked for and not verified; each may keep three descriptors of its own open.
constexpr std::size_t most_parts = 64;

// Bytes that are read at a time where values do not begin and end with blocks.
constexpr Bytes buffer_bytes = 4 * MiB;
static_assert(buffer_bytes % block_bytes == 0);

/// Returns true if the error is one of the files themselves: they end too early, are gone or are no
/// files.
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

/// Calls `work`, and turns a system call's failure that is due to the checkpoint into a DataError.
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

/// Checks that this node has the checkpoint whose master another one has read. Files are missing
/// where it is not mounted, and that is no damage. Errors: IoError.
void require_in_sight(std::string const& step_directory) {
  if (!size_of_file(step_directory + "/" + master_name)) {
    throw IoError{
        step_directory +
            " is there for another node, but not for this one; is its file system mounted here?",
        EIO};
  }
}

/// Checks the dataset of a format up to 3. Errors: as require_planes.
void require_array(h5::File const& file, std::string const& path, std::string const& dataset,
                   h5::Shape const& shape, Bytes offset) {
  if (file.offset(dataset, h5::Type::f32, shape) != offset) {
    throw DataError{fmt::format(
        "{}: {} is not at the place that the manifest names; the file is damaged", path, dataset)};
  }
}

/// Checks that bytes read around HDF5 are those that others read through it. `file` holds the
/// subgroup.
void require_place(h5::File const& file, std::string const& path, Manifest const& manifest,
                   std::size_t subgroup, StateLayout const& layout) {
  StoredSubgroup const& stored = manifest.subgroups[subgroup];
  std::string const place = manifest.place(subgroup);
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

/// Layers dealt to the ranks that wrote the checkpoint. `layers` is the format whose layers are
/// meant.
state::ShardMap map_of(std::string const& directory, Master const& master, std::int64_t layers) {
  Meta const& meta = master.meta;
  try {
    state::validate(meta.model);
  } catch (UsageError const& error) {
    throw DataError{fmt::format("{}/{}: {}", directory, master_name, error.what())};
  }
  return {layers_of(meta.model, layers), static_cast<int>(meta.ranks), deal_of(master.format)};
}

}  // namespace

Reader::Reader(std::string step_directory, Master master, std::shared_ptr<aio::Kernel> kernel)
    : directory_{std::move(step_directory)},
      master_{std::move(master)},
      kernel_{std::move(kernel)},
      stored_{map_of(directory_, master_, master_.format)},
      map_{map_of(directory_, master_, format_version)} {}

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
    try {
      require_files(directory_, entry);
    } catch (DataError const&) {
      require_in_sight(directory_);
      throw;
    }
    std::string const text = read_text(path, manifest_limit(stored_, rank));
    if (checksum_of(text) != entry.manifest_checksum) {
      throw DataError{path + ": does not match its checksum in the master; the file is damaged"};
    }
    Manifest parsed = parse_manifest(text, layout(), path);
    if (parsed.format != master_.format) {
      throw DataError{path + ": has another format than the master"};
    }
    if (parsed.rank != rank || parsed.ranks != stored_.ranks() || parsed.file != entry.file ||
        parsed.file_bytes != entry.file_bytes) {
      throw DataError{path + ": names another rank or file than the master does"};
    }
    require_shard(parsed, stored_, path);
    for (StoredSubgroup const& stored : parsed.subgroups) {
      if (stored.own_file) {
        require_file(directory_ + "/" + stored.own_file->name, stored.own_file->bytes);
      }
    }
    return parsed;
  });
}

std::shared_ptr<Reader::Source> const& Reader::source(int rank) {
  auto const known = sources_.find(rank);
  if (known != sources_.end()) {
    return known->second;
  }
  Manifest parsed = manifest(rank);
  std::vector<std::vector<std::uint64_t>> no_checksums(parsed.subgroups.size());
  auto places = places_in(parsed);
  auto made = std::make_shared<Source>(Source{.manifest = std::move(parsed),
                                              .places = std::move(places),
                                              .checksums = std::move(no_checksums)});
  open(made);
  return sources_.emplace(rank, std::move(made)).first->second;
}

void Reader::open(std::shared_ptr<Source> const& source) {
  if (source->file) {
    return;
  }
  if (open_.size() >= most_open_files) {
    open_.front()->arrays.reset();
    open_.front()->file.reset();
    open_.front()->extent.reset();
    open_.pop_front();
  }
  std::string const path = directory_ + "/" + source->manifest.file;
  source->arrays.emplace(h5::File::open_read(path));
  source->file = std::make_shared<aio::File const>(aio::File::open_read(path));
  open_.push_back(source);
}

void Reader::forget_sources() noexcept {
  sources_.clear();
  open_.clear();
}

std::shared_ptr<aio::File const> const& Reader::file_of(std::shared_ptr<Source> const& of,
                                                        std::size_t subgroup) {
  open(of);
  Source& source = *of;
  StoredSubgroup const& stored = source.manifest.subgroups[subgroup];
  if (!stored.own_file) {
    return source.file;
  }
  std::string const path = directory_ + "/" + stored.own_file->name;
  if (!source.extent || source.extent->path() != path) {
    require_place(h5::File::open_read(path), path, source.manifest, subgroup, layout());
    source.extent = std::make_shared<aio::File const>(aio::File::open_read(path));
  }
  return source.extent;
}

void Reader::require_checksums(int rank) {
  telling_damage([&] {
    std::shared_ptr<Source> const from = source(rank);
    for (std::size_t k = 0; k < from->manifest.subgroups.size(); ++k) {
      (void)checksums(from, k);
      from->checksums[k] = {};
    }
  });
}

std::vector<std::uint64_t> const& Reader::checksums(std::shared_ptr<Source> const& of,
                                                    std::size_t subgroup) {
  Source& source = *of;
  std::vector<std::uint64_t>& loaded = source.checksums[subgroup];
  if (loaded.empty()) {
    open(of);
    StoredSubgroup const& stored = source.manifest.subgroups[subgroup];
    if (!stored.own_file) {
      require_place(*source.arrays, source.file->path(), source.manifest, subgroup, layout());
    }
    bool const has_planes = source.manifest.format >= format_of_planes;
    auto checksums = source.arrays->read<std::uint64_t>(
        source.manifest.checksum_name(subgroup),
        has_planes ? h5::Shape{stored.blocks(layout())}
                   : h5::Shape{3, stored.elements / chunk_elements});
    if (checksum_of(std::as_bytes(std::span{checksums})) != stored.checksum) {
      throw DataError{fmt::format("{}: {} does not match its checksum; the file is damaged",
                                  source.file->path(), source.manifest.checksum_name(subgroup))};
    }
    loaded = std::move(checksums);
  }
  return loaded;
}

Reader::Run Reader::locate(Section const& section) {
  // The rank follows from the way in which chunks are dealt; its manifest says where they lie.
  std::int64_t const chunk = section.begin / chunk_elements;
  int const rank = stored_.owner(section.layer, chunk);
  Source const& from = *source(rank);
  auto const next = from.places.upper_bound({section.layer, chunk});
  if (next != from.places.begin()) {
    auto const [subgroup, index] = std::prev(next)->second;
    state::Piece const& piece = from.manifest.subgroups[subgroup].pieces[index];
    std::int64_t const skipped = section.begin - piece.chunks.first * chunk_elements;
    std::int64_t const left = piece.chunks.count * chunk_elements - skipped;
    if (piece.layer == section.layer && left > 0) {
      return {.rank = rank,
              .subgroup = subgroup,
              .source = piece.offset + skipped,
              .target = section.target,
              .elements = std::min(section.elements, left)};
    }
  }
  throw DataError{fmt::format("{}/{}: no subgroup holds chunk {} of layer {}; the file is damaged",
                              directory_, master_.ranks[static_cast<std::size_t>(rank)].manifest,
                              chunk, section.layer)};
}

void Reader::require_whole_values(Section const& section, std::size_t planes) const {
  for (std::size_t plane = 0; plane < planes; ++plane) {
    std::int64_t const whole = layout().planes()[plane].elements_per_value;
    if (section.begin % whole != 0 || section.target % whole != 0 ||
        section.elements % whole != 0) {
      throw Refused{fmt::format(
          "checkpoint {}: it has format {}, whose {} of {} elements each cross tensors that are in "
          "different layers today; save it with optimizer.moments=fp32 by an offstage that writes "
          "format {}, or take its parameters alone: train.init-from={}",
          directory_, master_.format, layout().planes()[plane].name, whole, master_.format,
          directory_)};
    }
  }
}

std::vector<Reader::Run> Reader::runs_of(std::span<state::Piece const> pieces, std::size_t planes) {
  std::vector<Run> runs;
  for (state::Piece const& piece : pieces) {
    for (Section section : sections_of(piece, map_.layers(), stored_.layers())) {
      require_whole_values(section, planes);
      while (section.elements > 0) {
        Run const run = locate(section);
        section.begin += run.elements;
        section.target += run.elements;
        section.elements -= run.elements;
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
  }
  return runs;
}

void Reader::verify(std::shared_ptr<Source> const& from, aio::File const& file,
                    std::size_t subgroup, std::size_t plane, Bytes begin,
                    std::span<std::byte const> bytes) {
  StoredSubgroup const& stored = from->manifest.subgroups[subgroup];
  std::span<std::uint64_t const> const expected = checksums(from, subgroup);
  auto const wrong = first_mismatch(
      bytes, expected.subspan(static_cast<std::size_t>(begin / block_bytes),
                              static_cast<std::size_t>(ceil_div(std::ssize(bytes), block_bytes))));
  if (wrong) {
    Plane const& values = layout().planes()[plane];
    Bytes const inside = std::max<Bytes>(
        0, begin + *wrong * block_bytes - layout().plane_offset(plane, stored.elements));
    throw DataError{fmt::format(
        "{}: chunk {} of the {} in {} does not match its checksum; the file is damaged",
        file.path(), inside / bytes_of(values.type) * values.elements_per_value / chunk_elements,
        values.name, from->manifest.place(subgroup))};
  }
}

void Reader::verify_next() {
  Part const part = std::move(parts_.front());
  parts_.pop_front();
  --part.of->parts;
  part.of->parameter_parts -= part.plane == 0 ? 1 : 0;
  ahead_->wait();
  verify(part.from, *part.file, part.subgroup, part.plane, part.begin, part.memory);
}

void Reader::ask_blocks(Begun& begun, Run const& run, std::size_t plane, Bytes begin,
                        std::span<std::byte> target) {
  std::shared_ptr<Source> const from = source(run.rank);
  (void)checksums(from, run.subgroup);
  auto const file = file_of(from, run.subgroup);
  Bytes const offset = from->manifest.subgroups[run.subgroup].offset;
  if (!ahead_ || (ahead_->is_ended() && parts_.empty())) {
    ahead_ = std::make_unique<ReadAhead>(kernel_);
  }
  for (Bytes done = 0; done < std::ssize(target); done += part_bytes) {
    while (parts_.size() >= most_parts) {
      verify_next();
    }
    auto const memory =
        target.subspan(static_cast<std::size_t>(done),
                       static_cast<std::size_t>(std::min(part_bytes, std::ssize(target) - done)));
    parts_.push_back({&begun, from, file, run.subgroup, plane, begin + done, memory});
    ++begun.parts;
    begun.parameter_parts += plane == 0 ? 1 : 0;
    ahead_->ask(file, memory, offset + begin + done);
  }
}

void Reader::read_inside(Run const& run, std::size_t plane, Bytes begin,
                         std::span<std::byte> target) {
  std::shared_ptr<Source> const from = source(run.rank);
  StoredSubgroup const& stored = from->manifest.subgroups[run.subgroup];
  auto const file = file_of(from, run.subgroup);
  Bytes const end = begin + std::ssize(target);
  if (!engine_) {
    blocks_ = memory::HugeBuffer{buffer_bytes};
    engine_ = std::make_unique<aio::Engine>(aio::EngineSettings{}, kernel_);
  }
  for (Bytes at = begin / block_bytes * block_bytes; at < end; at += buffer_bytes) {
    Bytes const until =
        std::min({at + buffer_bytes, round_up(end, block_bytes), layout().bytes(stored.elements)});
    auto const blocks = blocks_.bytes().first(static_cast<std::size_t>(until - at));
    engine_->read(*file, blocks, stored.offset + at);
    verify(from, *file, run.subgroup, plane, at, blocks);
    Bytes const first = std::max(begin, at);
    std::ranges::copy(blocks.subspan(static_cast<std::size_t>(first - at),
                                     static_cast<std::size_t>(std::min(end, until) - first)),
                      target.data() + (first - begin));
  }
}

void Reader::ask_values(Begun& begun, Run const& run, std::size_t plane,
                        std::span<std::byte> target) {
  StoredSubgroup const& stored = source(run.rank)->manifest.subgroups[run.subgroup];
  Bytes const begin =
      layout().plane_offset(plane, stored.elements) + layout().plane_bytes(plane, run.source);
  Bytes const end = begin + std::ssize(target);
  if (begin % block_bytes == 0 &&
      (end % block_bytes == 0 || end == layout().bytes(stored.elements)) && is_aligned(target)) {
    ask_blocks(begun, run, plane, begin, target);
  } else {
    read_inside(run, plane, begin, target);
  }
}

void Reader::ask_run(Begun& begun, Run const& run) {
  for (std::size_t plane = 0; plane < begun.planes; ++plane) {
    Bytes const target =
        layout().plane_offset(plane, begun.elements) + layout().plane_bytes(plane, run.target);
    ask_values(
        begun, run, plane,
        begun.state.subspan(static_cast<std::size_t>(target),
                            static_cast<std::size_t>(layout().plane_bytes(plane, run.elements))));
  }
}

void Reader::ask(Begun& begun) {
  begun.dropped = false;
  if (is_relaid()) {
    // The padding may have other bytes, of another extent or none.
    std::ranges::fill(begun.state, std::byte{});
  }
  for (Run const& run : runs_of(begun.pieces, begun.planes)) {
    ask_run(begun, run);
  }
}

void Reader::drop() noexcept {
  if (ahead_) {
    ahead_->drop();
  }
  parts_.clear();
  for (Begun& begun : begun_) {
    begun.parts = begun.parameter_parts = 0;
    begun.dropped = true;
  }
}

void Reader::abandon() noexcept {
  drop();
  begun_.clear();
}

void Reader::await_parameters() {
  verify_until_none(&Begun::parameter_parts);
}

void Reader::finish() {
  verify_until_none(&Begun::parts);
  begun_.pop_front();
}

void Reader::verify_until_none(std::int64_t Begun::*parts) {
  require(!begun_.empty(), "checkpoint: nothing was begun");
  Waiting const busy{"reading a checkpoint"};
  Begun& begun = begun_.front();
  try {
    telling_damage([&] {
      if (begun.dropped) {
        ask(begun);
      }
      while (begun.*parts > 0) {
        verify_next();
      }
    });
  } catch (...) {
    drop();
    forget_sources();  // the next try opens them anew
    throw;
  }
}

void Reader::expect(std::span<state::Piece const> pieces, std::span<std::byte> state,
                    std::int64_t elements, std::size_t planes) {
  begun_.push_back(
      {.pieces = pieces, .state = state, .elements = elements, .planes = planes, .dropped = true});
}

void Reader::expect_all(std::span<state::Piece const> pieces, std::span<std::byte> state) {
  std::int64_t elements = 0;
  for (state::Piece const& piece : pieces) {
    elements += piece.chunks.count * chunk_elements;
  }
  require(std::ssize(state) == layout().bytes(elements),
          "checkpoint: what is read has an extent's room");
  expect(pieces, state, elements, layout().size());
}

void Reader::begin(std::span<state::Piece const> pieces, std::span<std::byte> state) {
  Waiting const busy{"reading a checkpoint"};
  bool const goes_well =
      std::ranges::none_of(begun_, [](Begun const& begun) { return begun.dropped; });
  expect_all(pieces, state);
  if (!goes_well) {
    return;  // finish() will ask for them in order
  }
  try {
    ask(begun_.back());
  } catch (Error const&) {
    drop();
    forget_sources();
  } catch (...) {
    drop();
    throw;
  }
}

void Reader::begun_all() noexcept {
  if (ahead_) {
    ahead_->end();
  }
}

void Reader::read(std::span<state::Piece const> pieces, std::span<std::byte> state) {
  abandon();
  expect_all(pieces, state);
  finish();
}

void Reader::read_parameters(std::span<state::Piece const> pieces, std::span<float> parameters) {
  abandon();
  expect(pieces, std::as_writable_bytes(parameters), std::ssize(parameters), 1);
  finish();
}

}  // namespace offstage::checkpoint
