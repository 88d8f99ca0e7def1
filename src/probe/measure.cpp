#include "probe/measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/pacer.hpp"
#include "base/stopwatch.hpp"
#include "kernels/linear/matmul.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "probe/median.hpp"

namespace offstage::probe {
namespace {

/// What the update takes at a time (update.device-chunk).
constexpr std::int64_t update_chunk = std::int64_t{4} << 20U;
/// Larger products gain nothing.
constexpr std::int64_t most_product = 2048;
/// And on a GPU.
constexpr std::int64_t most_gpu_product = 8192;
/// Of one product: as many as cores do in some ten milliseconds, and a GPU in some.
constexpr double most_host_flops = 1e9;
constexpr double most_gpu_flops = 1e12;

void round_to(std::span<float const> in, std::span<bfloat16> out) {
  kernels::host::convert(in, out);
}
void round_to(std::span<float const> in, std::span<float16> out) {
  kernels::host::convert(in, out);
}
void round_to(std::span<float const> in, std::span<float> out) {
  std::ranges::copy(in, out.begin());
}

/// Rate of `work`, which is worth so many units.
template <class Work>
double rate_of(Effort const& effort, double units, Work&& work) {
  return median_rate(effort, units, [&](int passes) {
    Stopwatch const watch;
    for (int i = 0; i < passes; ++i) {
      work();
    }
    return watch.elapsed();
  });
}

/// Elements of type T whose state, gradient and working copy take `bytes`; whole chunks, at least
/// one.
template <class T>
std::int64_t elements_in(Bytes bytes) {
  constexpr auto each = static_cast<Bytes>(3 * sizeof(float) + 2 * sizeof(T));
  return std::max<std::int64_t>(1, bytes / each / chunk_elements) * chunk_elements;
}

/// p, m, v, gradient and working copy, one after another in some memory.
template <class T>
struct Layout {
  std::byte* memory;
  std::int64_t elements;

  [[nodiscard]] static Bytes bytes(std::int64_t elements) {
    return elements * static_cast<Bytes>(3 * sizeof(float) + 2 * sizeof(T));
  }
  [[nodiscard]] std::span<float> floats(std::int64_t index) const {
    auto const count = static_cast<std::size_t>(elements);
    return {reinterpret_cast<float*>(memory) + index * elements, count};
  }
  [[nodiscard]] std::span<T> numbers(std::int64_t index) const {
    auto const count = static_cast<std::size_t>(elements);
    return {
        reinterpret_cast<T*>(reinterpret_cast<float*>(memory) + 3 * elements) + index * elements,
        count};
  }
  [[nodiscard]] kernels::OptimizerPart part(std::int64_t begin, std::int64_t size) const {
    auto const from = static_cast<std::size_t>(begin);
    auto const count = static_cast<std::size_t>(size);
    auto const plane = [&](std::int64_t index) {
      return reinterpret_cast<std::byte*>(floats(index).data() + begin);
    };
    return {.planes = {plane(0), plane(1), plane(2)},
            .gradient = std::span<T const>{numbers(0).subspan(from, count)},
            .working_copy = numbers(1).subspan(from, count),
            .elements = size,
            .decayed = size};
  }
  /// Numbers of a usual size; m and v are zero before.
  void fill() const {
    auto const parameter = floats(0);
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      parameter[i] = static_cast<float>(i % 1021) / 1021.0F - 0.5F;
    }
    round_to(parameter, numbers(0));
  }
  /// update(state) on one chunk after the other, of the first so many elements.
  template <class Update>
  void in_chunks(std::int64_t count, Update&& update) const {
    for (std::int64_t begin = 0; begin < count; begin += update_chunk) {
      update(part(begin, std::min(update_chunk, count - begin)));
    }
  }
};

kernels::OptimizerStep first_step() {
  return {.learning_rate = 1e-4,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .gradient_scale = 0.25,
          .step = 1};
}

#if defined(__x86_64__)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void scale(float* x, std::int64_t count,
                                                                float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] *= factor;
  }
}

}  // namespace

Effort within(Effort effort, Bytes host_memory) {
  effort.bytes = std::min(effort.bytes, std::max(MiB, host_memory / 8 / MiB * MiB));
  return effort;
}

double measure_cpu_update(DType dtype, device::Emulation const& emulation, Effort const& effort) {
  return with_type(dtype, [&]<class T>(T) {
    std::int64_t const elements = elements_in<T>(effort.bytes);
    memory::HugeBuffer const memory{Layout<T>::bytes(elements)};
    Layout<T> const layout{memory.bytes().data(), elements};
    layout.fill();
    StateLayout const planes = adamw_layout();
    auto step = first_step();
    Pacer pacer{emulation.host_update};
    auto const update = [&](kernels::OptimizerPart const& part) {
      pacer.run(static_cast<double>(part.elements),
                [&] { kernels::host::optimize(planes, part, step); });
    };
    return median_rate(effort, static_cast<double>(elements), [&](int passes) {
      layout.in_chunks(std::min(update_chunk, elements), update);  // see Pacer: a start is cheap
      Stopwatch const watch;
      for (int i = 0; i < passes; ++i, ++step.step) {
        layout.in_chunks(elements, update);
      }
      return watch.elapsed();
    });
  });
}

