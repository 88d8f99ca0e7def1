#include "model/head.hpp"

#include <algorithm>

#include "cross_entropy.hpp"
#include "model/linear.hpp"
#include "rmsnorm.hpp"

namespace offstage::model {
namespace {

/// Enough rows for a product at full speed, few enough that FP32 logits stay small.
constexpr std::int64_t rows_at_a_time = 256;

template <class U>
std::span<U> rows_of(std::span<U> all, std::int64_t first, std::int64_t rows, std::int64_t width) {
  return all.subspan(static_cast<std::size_t>(first * width),
                     static_cast<std::size_t>(rows * width));
}

}  // namespace

template <class T>
HeadActivations<T> lay_out_head(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  return {.x = slab.take<T>(rows * dims.C),
          .normed = slab.take<T>(rows * dims.C),
          .d_logits = slab.take<T>(rows * dims.V),
          .rms = slab.take<Real<T>>(rows),
          .logits = slab.take<Real<T>>(std::min(rows, rows_at_a_time) * dims.V),
          .loss = slab.take<double>(rows),
          .targets = slab.take<std::int32_t>(rows)};
}

template <class T>
void Head<T>::forward(std::span<T const> norm, std::span<T const> w, std::span<T const> delta,
                      double loss_scale) const {
  std::int64_t const C = dims_.C;
  std::int64_t const V = dims_.V;
  kernels::rmsnorm_forward<T>(stream_, {.x = a_.x,
                                        .delta = delta,
                                        .weight = norm,
                                        .y = a_.normed,
                                        .inverse_rms = a_.rms,
                                        .rows = dims_.rows(),
                                        .width = C,
                                        .epsilon = dims_.epsilon});
  for (std::int64_t first = 0; first < dims_.rows(); first += rows_at_a_time) {
    std::int64_t const rows = std::min(rows_at_a_time, dims_.rows() - first);
    std::span<T const> const normed = rows_of(a_.normed, first, rows, C);
    auto const logits = rows_of(a_.logits, 0, rows, V);
    Linear{rows, C, V}.forward<T>(stream_, normed, w, logits);
    kernels::cross_entropy<T>(
        stream_,
        {.logits = logits,
         .targets = rows_of(a_.targets, first, rows, 1),
         .loss = rows_of(a_.loss, first, rows, 1),
         .d_logits = loss_scale != 0.0 ? rows_of(a_.d_logits, first, rows, V) : std::span<T>{},
         .rows = rows,
         .vocab = V,
         .gradient_scale = loss_scale / static_cast<double>(dims_.rows())});
  }
}

template <class T>
void Head<T>::backward(std::span<T const> norm, std::span<T const> w, std::span<T> dx,
                       std::span<T> d_norm, std::span<T> dw, std::span<T> scratch) const {
  Linear const logits{dims_.rows(), dims_.C, dims_.V};
  logits.backward_weight<T>(stream_, a_.d_logits, a_.normed, dw);
  logits.backward_input<T>(stream_, a_.d_logits, w, scratch);
  zero(stream_, dx);  // nothing flows past the final norm, and its backward adds
  kernels::rmsnorm_backward<T>(stream_, {.x = a_.x,
                                         .weight = norm,
                                         .dy = scratch,
                                         .inverse_rms = a_.rms,
                                         .dx = dx,
                                         .d_weight = d_norm,
                                         .rows = dims_.rows(),
                                         .width = dims_.C});
}

template class Head<float>;
template class Head<bfloat16>;
template class Head<double>;
template HeadActivations<float> lay_out_head(Dims const&, Slab&);
template HeadActivations<bfloat16> lay_out_head(Dims const&, Slab&);
template HeadActivations<double> lay_out_head(Dims const&, Slab&);

}  // namespace offstage::model
