// Forward and backward of a whole model on one device, without an update: perf_model KEY=VALUE...,
// one line of JSON with the seconds of each step, the loss, and the rate of a large matrix product
// on the same device.
//   device=cuda|host family=llama|gpt2 layers= hidden= heads= kv-heads= ffn-hidden= vocab=
//   sequence= batch= dtype=bf16|fp16|fp32 recompute=none|block attention=auto|own steps= warm-up=
//   product=
// perf/gpu.sh runs it beside PyTorch. The parameters lie on the device for good; gradients go
// nowhere.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cudnn_attention.hpp"
#include "data/batch.hpp"
#include "device/device.hpp"
#include "kernels/linear/matmul.hpp"
#include "model/transformer.hpp"
#include "probe/resident_layers.hpp"
#include "state/model_shape.hpp"

namespace offstage {
namespace {

using Arguments = std::map<std::string, std::string>;

std::string text(Arguments const& given, std::string const& key, std::string const& usual) {
  auto const found = given.find(key);
  return found == given.end() ? usual : found->second;
}

std::int64_t number(Arguments const& given, std::string const& key, std::int64_t usual) {
  std::string const value = text(given, key, std::to_string(usual));
  std::int64_t result{};
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size()) {
    throw std::invalid_argument{fmt::format("{}={}: a whole number is wanted", key, value)};
  }
  return result;
}

template <class T>
device::Buffer upload(device::Device& device, device::Stream& stream, std::vector<T> const& values,
                      std::string const& purpose) {
  auto const bytes = static_cast<Bytes>(values.size() * sizeof(T));
  auto buffer = device.allocate(bytes, purpose);
  stream.copy(buffer.as<T>().data(), values.data(), bytes, device::Copy::host_to_device);
  stream.synchronize();
  return buffer;
}

data::TokenBatch random_batch(std::int64_t batch, std::int64_t sequence, std::int64_t vocab) {
  data::TokenBatch result;
  result.batch = batch;
  result.sequence = sequence;
  auto const draw = [&](std::uint64_t key) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * sequence));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(philox(1, key, i / 4)[i % 4] %
                                         static_cast<std::uint32_t>(vocab));
    }
    return ids;
  };
  result.tokens = draw(1);
  result.targets = draw(2);
  return result;
}

