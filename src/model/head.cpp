#include "model/head.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <type_traits>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/optimizer/gradient.hpp"
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

bool lies_in_first_half_or_apart(std::span<std::byte const> matrix,
                                 std::span<std::byte const> sum) {
  std::less_equal<std::byte const*> const before;
  return sum.empty() || sum.data() == matrix.data() ||
         before(sum.data() + sum.size(), matrix.data()) ||
         before(matrix.data() + matrix.size(), sum.data());
}

/// True if sums of T are kept in T itself.
template <class T>
constexpr bool sums_in_place = std::is_same_v<T, Real<T>>;

}  // namespace

template <class T>
HeadActivations<T> lay_out_head(Dims const& dims, Slab& slab) {
  std::int64_t const rows = dims.rows();
  return {.x = slab.take<T>(rows * dims.C),
          .normed = slab.take<T>(rows * dims.C),
          .norm = lay_out_statistics<T>(dims, slab),
          .logits = slab.take<Real<T>>(std::min(rows, dims.logit_rows) * dims.logit_pitch()),
          .d_logits = slab.take<T>(dims.tile_rows() * dims.logit_pitch())};
}

template <class T>
std::int64_t head_sum_elements(Dims const& dims) {
  return !sums_in_place<T> && dims.tile_rows() < dims.rows() ? dims.V * dims.C : 0;
}

template <class T>
Bytes head_sum_bytes(Dims const& dims) {
  return head_sum_elements<T>(dims) == 0
             ? kernels::host::sum_bytes(
                   vocabulary(dims, dims.rows()).template weight_product<T, T>())
             : 0;
}

template <class T>
Bytes head_widened_bytes(Dims const& dims) {
  return vocabulary(dims, dims.tile_rows()).template widened_bytes<T>();
}

template <class T>
std::span<Real<T>> Head<T>::multiply(HeadTensors<T const> const& w, Tile const& tile) const {
  std::span<T const> const normed = rows_of(a_.normed, tile.first, tile.rows, dims_.C);
  auto const logits = rows_of(a_.logits, 0, tile.rows, dims_.logit_pitch());
  vocabulary(dims_, tile.rows).template multiply<T, Real<T>>(stream_, normed, w.matrix, logits);
  return logits;
}

template <class T>
void Head<T>::lose(HeadTensors<T const> const& w, Tile const& tile, double gradient_scale,
                   std::span<T> d_logits) const {
  for (std::int64_t done = 0; done < tile.rows; done += dims_.logit_rows) {
    Tile const part{tile.first + done, std::min(dims_.logit_rows, tile.rows - done)};
    auto const logits = multiply(w, part);
    kernels::cross_entropy<T>(
        stream_,
        {.logits = logits,
         .targets = rows_of(rows_.targets, part.first, part.rows, 1),
         .loss = rows_of(rows_.loss, part.first, part.rows, 1),
         .d_logits =
             d_logits.empty() ? d_logits : rows_of(d_logits, done, part.rows, dims_.logit_pitch()),
         .rows = part.rows,
         .vocab = dims_.V,
         .gradient_scale = gradient_scale,
         .pitch = dims_.logit_pitch(),
         .z_loss = dims_.z_loss});
  }
}

template <class T>
void Head<T>::forward(HeadTensors<T const> const& w, Residual<T> const& residual) const {
  norm_.forward<T>(stream_, residual, a_.x, w.norm, a_.normed, a_.norm);
  lose(w, {0, dims_.rows()}, 0.0, {});
}

template <class T>
void Head<T>::forward_backward(HeadTensors<T const> const& w, Residual<T> const& residual,
                               double loss_scale, HeadGradient<T> const& to) const {
  require(std::ssize(to.sum) == head_sum_elements<T>(dims_) &&
              lies_in_first_half_or_apart(std::as_bytes(to.dw.matrix), std::as_bytes(to.sum)),
          "Head: the sum over tiles begins where the matrix's gradient does, or lies elsewhere");
  norm_.forward<T>(stream_, residual, a_.x, w.norm, a_.normed, a_.norm);
  for (std::int64_t first = 0; first < dims_.rows(); first += dims_.tile_rows()) {
    Tile const tile{first, std::min(dims_.tile_rows(), dims_.rows() - first)};
    auto const d_logits = rows_of(a_.d_logits, 0, tile.rows, dims_.logit_pitch());
    lose(w, tile, loss_scale / static_cast<double>(dims_.rows()), d_logits);
    add_to_matrix(tile, d_logits, to);
    vocabulary(dims_, tile.rows)
        .template backward_input<T>(stream_, d_logits, w.matrix,
                                    rows_of(to.scratch, first, tile.rows, dims_.C));
  }
  round_sum(to);
  zero(stream_, to.dx);  // nothing flows past the final norm, and its backward adds
  norm_.backward<T>(stream_, a_.x, w.norm, to.scratch, a_.norm, to.dx, to.dw.norm);
}

template <class T>
void Head<T>::add_to_matrix(Tile const& tile, std::span<T const> d_logits,
                            HeadGradient<T> const& to) const {
  Linear const logits = vocabulary(dims_, tile.rows);
  std::span<T const> const normed = rows_of(a_.normed, tile.first, tile.rows, dims_.C);
  if constexpr (!sums_in_place<T>) {
    if (!to.sum.empty()) {
      logits.add_weight<T, Real<T>>(stream_, d_logits, normed, to.sum, tile.first > 0);
      return;
    }
  }
  logits.add_weight<T, T>(stream_, d_logits, normed, to.dw.matrix, tile.first > 0);
}

// Works in pieces, each as long as all before it. If both arrays begin at one place, a piece writes
// in front of the bytes that it reads. The first piece would write where it reads, and goes by way
// of d_logits.
template <class T>
void Head<T>::round_sum(HeadGradient<T> const& to) const {
  if constexpr (!sums_in_place<T>) {
    std::size_t const all = to.sum.size();
    std::size_t done = std::min(all, a_.d_logits.size());
    if (done > 0) {
      auto const first = a_.d_logits.first(done);
      kernels::convert(stream_, to.sum.first(done), first);
      stream_.copy(to.dw.matrix.data(), first.data(), static_cast<Bytes>(first.size_bytes()),
                   device::Copy::device_to_device);
    }
    while (done < all) {
      std::size_t const piece = std::min(done, all - done);
      kernels::convert(stream_, to.sum.subspan(done, piece), to.dw.matrix.subspan(done, piece));
      done += piece;
    }
  }
}

template <class T>
void Head<T>::logits(HeadTensors<T const> const& w, Residual<T> const& residual, std::int64_t first,
                     std::span<Real<T>> out) const {
  norm_.forward<T>(stream_, residual, a_.x, w.norm, a_.normed, a_.norm);
  auto const wanted = static_cast<std::int64_t>(out.size()) / dims_.V;
  for (std::int64_t done = 0; done < wanted; done += dims_.logit_rows) {
    std::int64_t const rows = std::min(dims_.logit_rows, wanted - done);
    auto const logits = multiply(w, {first + done, rows});
    for (std::int64_t row = 0; row < rows; ++row) {
      auto const to = rows_of(out, done + row, 1, dims_.V);
      stream_.copy(to.data(), rows_of(logits, row, 1, dims_.logit_pitch()).data(),
                   static_cast<Bytes>(to.size_bytes()), device::Copy::device_to_host);
    }
  }
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Head)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, head_sum_elements)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, head_sum_bytes)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, head_widened_bytes)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, lay_out_head)

}  // namespace offstage::model
