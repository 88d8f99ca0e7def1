// The pointwise and row kernels of a model in bf16, each against a copy within the device: bytes
// that it must move per second. perf_pointwise cuda; perf_pointwise host tries the program on the
// emulated device, with few rows. One JSON object per line.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "kernels/linear/bias.hpp"
#include "kernels/norms/layernorm.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "kernels/pointwise/gelu.hpp"
#include "kernels/pointwise/rope.hpp"
#include "kernels/pointwise/swiglu.hpp"
#include "kernels/tokens/cross_entropy.hpp"
#include "kernels/tokens/embedding.hpp"

namespace offstage {
namespace {

using Element = bfloat16;

constexpr std::int64_t width = 2048, vocab = 32000, heads = 12, kv_heads = 2, head_dim = 128;
static_assert((heads + 2 * kv_heads) * head_dim == width);
constexpr int sets = 3;  // of every array, in turn: together more than a cache holds
constexpr int launches = 12, rounds = 9;

/// `sets` times `count` elements of device memory, filled with numbers in [-1, 1).
template <class T>
class Array {
 public:
  Array(device::Device& device, device::Stream& stream, std::int64_t count)
      : count_{static_cast<std::size_t>(count)},
        memory_{device.allocate(sets * count * static_cast<Bytes>(sizeof(T)), "the benchmark")} {
    std::mt19937 engine{1};
    std::uniform_real_distribution<float> uniform{-1.0F, 1.0F};
    std::vector<T> values(count_);
    std::ranges::generate(values, [&] { return store<T>(uniform(engine)); });
    fill(stream, values);
  }
  Array(device::Device& device, device::Stream& stream, std::vector<T> const& values)
      : count_{values.size()},
        memory_{device.allocate(static_cast<Bytes>(sets * values.size() * sizeof(T)),
                                "the benchmark")} {
    fill(stream, values);
  }
  [[nodiscard]] std::span<T> operator[](int set) const {
    return memory_.as<T>().subspan(static_cast<std::size_t>(set) * count_, count_);
  }

 private:
  void fill(device::Stream& stream, std::vector<T> const& values) {
    for (int set = 0; set < sets; ++set) {
      stream.copy((*this)[set].data(), values.data(), static_cast<Bytes>((*this)[set].size_bytes()),
                  device::Copy::host_to_device);
    }
    stream.synchronize();
  }
  std::size_t count_;
  device::Buffer memory_;
};

/// Tokens as text has them: a few often, most hardly ever.
std::vector<std::int32_t> tokens_of_text(std::int64_t rows) {
  std::mt19937 engine{2};
  std::uniform_real_distribution<double> uniform{0.0, 1.0};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
  std::ranges::generate(tokens, [&] {
    double const u = uniform(engine);
    return static_cast<std::int32_t>(u * u * u * static_cast<double>(vocab - 1));
  });
  return tokens;
}

class Bench {
 public:
  Bench(device::Device& device, device::Stream& stream, std::int64_t rows)
      : device_{device}, stream_{stream}, rows_{rows} {}

  void run() {
    measure_copy();
    norms();
    norms_of_queries();
    activations();
    rope();
    bias();
    tokens();
  }

 private:
  using Launch = std::function<void(int set)>;

