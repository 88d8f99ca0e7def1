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

/// The tensors of a block's forward that backward needs.
template <class T>
struct BlockActivations {
  std::span<T> x;        ///< (B, T, C) the block's input
  std::span<T> attn_in;  ///< (B, T, C) normalised x; empty where norms come after
  std::span<T> qkv;      ///< (B, T, (H + 2 K) D) the product's result
  /// (B, T, (H + 2 K) D) attention's input: qkv with queries and keys normalised, if the model has
  /// such norms, and turned by RoPE. Without norms it is in qkv's memory.
  std::span<T> heads;
  std::span<T> attn_out;           ///< (B, T, H D)
  std::span<T> attn_product;       ///< (B, T, C) attention's addition, before the norm after it
  std::span<T> mid;                ///< (B, T, C) x plus attention's addition
  std::span<T> mlp_in;             ///< (B, T, C) normalised mid; empty where norms come after
  std::span<T> up;                 ///< (B, T, 2 F or F); backward overwrites it with its gradient
  std::span<T> hidden;             ///< (B, T, F) input of the MLP's last product
  std::span<T> mlp_product;        ///< (B, T, C) the MLP's addition, before the norm after it
  NormStatistics<T> attn_norm;     ///< statistics of x, or of attn_product
  QueryKeyStatistics<T> qk_norm;   ///< statistics of qkv
  std::span<Real<T>> log_sum_exp;  ///< (B, H, T)
  NormStatistics<T> mlp_norm;      ///< statistics of mid, or of mlp_product
  kernels::AttentionDocuments documents;  ///< the micro-batch's
};

/// Sets the views of a part, in the slab's next part_bytes, and returns these bytes. `hidden` is
/// the pointwise part's hidden, if it has a place already.
template <class T>
std::span<std::byte> lay_out_part(Dims const& dims, Part part, Slab& slab, BlockActivations<T>& a,
                                  std::optional<std::span<T>> hidden = std::nullopt);

/// Memory that a block needs during its own forward or backward only.
template <class T>
struct BlockScratch {
  /// (B, T, C) addition of attention or the MLP to x; in backward its gradient.
  std::span<T> branch;
  std::span<T>
      /// (B, T, F); until it is written, the hidden of a block that computes hidden again.
      d_hidden;
  /// Scratch memory of attention's backward on a GPU. It is the memory of branch and d_hidden,
  /// whose values nobody needs then.
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

/// The products of a block.
struct BlockProducts {
  Linear qkv, o, up, down;
  explicit BlockProducts(Dims const& dims);
};

/// Host memory in which cores widen the operands of a block's products (Linear::widened_bytes).
template <class T>
[[nodiscard]] Bytes block_widened_bytes(Dims const& dims);

/// One transformer block. All members enqueue on the stream and return.
template <class T>
class Block {
 public:
  Block(Dims const& dims, device::Stream& stream, RopeTables<T> const& rope,
        BlockScratch<T> const& scratch);

  // Each member needs the parameters of one of the block's layers. Attention comes before the MLP,
  // in backward after it.

  /// Computes a.x, the residual's sum, then attention, whose addition to a.x it leaves in
  /// scratch.branch. The residual is mid and MLP of the block before; it is empty before the first
  /// block, where a.x is there. `before` may be a.mid, `delta` scratch.branch.
  void forward_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                         BlockActivations<T> const& a) const;
  /// Computes a.mid, the sum of a.x and attention's addition, then the MLP, whose addition to a.mid
  /// it leaves in scratch.branch.
  void forward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a) const;
  /// Writes the block's output, the sum of a.mid and the MLP's addition, to `out` (B, T, C). The
  /// next block's first norm would make the same sum by the same kernel. The kernel's other results
  /// go to a.mlp_in and its statistics.
  void forward_sum(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                   std::span<T> out) const;

  /// recompute_attention and recompute_mlp make the parts to be recomputed from a.x and the other
  /// parts. Call them before backward of the same layer, and attention's before recompute_mlp where
  /// mlp_needs_attention.
  void recompute_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                           BlockFates const& fates) const;
  void recompute_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a,
                     BlockFates const& fates) const;

  /// On entry dx (B, T, C) is the gradient of the block's output, on return that of a.mid. dw is
  /// overwritten.
  void backward_mlp(MlpTensors<T const> const& w, BlockActivations<T> const& a, std::span<T> dx,
                    MlpTensors<T> const& dw) const;
  /// On entry dx is the gradient of a.mid, on return that of a.x. dw is overwritten.
  void backward_attention(AttentionTensors<T const> const& w, BlockActivations<T> const& a,
                          std::span<T> dx, AttentionTensors<T> const& dw) const;

 private:
  /// Makes a.heads from a.qkv.
  void make_heads(AttentionTensors<T const> const& w, BlockActivations<T> const& a) const;
  /// Turns queries and keys by their positions, or back.
  void rotate(std::span<T> qkv, bool inverse) const;
  /// The input of a layer's first product.
  [[nodiscard]] std::span<T const> attention_input(BlockActivations<T> const& a) const {
    return norm_.after ? a.x : a.attn_in;
  }
  [[nodiscard]] std::span<T const> mlp_input(BlockActivations<T> const& a) const {
    return norm_.after ? a.mid : a.mlp_in;
  }
  /// The gradient of a layer's last product. dx is the gradient of the layer's addition; the result
  /// is dx itself or, through the norm after the product, in scratch.branch.
  [[nodiscard]] std::span<T const> backward_branch(std::span<T> product,
                                                   NormTensors<T const> const& w,
                                                   NormStatistics<T> const& statistics,
                                                   std::span<T> dx, NormTensors<T> const& dw) const;
  /// Adds the gradient of a layer's input, which is in scratch.branch, to dx.
  void backward_input(std::span<T> x, NormTensors<T const> const& w,
                      NormStatistics<T> const& statistics, std::span<T> dx,
                      NormTensors<T> const& dw) const;
  void make_attention(AttentionTensors<T const> const& w, Residual<T> const& residual,
                      BlockActivations<T> const& a, BlockFates const& fates) const;

  Dims dims_;
  Norm norm_;
  QueryKeyNorm qk_norm_;
  BlockProducts linear_;
  Activation activation_;
  device::Stream& stream_;
  RopeTables<T> rope_;
  BlockScratch<T> scratch_;
};

/// Operations of forward and backward of one block. Backward has two products for one in forward.
struct BlockFlops {
  double linear;     ///< operations of the linear layers
  double attention;  ///< queries by keys and probabilities by values, causal pairs only
};
[[nodiscard]] BlockFlops block_flops(Dims const& dims);

/// Floating-point operations that each pass of a layer makes. Attention's backward makes the scores
/// again; recomputation is not counted.
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