/// Floating-point operations per second of products of square matrices with random numbers.
template <class T>
double product_rate(device::Device& device, device::Stream& stream, std::int64_t size) {
  std::vector<T> values(static_cast<std::size_t>(size * size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = store<T>(static_cast<float>(philox(1, 3, i / 4)[i % 4] >> 8) * 0x1p-23F - 1);
  }
  device::Buffer const a = upload(device, stream, values, "a matrix");
  device::Buffer const c = device.allocate(a.size(), "a product");
  constexpr int calls = 10;
  std::vector<double> seconds;
  for (int round = 0; round < 6; ++round) {
    Stopwatch const watch;
    for (int call = 0; call < calls; ++call) {
      kernels::matmul<T, T>(stream, {.a = a.as<T const>().data(),
                                     .b = a.as<T const>().data(),
                                     .c = c.as<T>().data(),
                                     .m = size,
                                     .n = size,
                                     .k = size,
                                     .transpose_b = kernels::Transpose::yes});
    }
    stream.synchronize();
    seconds.push_back(watch.elapsed().count() / calls);
  }
  std::sort(seconds.begin() + 1, seconds.end());  // the first finds the algorithm
  auto const length = static_cast<double>(size);
  return 2 * length * length * length / seconds[3];
}

template <class T>
void measure(Arguments const& given, state::ModelShape const& shape, model::RunShape run) {
  auto const device = text(given, "device", "cuda") == "cuda" ? device::make_cuda_device(0, 0)
                                                              : device::make_host_device(0);
  auto const stream = device->make_calling_stream("compute");
  std::int64_t const size = number(given, "product", 8192);  // 0: none, where kernels are counted
  double const rate = size > 0 ? product_rate<T>(*device, *stream, size) : 0.0;
  std::optional<CudnnAttention> cudnn;
  if (device->kind() == device::Kind::cuda && text(given, "attention", "auto") == "auto") {
    cudnn.emplace(cudnn::AttentionShape{dtype_of<T>(), run.batch, run.sequence, shape.heads,
                                        shape.kv_heads, shape.head_dim()});
    run.attention = cudnn->plans.get();
    run.attention_workspace = cudnn->plans ? cudnn->plans->workspace() : 0;
  }
  probe::ResidentLayers<T> parameters{shape, *device, *stream};
  probe::NoGradients<T> sink;
  model::Transformer<T> model{shape, run, *device, *stream};
  auto const batch = random_batch(run.batch, run.sequence, shape.vocab);
  std::vector<double> forward;
  std::vector<double> backward;
  double loss{};
  auto const warm_up = number(given, "warm-up", 3);
  for (std::int64_t step = -warm_up; step < number(given, "steps", 10); ++step) {
    stream->synchronize();
    Stopwatch const watch;
    loss = model.forward(batch, parameters, 1.0);
    double const half = watch.elapsed().count();
    model.backward(parameters, sink);
    stream->synchronize();
    if (step >= 0) {
      forward.push_back(half);
      backward.push_back(watch.elapsed().count() - half);
    }
  }
  fmt::print(
      "{{\"device\": \"{}\", \"parameters\": {}, \"tokens\": {}, \"product_flops\": {:.6e}, "
      "\"product_rate\": {:.4e}, \"loss\": {:.6f}, \"device_peak\": {}, \"forward_seconds\": "
      "[{:.6f}], "
      "\"backward_seconds\": [{:.6f}], \"attention\": \"{}\"}}\n",
      device->name(), parameters.count(), run.batch * run.sequence,
      model::product_flops(shape, run), rate, loss, device->peak(), fmt::join(forward, ", "),
      fmt::join(backward, ", "), cudnn ? cudnn->said : "own");
}

void run(std::span<char*> words) {
  Arguments given;
  for (std::string const word : words) {
    auto const equals = word.find('=');
    if (equals == std::string::npos) {
      throw std::invalid_argument{word + ": KEY=VALUE is wanted"};
    }
    given[word.substr(0, equals)] = word.substr(equals + 1);
  }
  bool const gpt2 = text(given, "family", "llama") == "gpt2";
  state::ModelShape shape;
  shape.family = gpt2 ? state::Family::gpt2 : state::Family::llama;
  shape.layers = number(given, "layers", 16);
  shape.hidden = number(given, "hidden", 2048);
  shape.heads = number(given, "heads", 32);
  shape.kv_heads = gpt2 ? shape.heads : number(given, "kv-heads", 8);
  shape.ffn_hidden = number(given, "ffn-hidden", gpt2 ? 4 * shape.hidden : 5632);
  shape.vocab = number(given, "vocab", 32000);
  shape.tied_head = gpt2;
  model::RunShape const run{
      .batch = number(given, "batch", 4),
      .sequence = number(given, "sequence", 2048),
      .fates = {static_cast<std::size_t>(shape.layers), text(given, "recompute", "none") == "block"
                                                            ? model::recomputed_block
                                                            : model::kept_block}};
  shape.max_sequence = run.sequence;
  state::validate(shape);
  std::string const dtype = text(given, "dtype", "bf16");
  if (dtype == "bf16") {
    measure<bfloat16>(given, shape, run);
  } else if (dtype == "fp16") {
    measure<float16>(given, shape, run);
  } else {
    measure<float>(given, shape, run);
  }
}

}  // namespace
}  // namespace offstage

int main(int count, char** words) {
  try {
    offstage::run({words + 1, words + count});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_model: {}\n", error.what());
    return 1;
  }
  return 0;
}
