#include "kernels/pointwise/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {
namespace {

double scaled(double frequency, Llama3Scaling const& scaling) {
  auto const [factor, low, high, original_sequence] = scaling;
  double const turns = original_sequence * frequency / (2 * std::numbers::pi);
  double const kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return (1 - kept) * frequency / factor + kept * frequency;
}

}  // namespace

void rope_tables(std::int64_t sequence, std::int64_t head_dim, double theta,
                 std::span<double> cosine, std::span<double> sine,
                 std::optional<Llama3Scaling> const& scaling) {
  require(sequence > 0 && head_dim > 0 && head_dim % 2 == 0 && theta > 0,
          "rope_tables: no such shape (head_dim must be even)");
  std::int64_t const half = head_dim / 2;
  require(has_length(cosine, sequence * half) && has_length(sine, sequence * half),
          "rope_tables: a view has the wrong length");
  require(!scaling || (scaling->factor > 0 && scaling->low_frequency > 0 &&
                       scaling->high_frequency > scaling->low_frequency),
          "rope_tables: no such scaling");
  for (std::int64_t i = 0; i < half; ++i) {
    double const plain =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double const frequency = scaling ? scaled(plain, *scaling) : plain;
    for (std::int64_t t = 0; t < sequence; ++t) {
      double const angle = static_cast<double>(t) * frequency;
      cosine[t * half + i] = std::cos(angle);
      sine[t * half + i] = std::sin(angle);
    }
  }
}

namespace ref {

template <class T>
void rope(Rope<T> const& a) {
  check(a);
  std::int64_t const half = a.head_dim / 2;
  std::int64_t const row_heads = a.heads + 2 * a.kv_heads;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const angles = (r % a.sequence) * half;
    for (std::int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
      std::span<T> const head = a.qkv.subspan((r * row_heads + h) * a.head_dim, a.head_dim);
      for (std::int64_t i = 0; i < half; ++i) {
        Real<T> const c = a.cosine[angles + i];
        Real<T> const s = a.inverse ? -a.sine[angles + i] : a.sine[angles + i];
        Real<T> const first = load(head[i]);
        Real<T> const second = load(head[i + half]);
        head[i] = store<T>(first * c - second * s);
        head[i + half] = store<T>(second * c + first * s);
      }
    }
  }
}

template void rope(Rope<double> const&);
template void rope(Rope<float> const&);
template void rope(Rope<bfloat16> const&);
template void rope(Rope<float16> const&);

}  // namespace ref
}  // namespace offstage::kernels
