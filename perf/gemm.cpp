// Forward and backward of one block (hidden 2048, ffn 5632, 32 heads, T 1024, bf16) against oneDNN
// at the shapes of the block's own linear layers: both as FLOP/s, in one run. oneDNN multiplies in
// bf16, or in FP32 where the CPU has no bf16 products and FP32's are faster. Attention is timed
// alone too, beside attention that widens to FP32.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/simd.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "device/wrapped_device.hpp"
#include "kernels/attention/attention_bf16.hpp"
#include "kernels/linear/onednn.hpp"
#include "model/block.hpp"
#include "model/workspace.hpp"

namespace offstage {
namespace {

using model::Dims;

constexpr int repetitions = 9;
constexpr int warm_up = 1;

double median(std::vector<double> values) {
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Uniform in [middle - width, middle + width).
void fill(std::span<bfloat16> values, std::uint64_t stream, float middle, float width) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto const word = philox(1, stream, i / 4)[i % 4];
    values[i] = to_bf16(middle + width * (static_cast<float>(word >> 8) * 0x1p-23F - 1));
  }
}

/// Keeps how long each piece of work took.
class TimingStream final : public device::WrappedStream {
 public:
  using WrappedStream::WrappedStream;
  void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
    time([&] { inner().copy(target, source, size, direction); });
  }
  void enqueue(std::function<void()> kernel, device::Work work) override {
    time([&] { inner().enqueue(std::move(kernel), work); });
  }

  /// Seconds of each piece since the last call.
  std::vector<double> take() { return std::exchange(seconds_, {}); }

 private:
  template <class Work>
  void time(Work&& work) {
    Stopwatch const watch;
    work();
    inner().synchronize();
    seconds_.push_back(watch.elapsed().count());
  }

  std::vector<double> seconds_;
};

/// The faster of bf16 and FP32 products on this CPU.
dnnl::memory::data_type fastest_type() {
  auto const has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  auto const wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (has & wanted) == wanted ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// A product C (m, n) = op(A) op(B), by oneDNN alone, in whatever type this CPU multiplies fastest.
class RawProduct {
 public:
  RawProduct(dnnl::engine const& engine, std::int64_t m, std::int64_t n, std::int64_t k,
             bool transpose_a, bool transpose_b)
      : stream_{engine},
        flops_{2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)} {
    auto const matrix = [](std::int64_t rows, std::int64_t columns, bool transpose) {
      return dnnl::memory::desc{
          {rows, columns},
          fastest_type(),
          transpose ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1}};
    };
    a_ = dnnl::memory{matrix(m, k, transpose_a), engine};
    b_ = dnnl::memory{matrix(k, n, transpose_b), engine};
    c_ = dnnl::memory{matrix(m, n, false), engine};
    fill_matrix(a_, 1, m * k);
    fill_matrix(b_, 2, k * n);
    product_ = dnnl::matmul{
        kernels::describe_product(engine, a_.get_desc(), b_.get_desc(), c_.get_desc())};
  }

  double run() {
    Stopwatch const watch;
    product_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
    return watch.elapsed().count();
  }
  [[nodiscard]] double flops() const { return flops_; }

 private:
  static void fill_matrix(dnnl::memory& matrix, std::uint64_t stream, std::int64_t count) {
    std::vector<bfloat16> values(static_cast<std::size_t>(count));
    fill(values, stream, 0, 1);
    if (matrix.get_desc().data_type() == dnnl::memory::data_type::bf16) {
      std::ranges::copy(values, static_cast<bfloat16*>(matrix.get_data_handle()));
    } else {
      std::ranges::transform(values, static_cast<float*>(matrix.get_data_handle()),
                             [](bfloat16 value) { return to_float(value); });
    }
  }

  dnnl::stream stream_;
  dnnl::memory a_, b_, c_;
  dnnl::matmul product_;
  double flops_;
};

struct Layer {
  std::string name;
  std::int64_t in, out;
};

std::vector<Layer> linear_layers(Dims const& d) {
  return {{"q, k, v", d.C, d.qkv()},
          {"o", d.H * d.D, d.C},
          {"gate, up", d.C, 2 * d.F},
          {"down", d.F, d.C}};
}

/// What the block does, in its order.
std::vector<std::string> steps_of_block() {
  return {"rmsnorm (1)",
          "q, k, v",
          "rope",
          "attention",
          "o",
          "rmsnorm (2)",
          "gate, up",
          "swiglu",
          "down",
          "down dW",
          "down dX",
          "swiglu backward",
          "gate, up dW",
          "gate, up dX",
          "rmsnorm (2) backward",
          "o dW",
          "o dX",
          "attention backward",
          "rope backward",
          "q, k, v dW",
          "q, k, v dX",
          "rmsnorm (1) backward"};
}

