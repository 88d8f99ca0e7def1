#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/dims.hpp"
#include "model/norm.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"

namespace offstage::model {

/// Activations of the head. Rows of d_logits and logits are Dims::logit_pitch() apart. None of the
/// tensors is needed before or after the head runs.
template <class T>
struct HeadActivations {
  std::span<T> x;             ///< (B, T, C) the last block's output
  std::span<T> normed;        ///< (B, T, C)
  NormStatistics<T> norm;     ///< statistics of x
  std::span<Real<T>> logits;  ///< (min(B T, Dims::logit_rows), V)
  std::span<T> d_logits;      ///< (Dims::tile_rows(), V)
};

template <class T>
[[nodiscard]] HeadActivations<T> lay_out_head(Dims const& dims, Slab& slab);

/// Elements of HeadGradient::sum: V C if there are several tiles and T is narrower than the sum,
/// else 0.
template <class T>
[[nodiscard]] std::int64_t head_sum_elements(Dims const& dims);

/// Host memory that products on cores take beside the device's: the sums of the gradient of the
/// matrix (kernels::host::sum_bytes), and what Linear::widened_bytes says.
template <class T>
[[nodiscard]] Bytes head_sum_bytes(Dims const& dims);
template <class T>
[[nodiscard]] Bytes head_widened_bytes(Dims const& dims);

/// The rows of a micro-batch that the head reads and writes.
struct HeadRows {
  std::span<double> loss;           ///< (B, T) in nats
  std::span<std::int32_t> targets;  ///< (B, T)
};

/// Destinations of the head's gradients.
template <class T>
struct HeadGradient {
  std::span<T> dx;       ///< (B, T, C) gradient of the last block's output
  HeadTensors<T> dw;     ///< gradient of the head's own parameters, or of the table if it is tied
  std::span<T> scratch;  ///< (B, T, C)
  /// (V, C) the sum over tiles of the matrix's gradient, in head_sum_elements elements. Either it
  /// begins where dw.matrix does, and dw.norm may lie in its second half, or it shares no memory
  /// with dw.matrix.
  std::span<Real<T>> sum;
};

/// The final norm, the product with the vocabulary and the loss. All members enqueue on the stream
/// and return.
template <class T>
class Head {
 public:
  Head(Dims const& dims, device::Stream& stream, HeadActivations<T> const& activations,
       HeadRows const& rows)
      : dims_{dims},
        norm_{dims.family, dims.rows(), dims.C, dims.epsilon},
        stream_{stream},
        a_{activations},
        rows_{rows} {}

  /// Computes x, the residual's sum, then the loss of each row. The logits exist for a few rows at
  /// a time.
  void forward(HeadTensors<T const> const& w, Residual<T> const& residual) const;
  /// Computes the loss as forward does, and the gradient of the mean loss times `loss_scale`, tile
  /// by tile of rows in ascending order. All of `to` is overwritten. The residual may lie in
  /// to.scratch.
  /// Errors: PreconditionError: to.sum has another size or place.
  void forward_backward(HeadTensors<T const> const& w, Residual<T> const& residual,
                        double loss_scale, HeadGradient<T> const& to) const;
  /// Computes x as forward does, and the logits of out.size() / V rows from `first` on, which go to
  /// host memory.
  void logits(HeadTensors<T const> const& w, Residual<T> const& residual, std::int64_t first,
              std::span<Real<T>> out) const;

 private:
  struct Tile {
    std::int64_t first, rows;
  };
  /// The logits of these normed rows; they stay until the next call.
  [[nodiscard]] std::span<Real<T>> multiply(HeadTensors<T const> const& w, Tile const& tile) const;
  /// Computes the loss of these rows, and the gradient `d_logits` of the tile's rows unless that is
  /// empty.
  void lose(HeadTensors<T const> const& w, Tile const& tile, double gradient_scale,
            std::span<T> d_logits) const;
  /// Adds this tile's part to the gradient of the matrix, or to its sum.
  void add_to_matrix(Tile const& tile, std::span<T const> d_logits,
                     HeadGradient<T> const& to) const;
  /// Rounds the sum to the matrix's gradient.
  void round_sum(HeadGradient<T> const& to) const;

  Dims dims_;
  Norm norm_;
  device::Stream& stream_;
  HeadActivations<T> a_;
  HeadRows rows_;
};

}  // namespace offstage::model