  /// Seconds of one launch, the median of the rounds.
  double seconds(Launch const& launch) {
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {  // the first warms up
      auto const begin = stream_.record();
      for (int i = 0; i < launches; ++i) {
        launch(i % sets);
      }
      auto const end = stream_.record();
      double const time = Seconds{end->when() - begin->when()}.count() / launches;
      if (round > 0) {
        times.push_back(time);
      }
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  void measure_copy() {
    std::int64_t const count = 4 * rows_ * width;
    Array<Element> const from{device_, stream_, count}, to{device_, stream_, count};
    auto const bytes = static_cast<double>(from[0].size_bytes());
    copy_rate_ = 2 * bytes / seconds([&](int set) {
                   stream_.copy(to[set].data(), from[set].data(), static_cast<Bytes>(bytes),
                                device::Copy::device_to_device);
                 });
    fmt::print(R"({{"device": "{}", "copy_bytes_per_second": {:.4e}}})"
               "\n",
               device_.name(), copy_rate_);
  }

  /// `bytes`: what a launch must read and write.
  void report(std::string const& kernel, double bytes, Launch const& launch) {
    double const time = seconds(launch);
    fmt::print(
        R"({{"kernel": "{}", "bytes": {:.0f}, "seconds": {:.4e}, "bytes_per_second": {:.4e}, "share_of_copy": {:.3f}}})"
        "\n",
        kernel, bytes, time, bytes / time, bytes / time / copy_rate_);
    std::fflush(stdout);
  }
  [[nodiscard]] double arrays(double count) const {
    return count * static_cast<double>(rows_ * width) * sizeof(Element);
  }
  [[nodiscard]] Array<Element> matrix(std::int64_t columns = width) const {
    return {device_, stream_, rows_ * columns};
  }

  void norms() {
    auto const x = matrix(), delta = matrix(), sum = matrix(), y = matrix();
    Array<Element> const weight{device_, stream_, width}, bias{device_, stream_, width};
    Array<Element> const d_weight{device_, stream_, width}, d_bias{device_, stream_, width};
    Array<float> const mean{device_, stream_, rows_}, inverse{device_, stream_, rows_};
    report("rmsnorm forward with residual", arrays(4), [&](int set) {
      kernels::rmsnorm_forward<Element>(stream_, {x[set], delta[set], sum[set], weight[set], y[set],
                                                  inverse[set], rows_, width, 1e-5});
    });
    report("rmsnorm backward", arrays(4), [&](int set) {
      kernels::rmsnorm_backward<Element>(stream_, {x[set], weight[set], y[set], inverse[set],
                                                   sum[set], d_weight[set], rows_, width});
    });
    report("layernorm forward with residual", arrays(4), [&](int set) {
      kernels::layernorm_forward<Element>(
          stream_, {x[set], delta[set], sum[set], weight[set], bias[set], y[set], mean[set],
                    inverse[set], rows_, width, 1e-5});
    });
    report("layernorm backward", arrays(4), [&](int set) {
      kernels::layernorm_backward<Element>(
          stream_, {x[set], weight[set], y[set], mean[set], inverse[set], sum[set], d_weight[set],
                    d_bias[set], rows_, width});
    });
  }

  /// Norms of heads that lie in packed rows, as those of queries do.
  void norms_of_queries() {
    auto const x = matrix(), y = matrix();
    auto const queries = rows_ * heads;
    auto const bytes = [&](double count) {
      return count * static_cast<double>(queries * head_dim) * sizeof(Element);
    };
    kernels::RowPlaces const places{heads, width};
    auto const of = [&](auto all) {
      return all.first(static_cast<std::size_t>(places.extent(queries, head_dim)));
    };
    Array<Element> const weight{device_, stream_, head_dim}, d_weight{device_, stream_, head_dim};
    Array<float> const inverse{device_, stream_, queries};
    report("rmsnorm of queries forward", bytes(2), [&](int set) {
      kernels::rmsnorm_forward<Element>(stream_, {.x = of(x[set]),
                                                  .delta = {},
                                                  .sum = {},
                                                  .weight = weight[set],
                                                  .y = of(y[set]),
                                                  .inverse_rms = inverse[set],
                                                  .rows = queries,
                                                  .width = head_dim,
                                                  .epsilon = 1e-5,
                                                  .places = places});
    });
    report("rmsnorm of queries backward", bytes(3), [&](int set) {
      kernels::rmsnorm_backward<Element>(stream_, {.x = of(x[set]),
                                                   .weight = weight[set],
                                                   .dy = of(y[set]),
                                                   .inverse_rms = inverse[set],
                                                   .dx = of(y[set]),
                                                   .d_weight = d_weight[set],
                                                   .rows = queries,
                                                   .width = head_dim,
                                                   .add = false,
                                                   .places = places});
    });
  }

  void activations() {
    auto const gate_up = matrix(2 * width), d_gate_up = matrix(2 * width), x = matrix();
    auto const y = matrix(), dx = matrix();
    report("swiglu forward", arrays(3), [&](int set) {
      kernels::swiglu_forward<Element>(stream_, {gate_up[set], y[set], rows_, width});
    });
    report("swiglu backward", arrays(5), [&](int set) {
      kernels::swiglu_backward<Element>(stream_,
                                        {gate_up[set], y[set], d_gate_up[set], rows_, width});
    });
    report("gelu forward", arrays(2), [&](int set) {
      kernels::gelu_forward<Element>(stream_, {x[set], y[set], rows_, width});
    });
    report("gelu backward", arrays(3), [&](int set) {
      kernels::gelu_backward<Element>(stream_, {x[set], y[set], dx[set], rows_, width});
    });
  }

  void rope() {
    std::int64_t const sequence = std::min<std::int64_t>(rows_, 2048);
    std::vector<double> cosine(static_cast<std::size_t>(sequence * head_dim / 2));
    auto sine = cosine;
    kernels::rope_tables(sequence, head_dim, 10'000.0, cosine, sine);
    Array<float> const cosines{device_, stream_, std::vector<float>(cosine.begin(), cosine.end())};
    Array<float> const sines{device_, stream_, std::vector<float>(sine.begin(), sine.end())};
    auto const qkv = matrix();
    double const turned = static_cast<double>(heads + kv_heads) / (heads + 2 * kv_heads);
    report("rope", arrays(2 * turned), [&](int set) {
      kernels::rope<Element>(stream_, {qkv[set], cosines[set], sines[set], rows_, sequence, heads,
                                       kv_heads, head_dim});
    });
  }

  void bias() {
    auto const y = matrix();
    Array<Element> const bias{device_, stream_, width}, d_bias{device_, stream_, width};
    report("bias forward", arrays(2), [&](int set) {
      kernels::bias_forward<Element>(stream_, {y[set], bias[set], rows_, width});
    });
    report("bias backward", arrays(1), [&](int set) {
      kernels::bias_backward<Element>(stream_, {y[set], d_bias[set], rows_, width});
    });
  }

  void tokens() {
    std::int64_t const some = rows_ / 4;
    auto const ids = tokens_of_text(rows_);
    Array<std::int32_t> const all_tokens{device_, stream_, ids};
    {
      Array<float> const logits{device_, stream_, some * vocab};
      Array<Element> const d_logits{device_, stream_, some * vocab};
      Array<double> const loss{device_, stream_, some};
      auto const targets = [&](int set) {
        return all_tokens[set].first(static_cast<std::size_t>(some));
      };
      report("cross-entropy", 6.0 * static_cast<double>(some * vocab), [&](int set) {
        kernels::cross_entropy<Element>(
            stream_, {logits[set], targets(set), loss[set], d_logits[set], some, vocab, 1e-3});
      });
    }
    Array<Element> const table{device_, stream_, vocab * width};
    auto const x = matrix();
    report("embedding forward", arrays(2), [&](int set) {
      kernels::embedding_forward<Element>(
          stream_, {all_tokens[set], table[set], x[set], rows_, vocab, width});
    });
    auto distinct = ids;
    std::ranges::sort(distinct);
    auto const used =
        std::distance(distinct.begin(), std::unique(distinct.begin(), distinct.end()));
    double const table_bytes = 2.0 * static_cast<double>(used * width) * sizeof(Element);
    report("embedding backward", arrays(1) + table_bytes, [&](int set) {
      kernels::embedding_backward<Element>(
          stream_, {all_tokens[set], x[set], table[set], rows_, vocab, width});
    });
  }

  device::Device& device_;
  device::Stream& stream_;
  std::int64_t rows_;
  double copy_rate_ = 0;
};

}  // namespace
}  // namespace offstage

int main(int count, char** arguments) {
  std::string const kind = count == 2 ? arguments[1] : "";
  if (kind != "cuda" && kind != "host") {
    fmt::print(stderr, "perf_pointwise cuda|host\n");
    return 64;
  }
  try {
    auto const device = kind == "cuda" ? offstage::device::make_cuda_device(0, 0)
                                       : offstage::device::make_host_device(0);
    auto const stream = device->make_calling_stream("pointwise");
    offstage::Bench{*device, *stream, kind == "cuda" ? 8192 : 64}.run();
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_pointwise: {}\n", error.what());
    return 1;
  }
}
