#include "model/block.hpp"

#include <algorithm>

#include "base/instantiate.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/pointwise/rope.hpp"

namespace offstage::model {
namespace {

template <class T>
Bytes attention_workspace(Dims const& dims) {
  if (dims.kind != device::Kind::cuda) {
    return 0;
  }
  return dims.attention_workspace > 0 ? dims.attention_workspace
                                      : kernels::attention_workspace<T>(dims.attention_shape());
}

}  // namespace

template <class T>
std::span<std::byte> lay_out_part(Dims const& dims, Part part, Slab& slab, BlockActivations<T>& a,
                                  std::optional<std::span<T>> hidden) {
  std::int64_t const rows = dims.rows();
  slab.align();
  Bytes const begin = slab.used();
  switch (part) {
    case Part::input:
      a.x = slab.take<T>(rows * dims.C);
      break;
    case Part::qkv:
      a.qkv = slab.take<T>(rows * dims.qkv());
      if (!QueryKeyNorm{dims}.there()) {
        a.heads = a.qkv;
      }
      break;
    case Part::attention:
      a.attn_out = slab.take<T>(rows * dims.H * dims.D);
      a.log_sum_exp = slab.take<Real<T>>(rows * dims.H);
      if (dims.norms_after) {
        a.attn_product = slab.take<T>(rows * dims.C);
        a.attn_norm = lay_out_statistics<T>(dims, slab);
      }
      break;
    case Part::mid:
      a.mid = slab.take<T>(rows * dims.C);
      break;
    case Part::up:
      a.up = slab.take<T>(rows * dims.up());
      if (dims.norms_after) {
        a.mlp_product = slab.take<T>(rows * dims.C);
        a.mlp_norm = lay_out_statistics<T>(dims, slab);
      }
      break;
    case Part::pointwise:
      if (!dims.norms_after) {
        a.attn_in = slab.take<T>(rows * dims.C);
        a.attn_norm = lay_out_statistics<T>(dims, slab);
      }
      if (QueryKeyNorm const norm{dims}; norm.there()) {
        a.heads = slab.take<T>(rows * dims.qkv());
        a.qk_norm = norm.lay_out<T>(slab);
      }
      if (!dims.norms_after) {
        a.mlp_in = slab.take<T>(rows * dims.C);
        a.mlp_norm = lay_out_statistics<T>(dims, slab);
      }
      a.hidden = hidden ? *hidden : slab.take<T>(rows * dims.F);
      break;
    case Part::count:
      break;
  }
  return slab.take_again<std::byte>(begin, slab.used() - begin);
}

template <class T>
Bytes part_bytes(Dims const& dims, Part part) {
  Slab measure;
  BlockActivations<T> a;
  (void)lay_out_part(dims, part, measure, a);
  return measure.used();
}

template <class T>
BlockScratch<T> lay_out_scratch(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  Bytes const of_attention = attention_workspace<T>(dims);
  Bytes const begin = slab.used();
  return {.branch = slab.take<T>(rows * dims.C),
          .d_hidden = slab.take<T>(rows * dims.F),
          .attention = slab.take_again<std::byte>(begin, of_attention),
          .d_attn_out = slab.take<T>(rows * dims.H * dims.D),
          .d_qkv = slab.take<T>(rows * dims.qkv())};
}

BlockProducts::BlockProducts(Dims const& dims)
    : qkv{dims.rows(), dims.C, dims.qkv(), weight_layout(dims.family)},
      o{dims.rows(), dims.H * dims.D, dims.C, weight_layout(dims.family)},
      up{dims.rows(), dims.C, dims.up(), weight_layout(dims.family)},
      down{dims.rows(), dims.F, dims.C, weight_layout(dims.family)} {}

template <class T>
Bytes block_widened_bytes(Dims const& dims) {
  BlockProducts const of{dims};
  return std::max({of.qkv.widened_bytes<T>(), of.o.widened_bytes<T>(), of.up.widened_bytes<T>(),
                   of.down.widened_bytes<T>()});
}

template <class T>
Block<T>::Block(Dims const& dims, device::Stream& stream, RopeTables<T> const& rope,
                BlockScratch<T> const& scratch)
    : dims_{dims},
      norm_{dims.family, dims.rows(), dims.C, dims.epsilon, dims.norms_after},
      qk_norm_{dims},
      linear_{dims},
      activation_{dims.family, dims.exact_gelu, dims.rows(), dims.F},
      stream_{stream},
      rope_{rope},
      scratch_{scratch} {}

template <class T>
void Block<T>::forward_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                                 BlockActivations<T> const& a) const {
  make_attention(w, residual, a, recomputed_block);
}