/// One block in the middle of a model, with everything it works on.
class BlockBench {
 public:
  explicit BlockBench(state::ModelShape const& shape, model::RunShape const& run)
      : layouts_{state::layers_of(shape)},
        device_{device::make_host_device(0)},
        stream_{device_->make_calling_stream("gemm")},
        dims_{model::dims_of(shape, run)},
        work_{dims_,
              {.ring = {1, {}, 1},
               .layer_elements = mlp_.padded_elements(),
               .attention_elements = attention_.padded_elements()},
              *device_},
        attention_parameters_{make_parameters(attention_)},
        mlp_parameters_{make_parameters(mlp_)},
        x_{allocate(dims_.rows() * dims_.C)},
        dx_{allocate(dims_.rows() * dims_.C)},
        block_{dims_, stream_, work_.rope, work_.scratch} {
    work_.fill_rope_tables(shape, stream_);
    fill(x_.as<bfloat16>(), 100, 0, 1);
    fill(dx_.as<bfloat16>(), 101, 0, 1e-3F);
  }

  /// Seconds of forward and backward; seconds of each step, in order, to `steps`.
  double run(std::vector<double>& steps) {
    auto const& a = work_.blocks.front();
    copy(a.mid, x_.as<bfloat16>());
    copy(work_.dx, dx_.as<bfloat16>());
    copy(work_.scratch.branch, x_.as<bfloat16>());
    stream_.take();
    auto const of = [&](state::LayerLayout const& layer, device::Buffer const& buffer) {
      std::span<bfloat16 const> const values = buffer.as<bfloat16>();
      return model::LayerView{dims_, layer, values};
    };
    auto const attention = of(attention_, attention_parameters_).attention();
    auto const mlp = of(mlp_, mlp_parameters_).mlp();
    Stopwatch const watch;
    block_.forward_attention(attention, {a.mid, work_.scratch.branch}, a);
    block_.forward_mlp(mlp, a);
    block_.backward_mlp(mlp, a, work_.dx,
                        model::LayerView{dims_, mlp_, work_.gradients.in_turn.front()}.mlp());
    block_.backward_attention(
        attention, a, work_.dx,
        model::LayerView{dims_, attention_, work_.gradients.attention}.attention());
    stream_.synchronize();
    double const seconds = watch.elapsed().count();
    steps = stream_.take();
    return seconds;
  }
  [[nodiscard]] Dims const& dims() const { return dims_; }

 private:
  device::Buffer allocate(std::int64_t elements) {
    return device_->allocate(elements * static_cast<Bytes>(sizeof(bfloat16)), "the benchmark");
  }
  device::Buffer make_parameters(state::LayerLayout const& layer) {
    auto buffer = allocate(layer.padded_elements());
    auto const all = buffer.as<bfloat16>();
    for (state::TensorLayout const& tensor : layer.tensors) {
      bool const norm = tensor.columns == 0;
      fill(all.subspan(static_cast<std::size_t>(tensor.offset),
                       static_cast<std::size_t>(tensor.elements())),
           static_cast<std::uint64_t>(tensor.index), norm ? 1.0F : 0.0F, 0.03F);
    }
    return buffer;
  }
  void copy(std::span<bfloat16> target, std::span<bfloat16 const> source) {
    stream_.copy(target.data(), source.data(), static_cast<Bytes>(target.size_bytes()),
                 device::Copy::device_to_device);
  }

  std::vector<state::LayerLayout> layouts_;
  state::LayerLayout const& attention_ = layouts_[state::attention_layer(0)];
  state::LayerLayout const& mlp_ = layouts_[state::mlp_layer(0)];
  std::unique_ptr<device::Device> device_;
  TimingStream stream_;
  Dims dims_;
  model::Workspace<bfloat16> work_;
  device::Buffer attention_parameters_, mlp_parameters_, x_, dx_;
  model::Block<bfloat16> block_;
};

/// The block's attention, forward and backward: in bf16 and widened to FP32.
class AttentionBench {
 public:
  explicit AttentionBench(Dims const& d)
      : shape_{1, d.rows(), d.H, d.H, d.D},
        qkv_(static_cast<std::size_t>(d.rows() * d.qkv())),
        out_(static_cast<std::size_t>(d.rows() * d.H * d.D)),
        d_out_(out_.size()),
        d_qkv_(qkv_.size()),
        log_sum_exp_(static_cast<std::size_t>(d.rows() * d.H)) {
    fill(qkv_, 3, 0, 1);
    fill(d_out_, 4, 0, 1e-3F);
  }

  /// By kernels::Bf16Unit, or widened, by Simd. Returns seconds.
  template <class By>
  double run(By by) {
    Stopwatch const watch;
    attention_forward_by(by, kernels::AttentionForward<bfloat16>{shape_, qkv_, out_, log_sum_exp_});
    attention_backward_by(
        by, kernels::AttentionBackward<bfloat16>{shape_, qkv_, out_, d_out_, log_sum_exp_, d_qkv_});
    return watch.elapsed().count();
  }

