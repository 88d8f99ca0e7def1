#include "state/initialize.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/random.hpp"

namespace offstage::state {
namespace {

/// Writes elements [begin, end) of the layer, which lie in `tensor`, to out[0 .. end - begin).
void fill(TensorLayout const& tensor, std::uint64_t seed, std::int64_t begin, std::int64_t end,
          float* out) {
  if (tensor.initial.kind == Initial::Kind::ones) {
    std::fill(out, out + (end - begin), 1.0F);
    return;
  }
  if (tensor.initial.kind == Initial::Kind::zeros) {
    std::fill(out, out + (end - begin), 0.0F);
    return;
  }
  auto const deviation = static_cast<float>(tensor.initial.standard_deviation);
  std::span<float> const part{out, static_cast<std::size_t>(end - begin)};
  normals(seed, static_cast<std::uint64_t>(tensor.index),
          static_cast<std::uint64_t>(begin - tensor.offset), part);
  for (float& value : part) {
    value *= deviation;
  }
}

}  // namespace

void initialize(LayerLayout const& layer, std::uint64_t seed, ChunkRange chunks,
                std::span<float> out) {
  require(static_cast<std::int64_t>(out.size()) == chunks.count * chunk_elements,
          "initialize: one element per parameter of the chunks");
#pragma omp parallel for schedule(static)
  for (std::int64_t c = 0; c < chunks.count; ++c) {
    std::int64_t const chunk_begin = (chunks.first + c) * chunk_elements;
    float* const target = out.data() + c * chunk_elements;
    std::fill(target, target + chunk_elements, 0.0F);
    for (TensorLayout const& tensor : layer.tensors) {
      std::int64_t const begin = std::max(chunk_begin, tensor.offset);
      std::int64_t const end =
          std::min(chunk_begin + chunk_elements, tensor.offset + tensor.elements());
      if (begin < end) {
        fill(tensor, seed, begin, end, target + (begin - chunk_begin));
      }
    }
  }
}

}  // namespace offstage::state
