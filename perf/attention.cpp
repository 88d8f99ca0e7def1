// Causal attention on a GPU, forward and backward: perf_attention
// [BATCH,SEQUENCE,HEADS,KV-HEADS,HEAD-SIZE]... One line of JSON for each shape, type and direction,
// by the own kernels, by these with 8 documents in each sequence that are held apart
// ("own_documents") and, where it can be loaded, by cuDNN, with the median time and floating-point
// operations per second (the products of the lower triangle, or of those of the documents: 2
// forward, 5 backward).

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "cudnn_attention.hpp"
#include "device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "platform/cuda/check.hpp"

namespace offstage {
namespace {

using kernels::AttentionShape;

constexpr int warm_up = 3;
constexpr int repetitions = 21;
constexpr std::int64_t some_documents = 8;  ///< of a sequence

/// CUDA's own stopwatch, started and stopped in the order of a stream.
class EventTimer {
 public:
  explicit EventTimer(CUstream_st* stream) : stream_{stream} {
    cuda::check(cudaEventCreate(&begin_));
    cuda::check(cudaEventCreate(&end_));
  }
  ~EventTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventTimer(EventTimer const&) = delete;
  EventTimer& operator=(EventTimer const&) = delete;

  double seconds(std::function<void()> const& work) {
    cuda::check(cudaEventRecord(begin_, stream_));
    work();
    cuda::check(cudaEventRecord(end_, stream_));
    cuda::check(cudaEventSynchronize(end_));
    float milliseconds{};
    cuda::check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-3 * double{milliseconds};
  }

