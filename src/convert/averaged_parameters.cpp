#include "convert/averaged_parameters.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::convert {
namespace {

constexpr std::int64_t chunks_at_a_time = 256;  // 4 MiB of FP32

}  // namespace

AveragedParameters::AveragedParameters(std::vector<std::unique_ptr<state::ParameterReader>> models)
    : models_{std::move(models)},
      one_{chunks_at_a_time * chunk_elements * static_cast<Bytes>(sizeof(float))} {
  require(!models_.empty() && std::ranges::all_of(models_,
                                                  [&](auto const& model) {
                                                    return same_parameters(model->shape(), shape());
                                                  }),
          "AveragedParameters: models of one shape");
}

void AveragedParameters::read(int layer, state::ChunkRange chunks, std::span<float> out) {
  auto const count = static_cast<double>(models_.size());
  for (std::int64_t done = 0; done < chunks.count; done += chunks_at_a_time) {
    state::ChunkRange const part{chunks.first + done,
                                 std::min(chunks_at_a_time, chunks.count - done)};
    auto const elements = static_cast<std::size_t>(part.count * chunk_elements);
    auto const one = one_.as<float>().first(elements);
    sums_.assign(elements, 0.0);
    for (auto const& model : models_) {
      model->read(layer, part, one);
      std::ranges::transform(sums_, one, sums_.begin(), [](double sum, float value) {
        return sum + static_cast<double>(value);
      });
    }
    std::ranges::transform(sums_, out.begin() + done * chunk_elements,
                           [&](double sum) { return static_cast<float>(sum / count); });
  }
}

}  // namespace offstage::convert
