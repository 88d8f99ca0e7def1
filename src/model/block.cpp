#include "model/block.hpp"

#include "attention.hpp"
#include "base/error.hpp"
#include "model/linear.hpp"
#include "rmsnorm.hpp"
#include "rope.hpp"
#include "swiglu.hpp"

namespace offstage::model {

template <class Element>
BlockTensors<Element> block_tensors(state::LayerLayout const& layout, std::span<Element> memory) {
  // One view over neighbours that one product computes together.
  auto const together = [&](auto const&... suffixes) {
    std::int64_t begin = -1;
    std::int64_t end = -1;
    auto const append = [&](state::TensorLayout const& tensor) {
      require(end < 0 || tensor.offset == end, "block_tensors: tensors do not stand side by side");
      if (end < 0) {
        begin = tensor.offset;
      }
      end = tensor.offset + tensor.elements();
    };
    (append(layout.tensor(suffixes)), ...);
    return memory.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  return {.qkv = together("q_proj.weight", "k_proj.weight", "v_proj.weight"),
          .o = together("o_proj.weight"),
          .gate_up = together("gate_proj.weight", "up_proj.weight"),
          .down = together("down_proj.weight"),
          .attn_norm = together("input_layernorm.weight"),
          .mlp_norm = together("post_attention_layernorm.weight")};
}

template <class T>
BlockActivations<T> lay_out_block(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  return {.x = {},
          .attn_in = slab.take<T>(rows * dims.C),
          .qkv = slab.take<T>(rows * dims.qkv()),
          .attn_out = slab.take<T>(rows * dims.H * dims.D),
          .mid = slab.take<T>(rows * dims.C),
          .mlp_in = slab.take<T>(rows * dims.C),
          .gate_up = slab.take<T>(rows * 2 * dims.F),
          .swiglu = slab.take<T>(rows * dims.F),
          .attn_rms = slab.take<Real<T>>(rows),
          .log_sum_exp = slab.take<Real<T>>(rows * dims.H),
          .mlp_rms = slab.take<Real<T>>(rows)};
}

template <class T>
BlockScratch<T> lay_out_scratch(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  return {.branch = slab.take<T>(rows * dims.C),
          .d_swiglu = slab.take<T>(rows * dims.F),
          .d_attn_out = slab.take<T>(rows * dims.H * dims.D),
          .d_qkv = slab.take<T>(rows * dims.qkv())};
}

template <class T>
void Block<T>::forward(BlockTensors<T const> const& w, std::span<T const> delta,
                       BlockActivations<T> const& a) const {
  auto const [B, S, C, H, K, D, F, V, epsilon] = dims_;
  std::int64_t const rows = dims_.rows();

  kernels::rmsnorm_forward<T>(stream_, {.x = a.x,
                                        .delta = delta,
                                        .weight = w.attn_norm,
                                        .y = a.attn_in,
                                        .inverse_rms = a.attn_rms,
                                        .rows = rows,
                                        .width = C,
                                        .epsilon = epsilon});
  Linear{rows, C, dims_.qkv()}.forward<T>(stream_, a.attn_in, w.qkv, a.qkv);
  kernels::rope<T>(stream_, {.qkv = a.qkv,
                             .cosine = rope_.cosine,
                             .sine = rope_.sine,
                             .rows = rows,
                             .sequence = S,
                             .heads = H,
                             .kv_heads = K,
                             .head_dim = D});
  kernels::attention_forward<T>(
      stream_,
      {.shape = {B, S, H, K, D}, .qkv = a.qkv, .out = a.attn_out, .log_sum_exp = a.log_sum_exp});
  Linear{rows, H * D, C}.forward<T>(stream_, a.attn_out, w.o, scratch_.branch);

  // The norm adds the branch in place, and backward needs x as it was.
  stream_.copy(a.mid.data(), a.x.data(), static_cast<Bytes>(a.x.size_bytes()),
               device::Copy::device_to_device);
  kernels::rmsnorm_forward<T>(stream_, {.x = a.mid,
                                        .delta = scratch_.branch,
                                        .weight = w.mlp_norm,
                                        .y = a.mlp_in,
                                        .inverse_rms = a.mlp_rms,
                                        .rows = rows,
                                        .width = C,
                                        .epsilon = epsilon});
  Linear{rows, C, 2 * F}.forward<T>(stream_, a.mlp_in, w.gate_up, a.gate_up);
  kernels::swiglu_forward<T>(stream_,
                             {.gate_up = a.gate_up, .y = a.swiglu, .rows = rows, .width = F});
}

template <class T>
void Block<T>::forward_down(BlockTensors<T const> const& w, BlockActivations<T> const& a) const {
  Linear{dims_.rows(), dims_.F, dims_.C}.forward<T>(stream_, a.swiglu, w.down, scratch_.branch);
}

template <class T>
void Block<T>::backward(BlockTensors<T const> const& w, BlockActivations<T> const& a,
                        std::span<T> dx, BlockTensors<T> const& dw) const {
  backward_mlp(w, a, dx, dw);
  backward_attention(w, a, dx, dw);
}

// dx is the gradient of the sum mid + branch, so it is also that of the branch; on leaving, that of
// mid.
template <class T>
void Block<T>::backward_mlp(BlockTensors<T const> const& w, BlockActivations<T> const& a,
                            std::span<T> dx, BlockTensors<T> const& dw) const {
  std::int64_t const rows = dims_.rows();
  Linear const down{rows, dims_.F, dims_.C};
  Linear const gate_up{rows, dims_.C, 2 * dims_.F};

  down.backward_weight<T>(stream_, dx, a.swiglu, dw.down);
  down.backward_input<T>(stream_, dx, w.down, scratch_.d_swiglu);
  kernels::swiglu_backward<T>(stream_, {.gate_up = a.gate_up,
                                        .dy = scratch_.d_swiglu,
                                        .d_gate_up = a.gate_up,
                                        .rows = rows,
                                        .width = dims_.F});
  gate_up.backward_weight<T>(stream_, a.gate_up, a.mlp_in, dw.gate_up);
  gate_up.backward_input<T>(stream_, a.gate_up, w.gate_up, scratch_.branch);
  kernels::rmsnorm_backward<T>(stream_, {.x = a.mid,
                                         .weight = w.mlp_norm,
                                         .dy = scratch_.branch,
                                         .inverse_rms = a.mlp_rms,
                                         .dx = dx,
                                         .d_weight = dw.mlp_norm,
                                         .rows = rows,
                                         .width = dims_.C});
}

// Likewise, from the gradient of mid = x + branch to that of x.
template <class T>
void Block<T>::backward_attention(BlockTensors<T const> const& w, BlockActivations<T> const& a,
                                  std::span<T> dx, BlockTensors<T> const& dw) const {
  auto const [B, S, C, H, K, D, F, V, epsilon] = dims_;
  std::int64_t const rows = dims_.rows();
  Linear const o{rows, H * D, C};
  Linear const qkv{rows, C, dims_.qkv()};

  o.backward_weight<T>(stream_, dx, a.attn_out, dw.o);
  o.backward_input<T>(stream_, dx, w.o, scratch_.d_attn_out);
  kernels::attention_backward<T>(stream_, {.shape = {B, S, H, K, D},
                                           .qkv = a.qkv,
                                           .out = a.attn_out,
                                           .d_out = scratch_.d_attn_out,
                                           .log_sum_exp = a.log_sum_exp,
                                           .d_qkv = scratch_.d_qkv});
  kernels::rope<T>(stream_, {.qkv = scratch_.d_qkv,
                             .cosine = rope_.cosine,
                             .sine = rope_.sine,
                             .rows = rows,
                             .sequence = S,
                             .heads = H,
                             .kv_heads = K,
                             .head_dim = D,
                             .inverse = true});
  qkv.backward_weight<T>(stream_, scratch_.d_qkv, a.attn_in, dw.qkv);
  qkv.backward_input<T>(stream_, scratch_.d_qkv, w.qkv, scratch_.branch);
  kernels::rmsnorm_backward<T>(stream_, {.x = a.x,
                                         .weight = w.attn_norm,
                                         .dy = scratch_.branch,
                                         .inverse_rms = a.attn_rms,
                                         .dx = dx,
                                         .d_weight = dw.attn_norm,
                                         .rows = rows,
                                         .width = C});
}

template class Block<float>;
template class Block<bfloat16>;
template class Block<double>;

template BlockTensors<float> block_tensors(state::LayerLayout const&, std::span<float>);
template BlockTensors<float const> block_tensors(state::LayerLayout const&, std::span<float const>);
template BlockTensors<bfloat16> block_tensors(state::LayerLayout const&, std::span<bfloat16>);
template BlockTensors<bfloat16 const> block_tensors(state::LayerLayout const&,
                                                    std::span<bfloat16 const>);
template BlockTensors<double> block_tensors(state::LayerLayout const&, std::span<double>);
template BlockTensors<double const> block_tensors(state::LayerLayout const&,
                                                  std::span<double const>);
template BlockActivations<float> lay_out_block(Dims const&, Slab&);
template BlockActivations<bfloat16> lay_out_block(Dims const&, Slab&);
template BlockActivations<double> lay_out_block(Dims const&, Slab&);
template BlockScratch<float> lay_out_scratch(Dims const&, Slab&);
template BlockScratch<bfloat16> lay_out_scratch(Dims const&, Slab&);
template BlockScratch<double> lay_out_scratch(Dims const&, Slab&);

}  // namespace offstage::model
