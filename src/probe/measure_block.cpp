#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/dtype.hpp"
#include "base/stopwatch.hpp"
#include "model/block.hpp"
#include "model/dims.hpp"
#include "model/transformer.hpp"
#include "probe/measure.hpp"
#include "probe/median.hpp"
#include "probe/resident_layers.hpp"
#include "state/model_shape.hpp"

namespace offstage::probe {
namespace {

/// Few enough that little memory is needed, and next to them embedding and head take no time.
constexpr int blocks = 2;
constexpr std::int64_t vocabulary = 64;
/// Widths of a model of some billions of parameters; narrower on cores, which reach their rate
/// sooner.
constexpr std::int64_t gpu_hidden = 4096, gpu_sequence = 2048;
constexpr std::int64_t host_hidden = 512, host_sequence = 256;
constexpr std::int64_t head_size = 64;
/// Times its elements a block's parameters, gradients, activations and scratch memory take less.
constexpr double copies = 4.0;
/// Until this fits, the block is made narrower.
constexpr std::int64_t least_hidden = head_size;

state::ModelShape shape_of(std::int64_t hidden, std::int64_t sequence) {
  return {.layers = blocks,
          .hidden = hidden,
          .heads = hidden / head_size,
          .kv_heads = hidden / head_size,
          .ffn_hidden = 8 * hidden / 3 / head_size * head_size,
          .vocab = vocabulary,
          .max_sequence = sequence};
}

data::TokenBatch some_tokens(std::int64_t sequence) {
  data::TokenBatch batch{.batch = 1, .sequence = sequence, .tokens = {}, .targets = {}};
  for (std::int64_t i = 0; i < sequence; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(i * 7 % vocabulary));
    batch.targets.push_back(static_cast<std::int32_t>((i + 1) * 7 % vocabulary));
  }
  return batch;
}

template <class T>
BlockRates rates_of(device::Device& device, Effort const& effort) {
  bool const on_gpu = device.kind() == device::Kind::cuda;
  std::int64_t hidden = on_gpu ? gpu_hidden : host_hidden;
  std::int64_t sequence = on_gpu ? gpu_sequence : host_sequence;
  auto const room = static_cast<double>(device.capacity() - device.used()) / 2.0;
  auto const bytes = [&] {
    auto const width = static_cast<double>(hidden);
    auto const rows = static_cast<double>(sequence);
    return copies * blocks * sizeof(T) * (12.0 * width * width + 20.0 * rows * width);
  };
  while (bytes() > room && hidden > least_hidden) {
    hidden /= 2;
    sequence /= 2;
  }
  auto const shape = shape_of(hidden, sequence);
  model::RunShape const run{.batch = 1, .sequence = sequence};
  auto const passes_of = model::block_passes(model::dims_of(shape, run, device.kind()));
  auto const stream = device.make_calling_stream("probe-block");
  ResidentLayers<T> parameters{shape, device, *stream};
  NoGradients<T> sink;
  model::Transformer<T> model{shape, run, device, *stream};
  auto const batch = some_tokens(sequence);
  Seconds forward{};
  Seconds backward{};
  auto const timed = [&](int passes) {
    forward = backward = Seconds{};
    Stopwatch watch;
    for (int i = 0; i < passes; ++i) {
      static_cast<void>(model.forward(batch, parameters));
      forward += watch.lap();
      model.backward(parameters, sink);
      backward += watch.lap();
    }
    return forward + backward;
  };
  constexpr Seconds shortest{1e-7};
  static_cast<void>(timed(1));  // on a GPU it loads code
  Seconds const once = std::max(shortest, timed(1));
  int const passes = std::max(1, static_cast<int>(std::ceil(effort.least / once)));
  std::vector<double> forward_rates;
  std::vector<double> backward_rates;
  do {
    static_cast<void>(timed(passes));
    forward_rates.push_back(blocks * passes_of.forward() * passes / forward.count());
    backward_rates.push_back(blocks * passes_of.backward() * passes / backward.count());
  } while (static_cast<int>(forward_rates.size()) < effort.rounds);
  return {median(std::move(forward_rates)), median(std::move(backward_rates))};
}

}  // namespace

BlockRates measure_block(device::Device& device, DType dtype, Effort const& effort) {
  return with_type(dtype, [&]<class T>(T) { return rates_of<T>(device, effort); });
}

}  // namespace offstage::probe
