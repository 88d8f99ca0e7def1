#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/activation.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "model/linear.hpp"
#include "model/norm.hpp"
#include "model/query_key_norm.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"

namespace offstage::model {

/// What backward needs of a block's forward.
template <class T>
struct BlockActivations {
  std::span<T> x;        ///< (B, T, C) the block's input
  std::span<T> attn_in;  ///< (B, T, C) normalised x; empty where norms come after
  std::span<T> qkv;      ///< (B, T, (H + 2 K) D) what the product makes
  /// (B, T, (H + 2 K) D) what attention takes: qkv, its queries and keys normalised where the model
  /// has such norms, and turned by RoPE. Without norms it is qkv's memory.
  std::span<T> heads;
  std::span<T> attn_out;           ///< (B, T, H D)
  std::span<T> attn_product;       ///< (B, T, C) what attention adds, before its norm after
  std::span<T> mid;                ///< (B, T, C) x and what attention added
  std::span<T> mlp_in;             ///< (B, T, C) normalised mid; empty where norms come after
  std::span<T> up;                 ///< (B, T, 2 F or F); backward overwrites it with its gradient
  std::span<T> hidden;             ///< (B, T, F) what the MLP's last product takes
  std::span<T> mlp_product;        ///< (B, T, C) what the MLP adds, before its norm after
  NormStatistics<T> attn_norm;     ///< of x, or of attn_product
  QueryKeyStatistics<T> qk_norm;   ///< of qkv
  std::span<Real<T>> log_sum_exp;  ///< (B, H, T)
  NormStatistics<T> mlp_norm;      ///< of mid, or of mlp_product
};

/// Sets the views of a part, in the slab's next part_bytes. Returns all of these. `hidden` is that of what is pointwise, where it
/// has a place already.
template <class T>
std::span<std::byte> lay_out_part(Dims const& dims, Part part, Slab& slab, BlockActivations<T>& a,
                                  std::optional<std::span<T>> hidden = std::nullopt);

/// What no block needs beyond its own forward or backward.
template <class T>
struct BlockScratch {
  std::span<T> branch;  ///< (B, T, C) what attention or the MLP adds to x; in backward its gradient
  std::span<T>
      d_hidden;  ///< (B, T, F); until it is written, hidden of a block that computes that again
  /// Scratch memory of attention's backward on a GPU, in that of branch and d_hidden: nobody needs their values then.
  std::span<std::byte> attention;
  std::span<T> d_attn_out;  ///< (B, T, H D)
  std::span<T> d_qkv;       ///< (B, T, (H + 2 K) D)
};

template <class T>
[[nodiscard]] BlockScratch<T> lay_out_scratch(Dims const& dims, Slab& slab);

/// cos and sin of every position's angles; empty in a family with learned positions.
template <class T>
struct RopeTables {
  std::span<Real<T>> cosine;  ///< (T, D / 2)
  std::span<Real<T>> sine;    ///< (T, D / 2)
};

/// One transformer block. All members enqueue on the stream and return.
template <class T>
class Block {
 public:
  Block(Dims const& dims, device::Stream& stream, RopeTables<T> const& rope,
        BlockScratch<T> const& scratch);

  // Each needs the parameters of one of the block's layers. Attention comes before the MLP, in
  // backward after it.

  /// a.x = the residual's sum (mid and MLP of the block before; empty before the first block: a.x
  /// is there), then attention: leaves in scratch.branch what it adds to a.x. `before` may be
  /// a.mid, `delta` scratch.branch.
  void forward_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                         BlockActivations<T> const& a) const;
  /// a.mid = a.x and what forward_attention left, then the MLP: leaves in scratch.branch what it
  /// adds to a.mid.
  void forward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a) const;
  /// Block's output, a.mid and what forward_mlp left, to `out` (B, T, C): the sum that the next
  /// block's first norm would make, by the same kernel. What that makes beside it goes to a.mlp_in
  /// and its statistics.
  void forward_sum(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                   std::span<T> out) const;

  /// Make again what is to be recomputed, of a.x and the other parts: before backward of the same
  /// layer, and attention's before recompute_mlp where mlp_needs_attention.
  void recompute_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                           BlockFates const& fates) const;
  void recompute_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                     BlockFates const& fates) const;

  /// dx (B, T, C) comes as the gradient of the block's output and leaves as that of a.mid. dw is
  /// overwritten.
  void backward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a, std::span<T> dx,
                    MlpTensors<T> const& dw) const;
  /// The same from the gradient of a.mid to that of a.x.
  void backward_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                          std::span<T> dx, AttentionTensors<T> const& dw) const;

 private:
  /// a.heads of a.qkv.
  void make_heads(AttentionTensors<T const> const& w, BlockActivations<T> const& a) const;
  /// Turns queries and keys by their positions, or back.
  void rotate(std::span<T> qkv, bool inverse) const;
  /// What a layer's first product takes.
  [[nodiscard]] std::span<T const> attention_input(BlockActivations<T> const& a) const {
    return norm_.after ? a.x : a.attn_in;
  }
  [[nodiscard]] std::span<T const> mlp_input(BlockActivations<T> const& a) const {
    return norm_.after ? a.mid : a.mlp_in;
  }
  /// Gradient of a layer's last product, from dx, that of what the layer adds: dx itself, or through
  /// the norm after the product, in scratch.branch.
  [[nodiscard]] std::span<T const> backward_branch(std::span<T> product,
                                                   NormTensors<T const> const& w,
                                                   NormStatistics<T> const& statistics,
                                                   std::span<T> dx, NormTensors<T> const& dw) const;
  /// Adds to dx the gradient of what a layer takes, which is in scratch.branch.
  void backward_input(std::span<T> x, NormTensors<T const> const& w,
                      NormStatistics<T> const& statistics, std::span<T> dx,
                      NormTensors<T> const& dw) const;
  void make_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                      BlockActivations<T> const& a, BlockFates const& fates) const;

  Dims dims_;
  Norm norm_;
  QueryKeyNorm qk_norm_;
  Linear qkv_, o_, up_, down_;
  Activation activation_;
  device::Stream& stream_;
  RopeTables<T> rope_;
  BlockScratch<T> scratch_;
};

/// Forward and backward of one block, two products in backward for one in forward.
struct BlockFlops {
  double linear;     ///< of the linear layers
  double attention;  ///< queries by keys and probabilities by values, causal pairs only
};
[[nodiscard]] BlockFlops block_flops(Dims const& dims);

/// Floating-point operations of each pass of a layer, as they are computed: attention's backward
/// makes the scores again. Nothing is computed again beside them.
struct Passes {
  double forward{}, backward{};
};
/// Passes of a block's two layers.
struct BlockPasses {
  Passes attention, mlp;

  [[nodiscard]] double forward() const { return attention.forward + mlp.forward; }
  [[nodiscard]] double backward() const { return attention.backward + mlp.backward; }
};
[[nodiscard]] BlockPasses block_passes(Dims const& dims);

}  // namespace offstage::model
