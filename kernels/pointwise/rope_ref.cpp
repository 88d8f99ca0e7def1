#include "kernels/pointwise/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {
namespace {

/// theta^(-2 i / head_dim) as each kind of scaling has it.
struct Frequencies {
  std::int64_t head_dim;
  double theta;

  [[nodiscard]] double plain(std::int64_t i) const {
    return std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  [[nodiscard]] double scaled(std::int64_t i, std::monostate) const { return plain(i); }
  [[nodiscard]] double scaled(std::int64_t i, LinearScaling const& by) const {
    return plain(i) / by.factor;
  }
  [[nodiscard]] double scaled(std::int64_t i, Llama3Scaling const& by) const {
    auto const [factor, low, high, original_sequence] = by;
    double const turns = original_sequence * plain(i) / (2 * std::numbers::pi);
    return blend(i, factor, std::clamp((turns - low) / (high - low), 0.0, 1.0));
  }
  [[nodiscard]] double scaled(std::int64_t i, YarnScaling const& by) const {
    double const first = std::max(0.0, std::floor(number_of(by.fast, by)));
    double last = std::min(static_cast<double>(head_dim - 1), std::ceil(number_of(by.slow, by)));
    if (first == last) {
      last += 0.001;  // as transformers has it
    }
    double const ramp = (static_cast<double>(i) - first) / (last - first);
    return blend(i, by.factor, 1 - std::clamp(ramp, 0.0, 1.0));
  }

 private:
  /// Between stretched and `kept`.
  [[nodiscard]] double blend(std::int64_t i, double factor, double kept) const {
    return (1 - kept) * plain(i) / factor + kept * plain(i);
  }
  /// Number i, broken, of the frequency that turns so often within the original sequence.
  [[nodiscard]] double number_of(double turns, YarnScaling const& by) const {
    double const wavelength = by.original_sequence / turns;
    return static_cast<double>(head_dim) * std::log(wavelength / (2 * std::numbers::pi)) /
           (2 * std::log(theta));
  }
};

bool is_good(std::monostate) {
  return true;
}
bool is_good(LinearScaling const& by) {
  return by.factor > 0;
}
bool is_good(Llama3Scaling const& by) {
  return by.factor > 0 && by.low_frequency > 0 && by.high_frequency > by.low_frequency;
}
bool is_good(YarnScaling const& by) {
  return by.factor > 0 && by.slow > 0 && by.fast > by.slow && by.original_sequence > 0 &&
         by.attention_factor > 0;
}

}  // namespace

void rope_tables(std::int64_t sequence, std::int64_t head_dim, double theta,
                 std::span<double> cosine, std::span<double> sine, RopeScaling const& scaling) {
  auto const* const yarn = std::get_if<YarnScaling>(&scaling);
  require(sequence > 0 && head_dim > 0 && head_dim % 2 == 0 && theta > (yarn != nullptr ? 1 : 0),
          "rope_tables: no such shape (head_dim must be even)");
  std::int64_t const half = head_dim / 2;
  require(has_length(cosine, sequence * half) && has_length(sine, sequence * half),
          "rope_tables: a view has the wrong length");
  require(std::visit([](auto const& by) { return is_good(by); }, scaling),
          "rope_tables: no such scaling");
  Frequencies const frequencies{head_dim, theta};
  double const size = yarn != nullptr ? yarn->attention_factor : 1.0;
  for (std::int64_t i = 0; i < half; ++i) {
    double const frequency =
        std::visit([&](auto const& by) { return frequencies.scaled(i, by); }, scaling);
    for (std::int64_t t = 0; t < sequence; ++t) {
      double const angle = static_cast<double>(t) * frequency;
      cosine[t * half + i] = size * std::cos(angle);
      sine[t * half + i] = size * std::sin(angle);
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

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rope)

}  // namespace ref
}  // namespace offstage::kernels
