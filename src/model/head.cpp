#include "model/head.hpp"

#include <algorithm>

#include "kernels/tokens/cross_entropy.hpp"
#include "model/linear.hpp"

namespace offstage::model {
namespace {

template <class U>
std::span<U> rows_of(std::span<U> all, std::int64_t first, std::int64_t rows, std::int64_t width) {
  return all.subspan(static_cast<std::size_t>(first * width),
                     static_cast<std::size_t>(rows * width));
}

/// The product with the vocabulary: its matrix is (V, C) in every family.
Linear vocabulary(Dims const& dims, std::int64_t rows) {
  return {rows, dims.C, dims.V, WeightLayout::out_in, dims.logit_pitch()};
}

}  // namespace

template <class T>
HeadActivations<T> lay_out_head(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  return {.x = slab.take<T>(rows * dims.C),
          .normed = slab.take<T>(rows * dims.C),
          .d_logits = slab.take<T>(rows * dims.logit_pitch()),
          .norm = lay_out_statistics<T>(dims, slab),
          .logits = slab.take<Real<T>>(std::min(rows, dims.logit_rows) * dims.logit_pitch()),
          .loss = slab.take<double>(rows),
          .targets = slab.take<std::int32_t>(rows)};
}

template <class T>
std::span<Real<T>> Head<T>::multiply(HeadTensors<T const> const& w, std::int64_t first,
                                     std::int64_t rows) const {
  std::span<T const> const normed = rows_of(a_.normed, first, rows, dims_.C);
  auto const logits = rows_of(a_.logits, 0, rows, dims_.logit_pitch());
  vocabulary(dims_, rows).template multiply<T, Real<T>>(stream_, normed, w.matrix, logits);
  return logits;
}

template <class T>
void Head<T>::forward(HeadTensors<T const> const& w, Residual<T> const& residual,
                      double loss_scale) const {
  norm_.forward<T>(stream_, residual, a_.x, w.norm, a_.normed, a_.norm);
  for (std::int64_t first = 0; first < dims_.rows(); first += dims_.logit_rows) {
    std::int64_t const rows = std::min(dims_.logit_rows, dims_.rows() - first);
    auto const logits = multiply(w, first, rows);
    auto const d_logits =
        loss_scale != 0.0 ? rows_of(a_.d_logits, first, rows, dims_.logit_pitch()) : std::span<T>{};
    kernels::cross_entropy<T>(stream_,
                              {.logits = logits,
                               .targets = rows_of(a_.targets, first, rows, 1),
                               .loss = rows_of(a_.loss, first, rows, 1),
                               .d_logits = d_logits,
                               .rows = rows,
                               .vocab = dims_.V,
                               .gradient_scale = loss_scale / static_cast<double>(dims_.rows()),
                               .pitch = dims_.logit_pitch()});
  }
}

template <class T>
void Head<T>::logits(HeadTensors<T const> const& w, Residual<T> const& residual, std::int64_t first,
                     std::span<Real<T>> out) const {
  norm_.forward<T>(stream_, residual, a_.x, w.norm, a_.normed, a_.norm);
  auto const wanted = static_cast<std::int64_t>(out.size()) / dims_.V;
  for (std::int64_t done = 0; done < wanted; done += dims_.logit_rows) {
    std::int64_t const rows = std::min(dims_.logit_rows, wanted - done);
    auto const logits = multiply(w, first + done, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      auto const to = rows_of(out, done + row, 1, dims_.V);
      stream_.copy(to.data(), rows_of(logits, row, 1, dims_.logit_pitch()).data(),
                   static_cast<Bytes>(to.size_bytes()), device::Copy::device_to_host);
    }
  }
}

template <class T>
void Head<T>::backward(HeadTensors<T const> const& w, std::span<T> dx, HeadTensors<T> const& dw,
                       std::span<T> scratch) const {
  Linear const logits = vocabulary(dims_, dims_.rows());
  logits.backward_weight<T>(stream_, a_.d_logits, a_.normed, {dw.matrix, {}});
  logits.backward_input<T>(stream_, a_.d_logits, w.matrix, scratch);
  zero(stream_, dx);  // nothing flows past the final norm, and its backward adds
  norm_.backward<T>(stream_, a_.x, w.norm, scratch, a_.norm, dx, dw.norm);
}

template class Head<float>;
template class Head<bfloat16>;
template class Head<float16>;
template class Head<double>;
template HeadActivations<float> lay_out_head(Dims const&, Slab&);
template HeadActivations<bfloat16> lay_out_head(Dims const&, Slab&);
template HeadActivations<float16> lay_out_head(Dims const&, Slab&);
template HeadActivations<double> lay_out_head(Dims const&, Slab&);

}  // namespace offstage::model