template <class T>
void Block<T>::recompute_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                                   BlockFates const& fates) const {
  make_attention(w, {}, a, fates);
}

// Makes the parts of attention that `fates` has recomputed. The other parts are there.
template <class T>
void Block<T>::make_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                              BlockActivations<T> const& a, BlockFates const& fates) const {
  auto const wanted = [&](Part part) { return fates[part] == Fate::recompute; };
  if (wanted(Part::pointwise)) {
    norm_.take_in<T>(stream_, residual, a.x, w.norm, a.attn_in, a.attn_norm);
  }
  if (wanted(Part::qkv)) {
    linear_.qkv.forward<T>(stream_, attention_input(a), w.qkv, a.qkv);
  }
  if (wanted(qk_norm_.there() ? Part::pointwise : Part::qkv)) {
    make_heads(w, a);
  }
  if (wanted(Part::attention)) {
    kernels::attention_forward<T>(stream_, {.shape = dims_.attention_shape(),
                                            .qkv = a.heads,
                                            .out = a.attn_out,
                                            .log_sum_exp = a.log_sum_exp,
                                            .cudnn = dims_.attention,
                                            .documents = a.documents});
    if (norm_.after) {
      linear_.o.forward<T>(stream_, a.attn_out, w.o, a.attn_product);
    }
  }
  if (norm_.after && (wanted(Part::attention) || wanted(Part::mid))) {
    norm_.forward<T>(stream_, {}, a.attn_product, w.norm, scratch_.branch, a.attn_norm);
  } else if (wanted(Part::mid)) {
    linear_.o.forward<T>(stream_, a.attn_out, w.o, scratch_.branch);
  }
}

template <class T>
void Block<T>::forward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a) const {
  recompute_mlp(w, a, recomputed_block);
  if (!norm_.after) {
    linear_.down.forward<T>(stream_, a.hidden, w.down, scratch_.branch);
  }
}

template <class T>
void Block<T>::recompute_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                             BlockFates const& fates) const {
  auto const wanted = [&](Part part) { return fates[part] == Fate::recompute; };
  if (wanted(Part::mid)) {
    norm_.take_in<T>(stream_, {a.x, scratch_.branch}, a.mid, w.norm, a.mlp_in, a.mlp_norm);
  } else if (wanted(Part::pointwise)) {
    norm_.take_in<T>(stream_, {}, a.mid, w.norm, a.mlp_in, a.mlp_norm);
  }
  if (wanted(Part::up)) {
    linear_.up.forward<T>(stream_, mlp_input(a), w.up, a.up);
  }
  if (wanted(Part::pointwise)) {
    activation_.forward<T>(stream_, a.up, a.hidden);
  }
  if (norm_.after && wanted(Part::up)) {
    linear_.down.forward<T>(stream_, a.hidden, w.down, a.mlp_product);
    norm_.forward<T>(stream_, {}, a.mlp_product, w.norm, scratch_.branch, a.mlp_norm);
  }
}

template <class T>
void Block<T>::forward_sum(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                           std::span<T> out) const {
  norm_.take_in<T>(stream_, {a.mid, scratch_.branch}, out, w.norm, a.mlp_in, a.mlp_norm);
}

template <class T>
void Block<T>::make_heads(AttentionTensors<T const> const& w, BlockActivations<T> const& a) const {
  if (qk_norm_.there()) {
    qk_norm_.forward<T>(stream_, a.qkv, w, a.heads, a.qk_norm);
  }
  rotate(a.heads, false);
}

