// The AdamW kernel against the roof of the memory: the same threads scaling the same memory in place.
// That is the roof, and a triad is not, because AdamW too writes over what it has read.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "adamw.hpp"
#include "base/simd.hpp"
#include "base/stopwatch.hpp"
#include "platform/memory/huge_buffer.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage {
namespace {

constexpr std::size_t parameters = 100'000'000;  // 1.6 GB: far beyond any cache
constexpr int repetitions = 21;

/// One allocation with all that a step touches: p, m, v, gradient, working copy, one after another.
class Memory {
 public:
  Memory() {
    auto const s = state();
    for (std::size_t i = 0; i < parameters; ++i) {
      s.parameter[i] = static_cast<float>(i % 1021) / 1021.0F - 0.5F;
    }
    std::ranges::transform(s.parameter, gradient().begin(), to_bf16);
  }

  [[nodiscard]] kernels::AdamwState<bfloat16, bfloat16> state() const {
    auto const floats = buffer_.as<float>();
    return {.parameter = floats.subspan(0, parameters),
            .momentum = floats.subspan(parameters, parameters),
            .variance = floats.subspan(2 * parameters, parameters),
            .gradient = gradient(),
            .working_copy = buffer_.as<bfloat16>().subspan(7 * parameters, parameters)};
  }
  /// For the roof: all of it, a third of a step's traffic in 16-bit numbers included.
  [[nodiscard]] std::span<float> all() const { return buffer_.as<float>(); }

 private:
  [[nodiscard]] std::span<bfloat16> gradient() const {
    return buffer_.as<bfloat16>().subspan(6 * parameters, parameters);
  }
  memory::HugeBuffer buffer_{parameters * (3 * sizeof(float) + 2 * sizeof(bfloat16))};
};

[[gnu::target_clones("avx512f", "avx2", "default")]]
void scale(float* x, std::int64_t count, float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) { x[i] *= factor; }
}

[[gnu::target_clones("avx512f", "avx2", "default")]]
void triad(float* a, float const* b, float const* c, std::int64_t count, float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) { a[i] = b[i] + factor * c[i]; }
}

/// work(begin, count) on every thread's contiguous share of `total` elements.
template <class Work>
void share(std::size_t total, Work const& work) {
  constexpr std::int64_t piece = 64 * 1024;
  auto const count = static_cast<std::int64_t>(total);
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; begin += piece) {
    work(begin, std::min(piece, count - begin));
  }
}

/// Bytes per second, in units of 1e9; the median over the repetitions.
class Rates {
 public:
  void add(double bytes, Seconds time) { rates_.push_back(bytes / time.count() / 1e9); }
  [[nodiscard]] double median() const {
    auto sorted = rates_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  std::vector<double> rates_;
};

void run() {
  Memory const memory;
  auto const state = memory.state();
  auto const all = memory.all();
  kernels::AdamwStep step{.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,
                          .weight_decay = 0.1, .gradient_scale = 0.25, .step = 0};
  constexpr auto n = static_cast<double>(parameters);
  Rates adamw;
  Rates roof;
  Rates triads;
  // The first round warms up. They take turns, so that a disturbance hits all of them.
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    Stopwatch stopwatch;
    ++step.step;
    kernels::host::adamw(state, step);
    Seconds const adamw_time = stopwatch.lap();
    // By 1: the memory keeps its numbers. The compiler sees a variable.
    share(all.size(), [&, factor = static_cast<float>(step.beta1 / 0.9)](auto begin, auto count) {
      scale(all.data() + begin, count, factor);
    });
    Seconds const scale_time = stopwatch.lap();
    share(parameters, [&](auto begin, auto count) {
      triad(state.momentum.data() + begin, state.parameter.data() + begin,
            state.variance.data() + begin, count, 0.0F);
    });
    Seconds const triad_time = stopwatch.lap();
    if (repetition >= 0) {
      adamw.add(28.0 * n, adamw_time);
      roof.add(8.0 * static_cast<double>(all.size()), scale_time);
      triads.add(12.0 * n, triad_time);
    }
  }
  int threads = 1;
#ifdef _OPENMP
  threads = omp_get_max_threads();
#endif
  fmt::print("{} parameters, {} threads, {}, median of {} rounds\n", parameters, threads,
             name_of(best_simd()), repetitions);
  fmt::print("AdamW, 28 B per parameter  {:6.1f} GB/s  {:.3f} G params/s\n", adamw.median(),
             adamw.median() / 28.0);
  fmt::print("scale in place             {:6.1f} GB/s\n", roof.median());
  fmt::print("triad, without allocation  {:6.1f} GB/s\n", triads.median());
  fmt::print("RESULT adamw_vs_inplace_scale {:.3f}\n", adamw.median() / roof.median());
}

}  // namespace
}  // namespace offstage

int main() { offstage::run(); }
