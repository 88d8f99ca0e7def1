#include "plan/split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

/// Beyond these one path would take everything or nothing; so narrow, quotients of weights hold.
constexpr double least_weight = 1e-6;
constexpr double largest_weight = 1e6;

double parse_weight(std::string const& text, std::string_view part) {
  double weight{};
  auto const* const end = part.data() + part.size();
  auto const [rest, code] = std::from_chars(part.data(), end, weight);
  if (code == std::errc::invalid_argument || rest != end) {
    throw UsageError{
        fmt::format("'{}' is neither auto nor paper nor one weight per path such as 2:1", text)};
  }
  // Written so that NaN does not pass.
  bool const in_range = code == std::errc{} &&
                        (weight == 0.0 || (weight >= least_weight && weight <= largest_weight));
  if (!in_range) {
    throw UsageError{fmt::format("the weight '{}' of '{}' must be 0 or from {} to {}", part, text,
                                 least_weight, largest_weight)};
  }
  return weight;
}

void require_positive(std::span<PathRate const> rates) {
  require(std::ranges::all_of(
              rates, [](PathRate const& rate) { return rate.read > 0.0 && rate.write > 0.0; }),
          "the rates of storage paths are positive");
}

/// Extents that the path reads and writes again per second, times their size.
double path_speed(SplitRule rule, PathRate const& rate) {
  if (rule == SplitRule::paper || rate.full_duplex) {
    return std::min(rate.read, rate.write);
  }
  return 1.0 / (1.0 / rate.read + 1.0 / rate.write);
}

}  // namespace

SplitPolicy parse_split(std::string const& text) {
  if (text == "auto") {
    return {.rule = SplitRule::automatic, .weights = {}};
  }
  if (text == "paper") {
    return {.rule = SplitRule::paper, .weights = {}};
  }
  SplitPolicy policy{.rule = SplitRule::fixed, .weights = {}};
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const end = std::min(text.find(':', begin), text.size());
    policy.weights.push_back(parse_weight(text, std::string_view{text}.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (std::ranges::all_of(policy.weights, [](double weight) { return weight == 0.0; })) {
    throw UsageError{fmt::format("'{}' gives no path anything; one weight must be above 0", text)};
  }
  return policy;
}

std::vector<double> split_weights(SplitPolicy const& policy, std::span<PathRate const> rates) {
  std::vector<double> weights;
  if (policy.rule == SplitRule::fixed) {
    require(policy.weights.size() == rates.size(), "tiers.split has one weight per storage path");
    weights = policy.weights;
  } else {
    require_positive(rates);
    for (PathRate const& rate : rates) {
      weights.push_back(path_speed(policy.rule, rate));
    }
  }
  double const sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  require(weights.empty() || sum > 0.0, "the weights of storage paths are not all 0");
  for (double& weight : weights) {
    weight /= sum;
  }
  return weights;
}

std::size_t next_path(std::span<double const> weights, std::span<std::int64_t const> counts,
                      std::vector<bool> const& open) {
  require(weights.size() == counts.size() && weights.size() == open.size(),
          "weights, counts and open describe the same paths");
  bool any_weight = false;
  for (std::size_t path = 0; path < weights.size(); ++path) {
    any_weight = any_weight || (open[path] && weights[path] > 0.0);
  }
  std::size_t best = weights.size();
  double best_fill{};
  for (std::size_t path = 0; path < weights.size(); ++path) {
    double const weight = any_weight ? weights[path] : 1.0;
    if (!open[path] || !(weight > 0.0)) {
      continue;
    }
    double const fill = static_cast<double>(counts[path] + 1) / weight;
    if (best == weights.size() || fill < best_fill) {
      best = path;
      best_fill = fill;
    }
  }
  return best;
}

// By duality of linear programmes. Give a byte read and a byte written prices: no path earns more per
// second than h(prices), so the whole takes at least (its worth) / h. The largest such bound is reached;
// it lies where reads alone or writes alone have a price, or where a half-duplex path earns the same
// with both.
Seconds bandwidth_bound(Bytes read_bytes, Bytes write_bytes, std::span<PathRate const> rates) {
  if (read_bytes <= 0 && write_bytes <= 0) {
    return Seconds{};
  }
  require(!rates.empty(), "what is moved has a storage path");
  require_positive(rates);
  double bound = 0.0;
  auto const hold_against = [&](double read_price, double write_price) {
    double earned = 0.0;
    for (PathRate const& rate : rates) {
      double const reading = read_price * rate.read;
      double const writing = write_price * rate.write;
      earned += rate.full_duplex ? reading + writing : std::max(reading, writing);
    }
    double const worth = read_price * static_cast<double>(read_bytes) +
                         write_price * static_cast<double>(write_bytes);
    bound = std::max(bound, worth / earned);
  };
  hold_against(1.0, 0.0);
  hold_against(0.0, 1.0);
  for (PathRate const& rate : rates) {
    if (!rate.full_duplex) {
      hold_against(1.0 / rate.read, 1.0 / rate.write);
    }
  }
  return Seconds{bound};
}

}  // namespace offstage::plan