 private:
  kernels::AttentionShape shape_;
  std::vector<bfloat16> qkv_, out_, d_out_, d_qkv_;
  std::vector<float> log_sum_exp_;
};

/// The block's linear products, each alone: name, product, seconds per repetition.
struct Reference {
  std::string name;
  RawProduct product;
  std::vector<double> seconds;
};

std::vector<Reference> references(Dims const& d) {
  dnnl::engine const engine{dnnl::engine::kind::cpu, 0};
  std::vector<Reference> result;
  for (Layer const& layer : linear_layers(d)) {
    auto const [name, in, out] = layer;
    result.push_back({name, RawProduct{engine, d.rows(), out, in, false, true}, {}});
    result.push_back({name + " dX", RawProduct{engine, d.rows(), in, out, false, false}, {}});
    result.push_back({name + " dW", RawProduct{engine, out, in, d.rows(), true, false}, {}});
  }
  return result;
}

void print_steps(std::vector<std::vector<double>> const& steps, double block_seconds,
                 std::vector<Reference> const& raw) {
  auto const names = steps_of_block();
  fmt::print("{:<30}{:>9}{:>9}{:>10}{:>15}\n", "step", "ms", "share", "GFLOP/s", "oneDNN alone");
  for (std::size_t i = 0; i < names.size(); ++i) {
    double const seconds = median(steps[i]);
    fmt::print("{:<30}{:>9.2f}{:>8.1f}%", names[i], 1e3 * seconds, 100 * seconds / block_seconds);
    for (Reference const& reference : raw) {
      if (reference.name == names[i]) {
        double const gflop = reference.product.flops() * 1e-9;
        fmt::print("{:>10.0f}{:>15.0f}", gflop / seconds, gflop / median(reference.seconds));
      }
    }
    fmt::print("\n");
  }
}

void run() {
  state::ModelShape const shape{.layers = 1,
                                .hidden = 2048,
                                .heads = 32,
                                .kv_heads = 32,
                                .ffn_hidden = 5632,
                                .vocab = 1,
                                .max_sequence = 1024};
  BlockBench bench{shape, {.batch = 1, .sequence = 1024}};
  auto raw = references(bench.dims());
  std::vector<double> block;
  std::vector<std::vector<double>> steps(steps_of_block().size());
  AttentionBench attention{bench.dims()};
  auto const unit = kernels::best_bf16_unit();
  std::vector<double> in_bf16, widened;
  for (int repetition = -warm_up; repetition < repetitions; ++repetition) {
    std::vector<double> of_steps;
    double const seconds = bench.run(of_steps);
    require(of_steps.size() == steps.size(), "the block has other steps than the list says");
    if (repetition >= 0) {
      block.push_back(seconds);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        steps[i].push_back(of_steps[i]);
      }
    }
    if (unit != kernels::Bf16Unit::none) {
      double const by_unit = attention.run(unit);
      double const by_floats = attention.run(best_simd());
      if (repetition >= 0) {
        in_bf16.push_back(by_unit);
        widened.push_back(by_floats);
      }
    }
    for (Reference& reference : raw) {
      double const alone = reference.product.run();
      if (repetition >= 0) {
        reference.seconds.push_back(alone);
      }
    }
  }

  double raw_flops = 0;
  double raw_seconds = 0;
  for (Reference const& reference : raw) {
    raw_flops += reference.product.flops();
    raw_seconds += median(reference.seconds);
  }
  auto const flops = model::block_flops(bench.dims());
  double const seconds = median(block);
  double const rate = (flops.linear + flops.attention) / seconds;
  double const roof = raw_flops / raw_seconds;
  print_steps(steps, seconds, raw);
  if (!in_bf16.empty()) {
    fmt::print(
        "attention alone, forward and backward: {:.2f} ms by {}, {:.2f} ms widened to FP32\n",
        1e3 * median(in_bf16), name_of(unit), 1e3 * median(widened));
  }
  fmt::print("linear products {:.1f} GFLOP, attention's products (causal) {:.1f} GFLOP\n",
             flops.linear * 1e-9, flops.attention * 1e-9);
  fmt::print(
      "forward and backward {:.1f} ms: {:.0f} GFLOP/s; oneDNN at its shapes, in {}: {:.0f} "
      "GFLOP/s\n",
      1e3 * seconds, rate * 1e-9, fastest_type() == dnnl::memory::data_type::bf16 ? "bf16" : "fp32",
      roof * 1e-9);
  fmt::print("RESULT forward_backward_vs_gemm {:.3f}\n", rate / roof);
}

}  // namespace
}  // namespace offstage

int main() {
  try {
    offstage::run();
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_gemm: {}\n", error.what());
    return 1;
  }
}
