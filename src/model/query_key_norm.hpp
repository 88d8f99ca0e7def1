#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "model/tensors.hpp"

namespace offstage::model {

/// 1 / rms of the elements that are normalised together; empty in a model without these norms.
template <class T>
struct QueryKeyStatistics {
  std::span<Real<T>> query;  ///< (B, T, H), or (B, T) for all heads together
  std::span<Real<T>> key;    ///< (B, T, K), or (B, T)
};

/// RMSNorm of queries and keys (state::QkNorm) in packed rows (B T, (H + 2 K) D).
struct QueryKeyNorm {
  Dims dims;

  /// Number of statistics of queries and of keys.
  [[nodiscard]] std::int64_t query_rows() const { return there() ? queries().rows : 0; }
  [[nodiscard]] std::int64_t key_rows() const { return there() ? keys().rows : 0; }
  [[nodiscard]] bool there() const { return dims.qk_norm != state::QkNorm::none; }

  template <class T>
  [[nodiscard]] QueryKeyStatistics<T> lay_out(Slab& slab) const {
    auto const query = slab.take<Real<T>>(query_rows());
    return {.query = query, .key = slab.take<Real<T>>(key_rows())};
  }

  /// Writes `qkv` with normalised queries and keys to `out`.
  template <class T>
  void forward(device::Stream& stream, std::span<T const> qkv, AttentionTensors<T const> const& w,
               std::span<T> out, QueryKeyStatistics<T> const& statistics) const {
    stream.copy(out.data(), qkv.data(), static_cast<Bytes>(out.size_bytes()),
                device::Copy::device_to_device);
    auto const normalise = [&](Heads const& part, NormTensors<T const> const& norm,
                               std::span<Real<T>> inverse) {
      kernels::rmsnorm_forward<T>(stream, {.x = part.of(qkv),
                                           .delta = {},
                                           .sum = {},
                                           .weight = norm.weight,
                                           .y = part.of(out),
                                           .inverse_rms = inverse,
                                           .rows = part.rows,
                                           .width = part.width,
                                           .epsilon = dims.epsilon,
                                           .places = part.places});
    };
    normalise(queries(), w.q_norm, statistics.query);
    normalise(keys(), w.k_norm, statistics.key);
  }

  /// On entry `d_qkv` is the gradient of forward's `out`, on return that of `qkv`. dw's norms are
  /// overwritten.
  template <class T>
  void backward(device::Stream& stream, std::span<T const> qkv, AttentionTensors<T const> const& w,
                QueryKeyStatistics<T> const& statistics, std::span<T> d_qkv,
                AttentionTensors<T> const& dw) const {
    auto const differentiate = [&](Heads const& part, NormTensors<T const> const& norm,
                                   std::span<Real<T>> inverse, NormTensors<T> const& d_norm) {
      kernels::rmsnorm_backward<T>(stream, {.x = part.of(qkv),
                                            .weight = norm.weight,
                                            .dy = part.of(std::span<T const>{d_qkv}),
                                            .inverse_rms = inverse,
                                            .dx = part.of(d_qkv),
                                            .d_weight = d_norm.weight,
                                            .rows = part.rows,
                                            .width = part.width,
                                            .add = false,
                                            .places = part.places});
    };
    differentiate(queries(), w.q_norm, statistics.query, dw.q_norm);
    differentiate(keys(), w.k_norm, statistics.key, dw.k_norm);
  }

 private:
  /// A part of packed rows, as rows of a norm.
  struct Heads {
    std::int64_t first;  ///< first element of the first row
    std::int64_t rows, width;
    kernels::RowPlaces places;

    template <class U>
    [[nodiscard]] std::span<U> of(std::span<U> qkv) const {
      return qkv.subspan(static_cast<std::size_t>(first),
                         static_cast<std::size_t>(places.extent(rows, width)));
    }
  };
  [[nodiscard]] Heads heads(std::int64_t first, std::int64_t count) const {
    if (dims.qk_norm == state::QkNorm::all) {
      return {first * dims.D, dims.rows(), count * dims.D, {1, dims.qkv()}};
    }
    return {first * dims.D, dims.rows() * count, dims.D, {count, dims.qkv()}};
  }
  [[nodiscard]] Heads queries() const { return heads(0, dims.H); }
  [[nodiscard]] Heads keys() const { return heads(dims.H, dims.K); }
};

}  // namespace offstage::model