template <class T>
void Block<T>::rotate(std::span<T> qkv, bool inverse) const {
  if (rope_.cosine.empty()) {
    return;
  }
  kernels::rope<T>(stream_, {.qkv = qkv,
                             .cosine = rope_.cosine,
                             .sine = rope_.sine,
                             .rows = dims_.rows(),
                             .sequence = dims_.T,
                             .heads = dims_.H,
                             .kv_heads = dims_.K,
                             .head_dim = dims_.D,
                             .inverse = inverse});
}

template <class T>
std::span<T const> Block<T>::backward_branch(std::span<T> product, NormTensors<T const> const& w,
                                             NormStatistics<T> const& statistics, std::span<T> dx,
                                             NormTensors<T> const& dw) const {
  if (!norm_.after) {
    return dx;
  }
  norm_.backward<T>(stream_, product, w, dx, statistics, scratch_.branch, dw, false);
  return scratch_.branch;
}

template <class T>
void Block<T>::backward_input(std::span<T> x, NormTensors<T const> const& w,
                              NormStatistics<T> const& statistics, std::span<T> dx,
                              NormTensors<T> const& dw) const {
  if (norm_.after) {
    kernels::add<T>(
        stream_,
        {.x = dx, .y = scratch_.branch, .sum = dx, .rows = dims_.rows(), .width = dims_.C});
  } else {
    norm_.backward<T>(stream_, x, w, scratch_.branch, statistics, dx, dw);
  }
}

// On entry dx is the gradient of the sum mid + branch, and so also that of the branch; on return it
// is that of mid.
template <class T>
void Block<T>::backward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                            std::span<T> dx, MlpTensors<T> const& dw) const {
  auto const d_product = backward_branch(a.mlp_product, w.norm, a.mlp_norm, dx, dw.norm);
  linear_.down.backward_weight<T>(stream_, d_product, a.hidden, dw.down);
  linear_.down.backward_input<T>(stream_, d_product, w.down.weight, scratch_.d_hidden);
  activation_.backward<T>(stream_, a.up, scratch_.d_hidden);
  linear_.up.backward_weight<T>(stream_, a.up, mlp_input(a), dw.up);
  linear_.up.backward_input<T>(stream_, a.up, w.up.weight, scratch_.branch);
  backward_input(a.mid, w.norm, a.mlp_norm, dx, dw.norm);
}

// On entry dx is the gradient of mid = x + branch; on return it is that of x.
template <class T>
void Block<T>::backward_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                                  std::span<T> dx, AttentionTensors<T> const& dw) const {
  auto const d_product = backward_branch(a.attn_product, w.norm, a.attn_norm, dx, dw.norm);
  linear_.o.backward_weight<T>(stream_, d_product, a.attn_out, dw.o);
  linear_.o.backward_input<T>(stream_, d_product, w.o.weight, scratch_.d_attn_out);
  kernels::attention_backward<T>(stream_, {.shape = dims_.attention_shape(),
                                           .qkv = a.heads,
                                           .out = a.attn_out,
                                           .d_out = scratch_.d_attn_out,
                                           .log_sum_exp = a.log_sum_exp,
                                           .d_qkv = scratch_.d_qkv,
                                           .workspace = scratch_.attention,
                                           .cudnn = dims_.attention,
                                           .documents = a.documents});
  rotate(scratch_.d_qkv, true);
  if (qk_norm_.there()) {
    qk_norm_.backward<T>(stream_, a.qkv, w, a.qk_norm, scratch_.d_qkv, dw);
  }
  linear_.qkv.backward_weight<T>(stream_, scratch_.d_qkv, attention_input(a), dw.qkv);
  linear_.qkv.backward_input<T>(stream_, scratch_.d_qkv, w.qkv.weight, scratch_.branch);
  backward_input(a.x, w.norm, a.attn_norm, dx, dw.norm);
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Block)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, lay_out_part)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, part_bytes)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, lay_out_scratch)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, block_widened_bytes)

}  // namespace offstage::model
