#include "checkpoint/extent_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <span>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/directory.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::string_view slot_prefix = "slot-";

std::vector<std::byte> bytes_in(std::string const& path, Bytes offset, Bytes bytes) {
  std::string const part = read_part(path, offset, bytes);
  if (static_cast<Bytes>(part.size()) != bytes) {
    throw IoError{path + " is shorter than it was written"};
  }
  auto const found = std::as_bytes(std::span{part});
  return {found.begin(), found.end()};
}

}  // namespace

tiers::KeptFileShape shape_of_slots(std::string const& checkpoints, int rank, Bytes slot_bytes) {
  tiers::KeptFileShape shape;
  shape.directory = checkpoints + "/" + slots_name;
  shape.prefix = fmt::format("{}{:04}", slot_prefix, rank);
  shape.slot_bytes = slot_bytes;
  make_directory(shape.directory);
  std::string const sample = fmt::format("{}/{}-sample", shape.directory, shape.prefix);
  remove_file(sample);
  try {
    h5::File file = h5::File::create(sample, {aio::direct_alignment, aio::direct_alignment});
    Bytes const offset = file.reserve(extent_dataset, h5::Type::f32, {slot_bytes / 4});
    file.close();
    require(offset > 0 && offset % aio::direct_alignment == 0, "checkpoint: HDF5 aligns the state");
    Bytes const end = offset + slot_bytes;
    shape.head = bytes_in(sample, 0, offset);
    shape.tail = bytes_in(sample, end, size_of(sample).value_or(end) - end);
  } catch (IoError const&) {
    unlink(sample.c_str());
    throw;
  }
  remove_file(sample);
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
      remove_file(fmt::format("{}/{}", directory, name));
      ++removed;
    }
  }
  rmdir(directory.c_str());  // what is not ours stays
  if (removed > 0) {
    log::warning("checkpoint.dir={}: removed {} slots of a run that was killed", checkpoints,
                 removed);
  }
}

}  // namespace offstage::checkpoint
