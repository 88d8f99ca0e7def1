// The optimizer kernels against the roof of the memory: the same threads scaling the same memory in
// place. That is the roof, and a triad is not, because an optimizer too writes over what it has
// read.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/simd.hpp"
#include "base/stopwatch.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/memory/huge_buffer.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage {
namespace {

constexpr std::int64_t parameters =
    100'007'936;  // 1.6 GB with AdamW: far beyond any cache; whole chunks
constexpr auto count = static_cast<std::size_t>(parameters);
constexpr int rounds = 15;

struct Case {
  std::string name;
  kernels::Optimizer optimizer;
  double momentum = 0.0;
  kernels::Moments moments = kernels::Moments::fp32;
  bool split = false;

  [[nodiscard]] StateLayout layout() const {
    return kernels::state_layout(optimizer, moments, momentum > 0.0, split);
  }
  /// State, gradient and working copy, per parameter.
  [[nodiscard]] Bytes memory() const {
    return layout().bytes(parameters) + 2 * parameters * static_cast<Bytes>(sizeof(bfloat16));
  }
  /// The state goes in and out, as does the working copy beside a split parameter; the gradient
  /// goes in, the copy out.
  [[nodiscard]] double traffic() const {
    return static_cast<double>(2 * layout().bytes(parameters) + (split ? 6 : 4) * parameters);
  }
};

std::vector<Case> all_cases() {
  using enum kernels::Optimizer;
  using enum kernels::Moments;
  return {{.name = "adamw", .optimizer = adamw},
          {.name = "adam", .optimizer = adam},
          {.name = "adagrad", .optimizer = adagrad},
          {.name = "rmsprop", .optimizer = rmsprop},
          {.name = "rmsprop_momentum", .optimizer = rmsprop, .momentum = 0.9},
          {.name = "sgd", .optimizer = sgd},
          {.name = "sgd_momentum", .optimizer = sgd, .momentum = 0.9},
          {.name = "lion", .optimizer = lion},
          {.name = "adamw_split", .optimizer = adamw, .split = true},
          {.name = "adamw_bf16", .optimizer = adamw, .moments = bf16},
          {.name = "adamw_8bit", .optimizer = adamw, .moments = int8},
          {.name = "adamw_8bit_split", .optimizer = adamw, .moments = int8, .split = true},
          {.name = "lion_8bit", .optimizer = lion, .moments = int8}};
}

/// One after another: the state's planes, gradient, working copy. All of it for the roof.
class Memory {
 public:
  Memory(memory::HugeBuffer const& buffer, Case const& of)
      : bytes_{buffer.as<std::byte>().first(static_cast<std::size_t>(of.memory()))},
        state_bytes_{static_cast<std::size_t>(of.layout().bytes(parameters))} {
    StateLayout const layout = of.layout();
    std::ranges::fill(bytes_, std::byte{0});
    auto const values = gradient();
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = to_bf16(static_cast<float>(i % 1021) / 1021.0F - 0.5F);
    }
    part_ = {.planes = {},
             .gradient = std::span<bfloat16 const>{values},
             .working_copy = values_behind(1),
             .elements = parameters,
             .decayed = parameters};
    for (std::size_t plane = 0; plane < layout.planes().size(); ++plane) {
      part_.planes[plane] = bytes_.data() + layout.plane_offset(plane, parameters);
    }
  }

  [[nodiscard]] kernels::OptimizerPart const& part() const { return part_; }
  [[nodiscard]] std::span<std::uint32_t> all() const {
    return {reinterpret_cast<std::uint32_t*>(bytes_.data()), bytes_.size() / sizeof(std::uint32_t)};
  }

 private:
  [[nodiscard]] std::span<bfloat16> values_behind(std::size_t arrays) const {
    return {reinterpret_cast<bfloat16*>(bytes_.data() + state_bytes_) + arrays * count, count};
  }
  [[nodiscard]] std::span<bfloat16> gradient() const { return values_behind(0); }

  std::span<std::byte> bytes_;
  std::size_t state_bytes_;
  kernels::OptimizerPart part_;
};

[[gnu::target_clones("avx512f", "avx2", "default")]] void scale(std::uint32_t* x,
                                                                std::int64_t elements,
                                                                std::uint32_t factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < elements; ++i) {
    x[i] *= factor;
  }
}

/// On every thread's contiguous share.
void scale_all(std::span<std::uint32_t> x, std::uint32_t factor) {
  constexpr std::int64_t piece = 64 * 1024;
  auto const total = std::ssize(x);
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < total; begin += piece) {
    scale(x.data() + begin, std::min(piece, total - begin), factor);
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Returns the median of the ratios of the rates: they take turns, so that a disturbance hits both.
double measure(Case const& of, memory::HugeBuffer const& buffer) {
  Memory const memory{buffer, of};
  StateLayout const layout = of.layout();
  kernels::OptimizerStep step{.optimizer = of.optimizer,
                              .learning_rate = 1e-4,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .momentum = of.momentum,
                              .epsilon = 1e-8,
                              .weight_decay = 0.1,
                              .gradient_scale = 0.25,
                              .step = 0,
                              .seed = 1};
  // A factor that keeps the numbers, without the compiler knowing that it is 1. Integers, as a code
  // read as a float may be NaN or subnormal.
  std::uint32_t const volatile hidden_one = 1;
  std::uint32_t const one = hidden_one;
  std::vector<double> rates, roofs, ratios;
  for (int round = 0; round <= rounds; ++round) {
    Stopwatch stopwatch;
    ++step.step;
    kernels::host::optimize(layout, memory.part(), step);
    double const rate = of.traffic() / stopwatch.lap().count() / 1e9;
    scale_all(memory.all(), one);
    double const roof =
        2.0 * static_cast<double>(memory.all().size_bytes()) / stopwatch.lap().count() / 1e9;
    if (round > 0) {  // the first one warms up
      rates.push_back(rate);
      roofs.push_back(roof);
      ratios.push_back(rate / roof);
    }
  }
  double const per_parameter = of.traffic() / static_cast<double>(parameters);
  fmt::print("{:18} {:5.2f} B {:6.1f} GB/s  {:5.2f} G params/s   scale {:6.1f} GB/s\n", of.name,
             per_parameter, median(rates), median(rates) / per_parameter, median(roofs));
  return median(ratios);
}

void run(std::vector<std::string> const& names) {
  std::vector<Case> cases = all_cases();
  if (!names.empty()) {
    std::erase_if(cases,
                  [&](Case const& of) { return std::ranges::find(names, of.name) == names.end(); });
  }
  Bytes most = 0;
  for (Case const& of : cases) {
    most = std::max(most, of.memory());
  }
  memory::HugeBuffer const buffer{most};
  int threads = 1;
#ifdef _OPENMP
  threads = omp_get_max_threads();
#endif
  fmt::print("{} parameters, {} threads, {}, medians of {} rounds\n", parameters, threads,
             name_of(best_simd()), rounds);
  std::string results;
  for (Case const& of : cases) {
    results +=
        fmt::format("RESULT optimizer_{}_vs_inplace_scale {:.3f}\n", of.name, measure(of, buffer));
  }
  fmt::print("{}", results);
}

}  // namespace
}  // namespace offstage

/// perf_optimizer [NAME...]: these alone.
int main(int argc, char** argv) {
  offstage::run({argv + 1, argv + argc});
}
