// The AdamW kernel against the roof of the memory: the same threads scaling the same memory in
// place. That is the roof, and a triad is not, because AdamW too writes over what it has read.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/simd.hpp"
#include "base/stopwatch.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "platform/memory/huge_buffer.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage {
namespace {

constexpr std::size_t parameters = 100'000'000;  // 1.6 GB: far beyond any cache
constexpr int rounds = 21;

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
  /// All of it, for the roof.
  [[nodiscard]] std::span<float> all() const { return buffer_.as<float>(); }

 private:
  [[nodiscard]] std::span<bfloat16> gradient() const {
    return buffer_.as<bfloat16>().subspan(6 * parameters, parameters);
  }
  memory::HugeBuffer buffer_{parameters * (3 * sizeof(float) + 2 * sizeof(bfloat16))};
};

[[gnu::target_clones("avx512f", "avx2", "default")]] void scale(float* x, std::int64_t count,
                                                                float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] *= factor;
  }
}

[[gnu::target_clones("avx512f", "avx2", "default")]] void triad(float* a, float const* b,
                                                                float const* c, std::int64_t count,
                                                                float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    a[i] = b[i] + factor * c[i];
  }
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

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// GB/s.
double rate(double bytes, Seconds time) {
  return bytes / time.count() / 1e9;
}

void run() {
  Memory const memory;
  auto const state = memory.state();
  auto const all = memory.all();
  kernels::AdamwStep step{.learning_rate = 1e-4,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .gradient_scale = 0.25,
                          .step = 0};
  // A factor that keeps the numbers, without the compiler knowing that it is 1.
  float const volatile hidden_one = 1.0F;
  float const one = hidden_one;
  std::vector<double> adamw, roof, triads, ratios;
  // They take turns, so that a disturbance hits all; the first round warms up.
  for (int round = 0; round <= rounds; ++round) {
    Stopwatch stopwatch;
    ++step.step;
    kernels::host::adamw(state, step);
    double const adamw_rate = rate(28.0 * parameters, stopwatch.lap());
    share(all.size(), [&](auto begin, auto count) { scale(all.data() + begin, count, one); });
    double const roof_rate = rate(2.0 * static_cast<double>(all.size_bytes()), stopwatch.lap());
    share(parameters, [&](auto begin, auto count) {
      triad(state.momentum.data() + begin, state.parameter.data() + begin,
            state.variance.data() + begin, count, one);
    });
    double const triad_rate = rate(12.0 * parameters, stopwatch.lap());
    if (round == 0) {
      continue;
    }
    adamw.push_back(adamw_rate);
    roof.push_back(roof_rate);
    triads.push_back(triad_rate);
    ratios.push_back(adamw_rate / roof_rate);
  }
  int threads = 1;
#ifdef _OPENMP
  threads = omp_get_max_threads();
#endif
  fmt::print("{} parameters, {} threads, {}, medians of {} rounds\n", parameters, threads,
             name_of(best_simd()), rounds);
  fmt::print("AdamW, 28 B per parameter     {:6.1f} GB/s  {:.3f} G params/s\n", median(adamw),
             median(adamw) / 28.0);
  fmt::print("in-place scale                {:6.1f} GB/s\n", median(roof));
  fmt::print("triad, 12 B per element       {:6.1f} GB/s\n", median(triads));
  fmt::print("RESULT adamw_vs_inplace_scale {:.3f}\n", median(ratios));
}

}  // namespace
}  // namespace offstage

int main() {
  offstage::run();
}
