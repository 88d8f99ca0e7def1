#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"

namespace offstage::model {

template <class T>
struct HeadActivations {
  std::span<T> x;                   ///< (B, T, C) the last block's output
  std::span<T> normed;              ///< (B, T, C)
  std::span<T> d_logits;            ///< (B, T, V), all that is kept of the logits
  std::span<Real<T>> rms;           ///< (B, T) 1 / rms of x
  std::span<Real<T>> logits;        ///< (rows at a time, V)
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
      : dims_{dims}, stream_{stream}, a_{activations} {}

  /// x += delta, then the loss of each row; also d_logits of the mean loss times `loss_scale` unless
  /// that is 0. The logits exist for a few rows at a time only.
  void forward(std::span<T const> norm, std::span<T const> w, std::span<T const> delta,
               double loss_scale) const;
  /// dx (B, T, C) is overwritten with the gradient of x; d_norm (C), dw (V, C) and `scratch` (B, T,
  /// C) are overwritten.
  void backward(std::span<T const> norm, std::span<T const> w, std::span<T> dx, std::span<T> d_norm,
                std::span<T> dw, std::span<T> scratch) const;

 private:
  Dims dims_;
  device::Stream& stream_;
  HeadActivations<T> a_;
};

}  // namespace offstage::model
