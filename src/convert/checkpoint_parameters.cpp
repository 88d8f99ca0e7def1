#include "convert/checkpoint_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/master.hpp"

namespace offstage::convert {
namespace {

constexpr std::int64_t bounced_chunks = 4 * MiB / (4 * chunk_elements);

bool is_aligned(std::span<float> out) {
  return reinterpret_cast<std::uintptr_t>(out.data()) % aio::direct_alignment == 0;
}

}  // namespace

CheckpointParameters::CheckpointParameters(std::string const& step_directory)
    : step_directory_{step_directory},
      reader_{step_directory, checkpoint::read_master(step_directory)} {}

void CheckpointParameters::read(int layer, state::ChunkRange chunks, std::span<float> out) {
  try {
    read_chunks(layer, chunks, out);
  } catch (Error const&) {
    if (checkpoint::has_master(step_directory_)) {
      throw;
    }
    throw DataError{fmt::format(
        "{} was removed while it was read, as a run keeps its last checkpoints alone: take a newer "
        "one, or have more kept (checkpoint.keep, checkpoint.keep-every)",
        step_directory_)};
  }
}

void CheckpointParameters::read_chunks(int layer, state::ChunkRange chunks, std::span<float> out) {
  require(static_cast<std::int64_t>(out.size()) == chunks.count * chunk_elements,
          "CheckpointParameters: as many numbers as chunks have");
  if (is_aligned(out)) {
    reader_.read_parameters(std::array{state::Piece{layer, chunks, 0}}, out);
    return;
  }
  if (bounce_.size() == 0) {
    bounce_ = memory::HugeBuffer{4 * chunk_elements * bounced_chunks};
  }
  for (std::int64_t done = 0; done < chunks.count; done += bounced_chunks) {
    std::int64_t const count = std::min(bounced_chunks, chunks.count - done);
    auto const part = bounce_.as<float>().first(static_cast<std::size_t>(count * chunk_elements));
    reader_.read_parameters(std::array{state::Piece{layer, {chunks.first + done, count}, 0}}, part);
    std::ranges::copy(part, out.begin() + done * chunk_elements);
  }
}

}  // namespace offstage::convert