 private:
  CUstream_st* stream_;
  cudaEvent_t begin_{}, end_{};
};

double median_seconds(EventTimer& timer, std::function<void()> const& work) {
  std::vector<double> seconds;
  for (int i = -warm_up; i < repetitions; ++i) {
    double const here = timer.seconds(work);
    if (i >= 0) {
      seconds.push_back(here);
    }
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// Tensors of one layer on the GPU: random numbers, since arithmetic on zeros draws less power and
/// runs faster.
template <class T>
class Tensors {
 public:
  /// `cudnn`: computes it; null: the own kernels do. `documents`: of each sequence.
  Tensors(device::Device& gpu, device::Stream& stream, AttentionShape const& shape,
          cudnn::Attention* cudnn, std::int64_t documents)
      : qkv_{random(gpu, stream, rows(shape) * (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                    1)},
        d_out_{random(gpu, stream, rows(shape) * shape.heads * shape.head_dim, 2)},
        out_{gpu.allocate(d_out_.size(), "attention's output")},
        d_qkv_{gpu.allocate(qkv_.size(), "the gradient of q, k and v")},
        workspace_{gpu.allocate(
            cudnn != nullptr ? cudnn->workspace() : kernels::attention_workspace<T>(shape),
            "attention's workspace")},
        log_sum_exp_{gpu.allocate(rows(shape) * shape.heads * static_cast<Bytes>(sizeof(float)),
                                  "attention's statistics")},
        shape_{shape},
        cudnn_{cudnn} {
    if (documents > 1) {
      std::int64_t const length = (shape.sequence + documents - 1) / documents;
      std::vector<std::int32_t> begins;
      std::vector<std::int32_t> ends;
      for (std::int64_t row = 0; row < rows(shape); ++row) {
        std::int64_t const begin = row % shape.sequence / length * length;
        begins.push_back(static_cast<std::int32_t>(begin));
        ends.push_back(static_cast<std::int32_t>(std::min(begin + length, shape.sequence)));
      }
      begins_ = copied(gpu, stream, begins);
      ends_ = copied(gpu, stream, ends);
    }
  }

  kernels::AttentionForward<T> forward() const {
    return {shape_, qkv_.as<T const>(), out_.as<T>(), log_sum_exp_.as<float>(),
            cudnn_, documents()};
  }
  kernels::AttentionBackward<T> backward() const {
    return {shape_,
            qkv_.as<T const>(),
            out_.as<T const>(),
            d_out_.as<T const>(),
            log_sum_exp_.as<float const>(),
            d_qkv_.as<T>(),
            workspace_.as<std::byte>(),
            cudnn_,
            documents()};
  }

 private:
  static std::int64_t rows(AttentionShape const& shape) { return shape.batch * shape.sequence; }

  static device::Buffer random(device::Device& gpu, device::Stream& stream, std::int64_t elements,
                               std::uint64_t key) {
    std::vector<T> values(static_cast<std::size_t>(elements));
    std::array<std::uint32_t, 4> words{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % words.size() == 0) {
        words = philox(1, key, i / words.size());
      }
      values[i] = store<T>(static_cast<float>(words[i % words.size()] >> 8) * 0x1p-22F - 2);
    }
    return copied(gpu, stream, values);
  }

  template <class Element>
  static device::Buffer copied(device::Device& gpu, device::Stream& stream,
                               std::vector<Element> const& values) {
    auto const bytes = std::ssize(values) * static_cast<Bytes>(sizeof(Element));
    auto buffer = gpu.allocate(bytes, "attention's input");
    stream.copy(buffer.template as<Element>().data(), values.data(), bytes,
                device::Copy::host_to_device);
    stream.synchronize();
    return buffer;
  }

  kernels::AttentionDocuments documents() const {
    return {begins_.as<std::int32_t const>(), ends_.as<std::int32_t const>()};
  }

  device::Buffer qkv_, d_out_, out_, d_qkv_, workspace_, log_sum_exp_, begins_, ends_;
  AttentionShape shape_;
  cudnn::Attention* cudnn_;
};

void print(std::string const& name, std::string const& by, DType type, AttentionShape const& s,
           double products, double seconds) {
  double const length = static_cast<double>(s.sequence);
  double const flops =
      products * static_cast<double>(s.batch * s.heads * s.head_dim) * length * length;
  fmt::print(
      "{{\"kernel\": \"{}\", \"by\": \"{}\", \"type\": \"{}\", \"batch\": {}, \"sequence\": {}, "
      "\"heads\": {}, "
      "\"kv_heads\": {}, \"head_dim\": {}, \"seconds\": {:.4e}, \"tflops\": {:.1f}}}\n",
      name, by, name_of(type), s.batch, s.sequence, s.heads, s.kv_heads, s.head_dim, seconds,
      1e-12 * flops / seconds);
  std::fflush(stdout);  // whoever ends the program has the lines so far
}

template <class T>
void measure(device::Device& gpu, device::Stream& stream, AttentionShape const& shape,
             cudnn::Attention* cudnn, std::int64_t documents) {
  Tensors<T> const tensors{gpu, stream, shape, cudnn, documents};
  std::string const by = cudnn != nullptr ? "cudnn" : documents > 1 ? "own_documents" : "own";
  EventTimer timer{static_cast<CUstream_st*>(stream.native())};
  double const forward =
      median_seconds(timer, [&] { kernels::attention_forward(stream, tensors.forward()); });
  double const backward =
      median_seconds(timer, [&] { kernels::attention_backward(stream, tensors.backward()); });
  double const share = 1.0 / static_cast<double>(documents);
  print("attention_forward", by, dtype_of<T>(), shape, 2 * share, forward);
  print("attention_backward", by, dtype_of<T>(), shape, 5 * share, backward);
}

template <class T>
void measure(device::Device& gpu, AttentionShape const& shape) {
  auto const stream = gpu.make_calling_stream("attention");
  measure<T>(gpu, *stream, shape, nullptr, 1);
  measure<T>(gpu, *stream, shape, nullptr, some_documents);
  CudnnAttention const cudnn{
      {dtype_of<T>(), shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim}};
  fmt::print("{{\"cudnn\": \"{}\"}}\n", cudnn.said);
  if (cudnn.plans) {
    measure<T>(gpu, *stream, shape, cudnn.plans.get(), 1);
  }
}

/// Five whole numbers above 0 with commas between them.
AttentionShape parse_shape(std::string const& text) {
  std::array<std::int64_t, 5> numbers{};
  char const* place = text.data();
  char const* const end = text.data() + text.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto const [next, error] = std::from_chars(place, end, numbers[i]);
    bool const last = i + 1 == numbers.size();
    if (error != std::errc{} || numbers[i] <= 0 || (last ? next != end : *next != ',')) {
      throw std::invalid_argument{
          fmt::format("{}: BATCH,SEQUENCE,HEADS,KV-HEADS,HEAD-SIZE is wanted", text)};
    }
    place = next + 1;
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

void run(std::span<char*> arguments) {
  std::vector<AttentionShape> shapes;
  std::ranges::transform(arguments, std::back_inserter(shapes), parse_shape);
  if (shapes.empty()) {
    shapes = {{4, 2048, 32, 4, 64}, {4, 2048, 32, 4, 128}, {4, 2048, 16, 16, 64}};
  }
  auto const gpu = device::make_cuda_device(0, 0);
  fmt::print("{{\"device\": \"{}\"}}\n", gpu->name());
  for (AttentionShape const& shape : shapes) {
    measure<bfloat16>(*gpu, shape);
    measure<float16>(*gpu, shape);
  }
}

}  // namespace
}  // namespace offstage

int main(int count, char** words) {
  try {
    offstage::run({words + 1, words + count});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_attention: {}\n", error.what());
    return 1;
  }
}
