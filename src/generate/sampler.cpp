#include "generate/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"

namespace offstage::generate {
namespace {

// Keeps the numbers apart from those of initial weights and of the order of the data.
constexpr std::uint64_t sampling_stream = 0x73616D706C65;
// Tokens that are sorted first: the likeliest ones of a large vocabulary mostly suffice.
constexpr std::size_t first_sorted = 1024;

/// In [0, 1), 53 bits.
double uniform(std::uint64_t seed, std::uint64_t draw) {
  auto const words = philox(seed, sampling_stream, draw);
  std::uint64_t const bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

void require_finite(std::span<float const> logits) {
  auto const bad = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
  if (bad != logits.end()) {
    throw DataError{fmt::format(
        "the model's logit of token {} is {}: its parameters are not those of a trained model",
        bad - logits.begin(), *bad)};
  }
}

/// Ids of the `count` largest logits, ascending.
std::vector<std::int32_t> largest(std::span<float const> logits, std::size_t count) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (count < ids.size()) {
    auto const end = ids.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
      float const left = logits[static_cast<std::size_t>(a)];
      float const right = logits[static_cast<std::size_t>(b)];
      return left > right || (left == right && a < b);
    });
    ids.erase(end, ids.end());
    std::ranges::sort(ids);
  }
  return ids;
}

/// Leaves the likeliest of `ids`, as few as have together the share `top_p` of all; of equals the
/// lower ids. Ids stay ascending.
void keep_likeliest(std::vector<std::int32_t>& ids, std::vector<double>& weights, double top_p) {
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const is_likelier = [&](std::size_t a, std::size_t b) {
    return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
  };
  double const wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  std::size_t count = 0;
  std::size_t sorted = 0;
  while (count < order.size() && (count == 0 || sum < wanted)) {
    if (count == sorted) {
      sorted = std::min(order.size(), std::max(first_sorted, 4 * sorted));
      auto const begin = order.begin() + static_cast<std::ptrdiff_t>(count);
      auto const end = order.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::nth_element(begin, end, order.end(), is_likelier);
      std::sort(begin, end, is_likelier);
    }
    sum += weights[order[count++]];
  }
  order.resize(count);
  std::ranges::sort(order);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i] = ids[order[i]];
    weights[i] = weights[order[i]];
  }
  ids.resize(count);
  weights.resize(count);
}

}  // namespace

std::int32_t sample(std::span<float const> logits, Sampling const& sampling, std::uint64_t draw) {
  require(!logits.empty(), "sample: there are no logits");
  require_finite(logits);
  auto const best = std::ranges::max_element(logits);  // the first of equals
  if (sampling.temperature == 0.0) {
    return static_cast<std::int32_t>(best - logits.begin());
  }
  auto ids = largest(logits,
                     sampling.top_k > 0 ? static_cast<std::size_t>(sampling.top_k) : logits.size());
  std::vector<double> weights(ids.size());
  std::ranges::transform(ids, weights.begin(), [&](std::int32_t id) {
    double const distance = static_cast<double>(logits[static_cast<std::size_t>(id)]) - *best;
    return std::exp(distance / sampling.temperature);
  });
  if (sampling.top_p < 1.0) {
    keep_likeliest(ids, weights, sampling.top_p);
  }
  std::vector<double> below(ids.size());  // sums of the weights up to each id's own
  std::partial_sum(weights.begin(), weights.end(), below.begin());
  double const sum = below.back();
  auto const chosen = std::ranges::upper_bound(below, uniform(sampling.seed, draw) * sum);
  // Rounding may take the product up to the sum itself.
  auto const place = chosen == below.end() ? std::ranges::lower_bound(below, sum) : chosen;
  return ids[static_cast<std::size_t>(place - below.begin())];
}

}  // namespace offstage::generate
