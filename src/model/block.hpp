#pragma once

#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// Views into one block's layer: its parameters (Element = T const) or their gradient (T).
template <class Element>
struct BlockTensors {
  std::span<Element> qkv;        ///< ((H + 2 K) D, C): q, k, v
  std::span<Element> o;          ///< (C, H D)
  std::span<Element> gate_up;    ///< (2 F, C): gate, up
  std::span<Element> down;       ///< (C, F)
  std::span<Element> attn_norm;  ///< (C)
  std::span<Element> mlp_norm;   ///< (C)
};

/// `memory` is the layer, at least layout.elements long.
/// Errors: PreconditionError if q, k, v or gate, up do not stand side by side.
template <class Element>
[[nodiscard]] BlockTensors<Element> block_tensors(state::LayerLayout const& layout,
                                                  std::span<Element> memory);

/// What backward needs of a block's forward.
template <class T>
struct BlockActivations {
  std::span<T> x;                  ///< (B, T, C) the block's input
  std::span<T> attn_in;            ///< (B, T, C) normalised x
  std::span<T> qkv;                ///< (B, T, (H + 2 K) D) after RoPE
  std::span<T> attn_out;           ///< (B, T, H D)
  std::span<T> mid;                ///< (B, T, C) x and what attention added
  std::span<T> mlp_in;             ///< (B, T, C) normalised mid
  std::span<T> gate_up;            ///< (B, T, 2 F); backward overwrites it with its gradient
  std::span<T> swiglu;             ///< (B, T, F)
  std::span<Real<T>> attn_rms;     ///< (B, T) 1 / rms of x
  std::span<Real<T>> log_sum_exp;  ///< (B, H, T)
  std::span<Real<T>> mlp_rms;      ///< (B, T) 1 / rms of mid
};

/// All but x, which outlives the others if blocks are recomputed.
template <class T>
[[nodiscard]] BlockActivations<T> lay_out_block(Dims const& dims, Slab& slab);

/// What no block needs beyond its own forward or backward.
template <class T>
struct BlockScratch {
  std::span<T> branch;  ///< (B, T, C) what attention or the MLP adds to x; in backward its gradient
  std::span<T> d_swiglu;    ///< (B, T, F)
  std::span<T> d_attn_out;  ///< (B, T, H D)
  std::span<T> d_qkv;       ///< (B, T, (H + 2 K) D)
};

template <class T>
[[nodiscard]] BlockScratch<T> lay_out_scratch(Dims const& dims, Slab& slab);

/// cos and sin of every position's angles.
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
        BlockScratch<T> const& scratch)
      : dims_{dims}, stream_{stream}, rope_{rope}, scratch_{scratch} {}

  /// a.x += delta (the MLP of the block before; empty before the first block and in recomputation),
  /// then everything up to the MLP's last product. `delta` may be scratch.branch.
  void forward(BlockTensors<T const> const& w, std::span<T const> delta,
               BlockActivations<T> const& a) const;
  /// The last product: leaves in scratch.branch what the MLP adds to a.mid.
  void forward_down(BlockTensors<T const> const& w, BlockActivations<T> const& a) const;
  /// dx (B, T, C) comes as the gradient of the block's output and leaves as that of its input.
  /// dw is overwritten.
  void backward(BlockTensors<T const> const& w, BlockActivations<T> const& a, std::span<T> dx,
                BlockTensors<T> const& dw) const;

 private:
  void backward_mlp(BlockTensors<T const> const& w, BlockActivations<T> const& a, std::span<T> dx,
                    BlockTensors<T> const& dw) const;
  void backward_attention(BlockTensors<T const> const& w, BlockActivations<T> const& a,
                          std::span<T> dx, BlockTensors<T> const& dw) const;

  Dims dims_;
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

}  // namespace offstage::model