double measure_device_update(device::Device& device, DType dtype, Effort const& effort) {
  return with_type(dtype, [&]<class T>(T) {
    Bytes const free = (device.capacity() - device.used()) / 2;
    std::int64_t const elements = elements_in<T>(std::min(effort.bytes, free));
    Bytes const bytes = Layout<T>::bytes(elements);
    auto const memory = device.allocate(bytes, "the measuring of updates on the device");
    auto const stream = device.make_stream("probe-update");
    {
      memory::HugeBuffer const host{bytes};
      Layout<T>{host.bytes().data(), elements}.fill();
      stream->copy(memory.template as<std::byte>().data(), host.bytes().data(), bytes,
                   device::Copy::host_to_device);
      stream->synchronize();
    }
    Layout<T> const layout{memory.template as<std::byte>().data(), elements};
    StateLayout const planes = adamw_layout();
    auto step = first_step();
    auto const update = [&](kernels::OptimizerPart const& part) {
      kernels::optimize(*stream, planes, part, step);
    };
    return median_rate(effort, static_cast<double>(elements), [&](int passes) {
      layout.in_chunks(std::min(update_chunk, elements), update);
      auto const begin = stream->record();
      for (int i = 0; i < passes; ++i, ++step.step) {
        layout.in_chunks(elements, update);
      }
      auto const end = stream->record();
      return Seconds{end->when() - begin->when()};
    });
  });
}

double measure_accumulation(DType dtype, device::Emulation const& emulation, Effort const& effort) {
  return with_type(dtype, [&]<class T>(T) {
    constexpr auto each =
        static_cast<Bytes>(2 * sizeof(float) + sizeof(T));  // a sum, there and back
    auto const count = static_cast<std::size_t>(
        std::max<Bytes>(chunk_elements, effort.bytes / each / chunk_elements * chunk_elements));
    memory::HugeBuffer const sums{static_cast<Bytes>(count * sizeof(float))};
    memory::HugeBuffer const gradients{static_cast<Bytes>(count * sizeof(T))};
    auto const bytes = static_cast<double>(count) * static_cast<double>(each);
    Pacer pacer{emulation.host_sum};
    return rate_of(effort, bytes, [&] {
      pacer.run(bytes, [&] {
        kernels::host::accumulate<float, T>(
            {sums.as<float>().first(count), gradients.as<T const>().first(count), false});
      });
    });
  });
}

double measure_host_memory(Effort const& effort) {
  memory::HugeBuffer const memory{std::max<Bytes>(KiB, effort.bytes)};
  auto const all = memory.as<float>();
  std::ranges::fill(all, 0.7F);
  // A factor that keeps the numbers, without the compiler knowing that it is 1.
  float const volatile hidden_one = 1.0F;
  float const one = hidden_one;
  auto const count = std::ssize(all);
  return rate_of(effort, 2.0 * static_cast<double>(all.size_bytes()), [&] {
    constexpr std::int64_t piece = 64 * 1024;
#pragma omp parallel for schedule(static)
    for (std::int64_t begin = 0; begin < count; begin += piece) {
      scale(all.data() + begin, std::min(piece, count - begin), one);
    }
  });
}

/// Numbers from -1 to 1 whose bits differ: a GPU multiplies equal ones at a higher clock rate than
/// a model's.
void fill_unevenly(std::span<float> values) {
  constexpr std::uint32_t golden = 2'654'435'769U;
  std::uint32_t bits = 1;
  for (float& value : values) {
    bits *= golden;
    value = static_cast<float>(bits >> 8U) * 0x1p-23F - 1.0F;
  }
}

double measure_product(device::Device& device, DType dtype, ProductShape shape,
                       Effort const& effort) {
  bool const on_gpu = device.kind() == device::Kind::cuda;
  std::int64_t const widest = on_gpu ? most_gpu_product : most_product;
  shape.in = std::min(shape.in, widest);
  shape.out = std::min(shape.out, widest);
  auto const flops = [&] {
    return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in * shape.out);
  };
  auto const elements = [&] { return shape.in * shape.out + shape.rows * (shape.in + shape.out); };
  Bytes const room = (device.capacity() - device.used()) / 2;
  while (shape.rows > 1 && (flops() > (on_gpu ? most_gpu_flops : most_host_flops) ||
                            elements() * bytes_of(dtype) > room)) {
    shape.rows /= 2;
  }
  return with_type(dtype, [&]<class T>(T) {
    auto const count = elements();
    auto const bytes = count * static_cast<Bytes>(sizeof(T));
    auto const memory = device.allocate(bytes, "the measuring of products on the device");
    auto const stream = device.make_calling_stream("probe-product");
    {
      memory::HugeBuffer const host{bytes};
      std::vector<float> values(static_cast<std::size_t>(count));
      fill_unevenly(values);
      round_to(values, host.as<T>().first(values.size()));
      stream->copy(memory.template as<T>().data(), host.bytes().data(), bytes,
                   device::Copy::host_to_device);
      stream->synchronize();
    }
    T* const x = memory.template as<T>().data();
    T* const w = x + shape.rows * shape.in;
    return median_rate(effort, flops(), [&](int passes) {
      Stopwatch const watch;
      for (int i = 0; i < passes; ++i) {
        kernels::matmul<T, T>(*stream, {.a = x,
                                        .b = w,
                                        .c = w + shape.in * shape.out,
                                        .m = shape.rows,
                                        .n = shape.out,
                                        .k = shape.in});
      }
      stream->synchronize();
      return watch.elapsed();
    });
  });
}

}  // namespace offstage::probe
