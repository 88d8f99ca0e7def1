#include "checkpoint/extent_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <span>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/users.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::string_view slot_prefix = "slot-";

// HDF5's bookkeeping of a few planes fits below this. Planes are larger, and begin at the first
// aligned byte behind it.
constexpr h5::File::Alignment extent_alignment{plane_alignment, aio::direct_alignment, 3 * KiB};

std::vector<std::byte> bytes_in(std::string const& path, Bytes offset, Bytes bytes) {
  std::string const part = read_part(path, offset, bytes);
  if (static_cast<Bytes>(part.size()) != bytes) {
    throw IoError{path + " is shorter than it was written"};
  }
  auto const found = std::as_bytes(std::span{part});
  return {found.begin(), found.end()};
}

}  // namespace

std::optional<Bytes> reserve_planes(h5::File& file, std::string const& place,
                                    StateLayout const& layout, std::int64_t elements) {
  Bytes begin = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    Plane const& plane = layout.planes()[i];
    Bytes const offset = file.reserve(place + plane.name, dataset_type(plane),
                                      {dataset_values(layout, i, elements)});
    begin = i == 0 ? offset : begin;
    if (begin % aio::direct_alignment != 0 || offset != begin + layout.plane_offset(i, elements)) {
      return std::nullopt;
    }
  }
  return begin;
}

void require_planes(h5::File const& file, std::string const& path, std::string const& place,
                    StateLayout const& layout, std::int64_t elements, Bytes offset) {
  for (std::size_t i = 0; i < layout.size(); ++i) {
    Plane const& plane = layout.planes()[i];
    if (file.offset(place + plane.name, dataset_type(plane),
                    {dataset_values(layout, i, elements)}) !=
        offset + layout.plane_offset(i, elements)) {
      throw DataError{
          fmt::format("{}: {}{} is not at the place that the manifest names; the file is damaged",
                      path, place, plane.name)};
    }
  }
}

std::vector<std::byte> extent_head(std::string const& scratch, StateLayout const& layout,
                                   std::int64_t elements) {
  remove_file(scratch);
  try {
    h5::File file = h5::File::create(scratch, extent_alignment);
    Bytes const offset = reserve_planes(file, "/", layout, elements).value_or(0);
    file.close();
    require(offset > 0 && size_of(scratch) == offset + layout.bytes(elements),
            "checkpoint: HDF5 keeps its bookkeeping before the state");
    std::vector<std::byte> head = bytes_in(scratch, 0, offset);
    remove_file(scratch);
    return head;
  } catch (IoError const&) {
    unlink(scratch.c_str());
    throw;
  }
}

bool may_link(std::string const& from, std::string const& to, std::string const& name) {
  std::string const source = fmt::format("{}/{}", from, name);
  std::string const target = fmt::format("{}/{}", to, name);
  remove_file(source);
  remove_file(target);
  bool linked = false;
  try {
    write_text(source, "");
    linked = link_file(source, target);
  } catch (IoError const&) {
    unlink(source.c_str());
    throw;
  }
  remove_file(source);
  remove_file(target);
  return linked;
}

tiers::KeptFileShape shape_of_slots(std::string const& checkpoints, int rank,
                                    StateLayout const& layout, std::int64_t elements) {
  tiers::KeptFileShape shape;
  shape.directory = checkpoints + "/" + slots_name;
  shape.prefix = fmt::format("{}{:04}", slot_prefix, rank);
  shape.slot_bytes = layout.bytes(elements);
  aio::make_directory(shape.directory);
  shape.head =
      extent_head(fmt::format("{}/{}-sample", shape.directory, shape.prefix), layout, elements);
  return shape;
}

void remove_old_slots(std::string const& checkpoints) {
  std::string const directory = checkpoints + "/" + slots_name;
  if (!size_of(directory)) {
    return;
  }
  std::int64_t removed = 0;
  for (std::string const& name : names_of(directory)) {
    if (name.starts_with(slot_prefix)) {
      std::string const path = fmt::format("{}/{}", directory, name);
      try {
        remove_file(path);
      } catch (IoError const& error) {
        throw IoError{
            fmt::format("checkpoint.dir={}: a slot of a run that was killed: {}{}; have it removed",
                        checkpoints, error.what(), foreign_words(path))};
      }
      ++removed;
    }
  }
  rmdir(directory.c_str());  // a directory with files of others stays
  if (removed > 0) {
    log::warning("{}: removed {} slots of a run that was killed", checkpoints, removed);
  }
}

}  // namespace offstage::checkpoint
