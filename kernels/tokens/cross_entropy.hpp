#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// The target of a row that takes no part: loss and gradient are zero, whatever its logits. Equal
/// to data::ignored_target.
constexpr std::int32_t ignored_target = -1;

/// lse[r] = log(sum_v exp(logits[r, v]))
/// loss[r] = lse[r] - logits[r, targets[r]]
/// d_logits[r, v] = gradient_scale * (softmax(logits[r])[v] * (1 + 2 z_loss lse[r]) - (v ==
/// targets[r])), rounded to T: the gradient of gradient_scale * (loss[r] + z_loss lse[r]^2), the
/// auxiliary loss of PaLM (Chowdhery et al., arXiv:2204.02311, section 5).
/// Beyond the range of float16 that is infinity: a loss scale that is too large shows. Whatever
/// lies between rows has no influence and stays as it is.
template <class T>
struct CrossEntropy {
  std::span<Real<T> const> logits;        ///< (rows, vocab), each row in `pitch` elements
  std::span<std::int32_t const> targets;  ///< (rows), each in [0, vocab) or ignored_target
  std::span<double> loss;                 ///< (rows), in nats
  std::span<T> d_logits;                  ///< as the logits, or empty: no gradient
  std::int64_t rows, vocab;
  double gradient_scale;
  std::int64_t pitch = 0;  ///< elements from one row to the next, in both arrays; 0: vocab
  double z_loss = 0.0;     ///< weight of the auxiliary loss

  /// Factor of a row's softmax in its gradient.
  [[nodiscard]] double pull(double log_sum_exp) const { return 1.0 + 2.0 * z_loss * log_sum_exp; }
  [[nodiscard]] std::int64_t stride() const { return pitch == 0 ? vocab : pitch; }
};

/// Memory, order, types, errors: as in rmsnorm.hpp. Also PreconditionError for a pitch of less than
/// a row and, by ref and host, for a target out of range: cuda cannot look at its arguments'
/// contents. cuda's bits depend on whether every row begins at a multiple of 16 bytes, where it is
/// faster.
namespace ref {
template <class T>
void cross_entropy(CrossEntropy<T> const&);
}
namespace host {
template <class T>
void cross_entropy(CrossEntropy<T> const&);
}
namespace cuda {
template <class T>
void cross_entropy(CrossEntropy<T> const&, CUstream_st* stream);
}  // namespace cuda
template <class T>
void cross_entropy(device::Stream&, CrossEntropy<T> const&);

}  // namespace offstage::kernels
