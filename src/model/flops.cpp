#include "base/error.hpp"
#include "model/block.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "model/transformer.hpp"

namespace offstage::model {
namespace {

// So many rows are enough for a product at full speed, and few enough that FP32 logits stay small.
constexpr std::int64_t host_logit_rows = 256;
constexpr std::int64_t cuda_logit_rows = 2048;

constexpr double forward_and_backward = 3;  // two products in backward for one in forward

/// Operations of a product, which multiplies and adds once per (row, in, out).
double linear_flops(double rows, std::int64_t weights) {
  return forward_and_backward * 2 * rows * static_cast<double>(weights);
}
double linear_flops(std::int64_t rows, std::int64_t weights) {
  return linear_flops(static_cast<double>(rows), weights);
}

/// Weights of the product behind attention.
std::int64_t o_weights(Dims const& dims) {
  return dims.C * dims.H * dims.D;
}

/// Pairs of a query and a key that it sees, over all sequences.
double pairs(Dims const& dims) {
  return dims.attended *
         static_cast<double>(dims.B * kernels::attention_pairs(dims.attention_shape()));
}

}  // namespace

Dims dims_of(state::ModelShape const& shape, RunShape const& run, device::Kind kind) {
  state::validate(shape);
  require(run.batch >= 1 && run.sequence >= 1, "Transformer: batch and sequence must be 1 or more");
  require(run.sequence <= shape.max_sequence, "Transformer: sequence is longer than max_sequence");
  return {.B = run.batch,
          .T = run.sequence,
          .C = shape.hidden,
          .H = shape.heads,
          .K = shape.kv_heads,
          .D = shape.head_dim(),
          .F = shape.ffn_hidden,
          .V = shape.vocab,
          .epsilon = shape.norm_epsilon,
          .family = shape.family,
          .qkv_bias = shape.qkv_bias,
          .qk_norm = shape.qk_norm,
          .norms_after = shape.norms_after,
          .exact_gelu = shape.exact_gelu,
          .window = shape.window < run.sequence ? shape.window : 0,
          .documents_apart = run.documents_apart,
          .attended = run.attended,
          .z_loss = run.z_loss,
          .logit_rows = kind == device::Kind::cuda ? cuda_logit_rows : host_logit_rows,
          .kind = kind,
          .attention_workspace = run.attention_workspace,
          .attention = run.attention};
}

BlockFlops block_flops(Dims const& dims) {
  std::int64_t const weights =
      dims.C * dims.qkv() + o_weights(dims) + dims.C * dims.up() + dims.F * dims.C;
  return {.linear = linear_flops(dims.rows(), weights),
          .attention = 2 * linear_flops(pairs(dims), dims.H * dims.D)};
}

BlockPasses block_passes(Dims const& dims) {
  constexpr double backward_products = 2.0;
  constexpr double backward_attention = 2.5;
  BlockFlops const flops = block_flops(dims);
  double const linear = part_flops(dims, Part::qkv) +
                        linear_flops(dims.rows(), o_weights(dims)) / forward_and_backward;
  double const attention = flops.attention / forward_and_backward;
  double const of_mlp = flops.linear / forward_and_backward - linear;
  return {.attention = {.forward = linear + attention,
                        .backward = backward_products * linear + backward_attention * attention},
          .mlp = {.forward = of_mlp, .backward = backward_products * of_mlp}};
}

double part_flops(Dims const& dims, Part part) {
  auto const forward = [](auto rows, std::int64_t weights) {
    return linear_flops(rows, weights) / forward_and_backward;
  };
  switch (part) {
    case Part::qkv:
      return forward(dims.rows(), dims.C * dims.qkv());
    case Part::attention:
      return 2 * forward(pairs(dims), dims.H * dims.D) +
             (dims.norms_after ? forward(dims.rows(), o_weights(dims)) : 0.0);
    case Part::mid:
      return dims.norms_after ? 0.0 : forward(dims.rows(), o_weights(dims));
    case Part::up:
      return forward(dims.rows(), dims.C * dims.up() + (dims.norms_after ? dims.F * dims.C : 0));
    case Part::input:
    case Part::pointwise:
    case Part::count:
      break;
  }
  return 0.0;
}

double product_flops(state::ModelShape const& shape, RunShape const& run) {
  Dims const dims = dims_of(shape, run);
  BlockFlops const block = block_flops(dims);
  return static_cast<double>(shape.layers) * (block.linear + block.attention) +
         linear_flops(dims.rows(), dims.V * dims.C);
}

}  // namespace offstage::model
