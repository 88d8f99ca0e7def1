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

/// Rows of d_logits and logits are Dims::logit_pitch() apart.
template <class T>
struct HeadActivations {
  std::span<T> x;                   ///< (B, T, C) the last block's output
  std::span<T> normed;              ///< (B, T, C)
  std::span<T> d_logits;            ///< (B, T, V), all that is kept of the logits
  NormStatistics<T> norm;           ///< of x
  std::span<Real<T>> logits;        ///< (min(B T, Dims::logit_rows), V)
  std::span<double> loss;           ///< (B, T) in nats
  std::span<std::int32_t> targets;  ///< (B, T)
};

template <class T>
[[nodiscard]] HeadActivations<T> lay_out_head(Dims const& dims, Slab& slab);

/// The final norm, the product with the vocabulary and the loss. All members enqueue on the stream
/// and return.
template <class T>
class Head {
 public:
  Head(Dims const& dims, device::Stream& stream, HeadActivations<T> const& activations)
      : dims_{dims},
        norm_{dims.family, dims.rows(), dims.C, dims.epsilon},
        stream_{stream},
        a_{activations} {}

  /// x = the residual's sum, then the loss of each row; also d_logits of the mean loss times `loss_scale` unless
  /// that is 0. The logits exist for a few rows at a time only.
  void forward(HeadTensors<T const> const& w, Residual<T> const& residual, double loss_scale) const;
  /// Likewise x, and the logits, to host memory, of out.size() / V rows from `first` on.
  void logits(HeadTensors<T const> const& w, Residual<T> const& residual, std::int64_t first,
              std::span<Real<T>> out) const;
  /// dx (B, T, C) is overwritten with the gradient of x; dw and `scratch` (B, T, C) are overwritten.
  void backward(HeadTensors<T const> const& w, std::span<T> dx, HeadTensors<T> const& dw,
                std::span<T> scratch) const;

 private:
  /// The logits of `rows` normed rows from `first` on; they stay until the next call.
  [[nodiscard]] std::span<Real<T>> multiply(HeadTensors<T const> const& w, std::int64_t first,
                                            std::int64_t rows) const;

  Dims dims_;
  Norm norm_;
  device::Stream& stream_;
  HeadActivations<T> a_;
};

}  // namespace offstage::model
