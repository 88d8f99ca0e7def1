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

/// In [0, 1), 53 bits.
double uniform(std::uint64_t seed, std::uint64_t position) {
  auto const words = philox(seed, sampling_stream, position);
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

}  // namespace

std::int32_t sample(std::span<float const> logits, Sampling const& sampling,
                    std::uint64_t position) {
  require(!logits.empty(), "sample: there are no logits");
  require_finite(logits);
  auto const best = std::ranges::max_element(logits);  // the first of equals
  if (sampling.temperature == 0.0) {
    return static_cast<std::int32_t>(best - logits.begin());
  }
  auto const ids = largest(
      logits, sampling.top_k > 0 ? static_cast<std::size_t>(sampling.top_k) : logits.size());
  std::vector<double> below(ids.size());  // sums of the weights up to each id's own
  double sum = 0.0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    double const distance = static_cast<double>(logits[static_cast<std::size_t>(ids[i])]) - *best;
    sum += std::exp(distance / sampling.temperature);
    below[i] = sum;
  }
  auto const chosen = std::ranges::upper_bound(below, uniform(sampling.seed, position) * sum);
  // Rounding may take the product up to the sum itself.
  auto const place = chosen == below.end() ? std::ranges::lower_bound(below, sum) : chosen;
  return ids[static_cast<std::size_t>(place - below.begin())];
}

}  // namespace offstage::generate
