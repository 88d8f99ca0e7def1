#include "plan/split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

/// Limits of weights. Beyond them one path would take everything or nothing; within them quotients
/// of weights do not overflow.
constexpr double least_weight = 1e-6;
constexpr double largest_weight = 1e6;

double parse_weight(std::string const& text, std::string_view part) {
  double weight{};
  auto const* const end = part.data() + part.size();
  auto const [rest, code] = std::from_chars(part.data(), end, weight);
  if (code == std::errc::invalid_argument || rest != end) {
    throw UsageError{fmt::format(
        "'{}' is neither auto nor paper nor first nor one weight per path such as 2:1", text)};
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
  require(std::ranges::all_of(rates, &PathRate::known), "the rates of storage paths are positive");
}

/// Bytes per second of extents that the path reads and writes again.
double path_speed(SplitRule rule, PathRate const& rate) {
  if (rule == SplitRule::paper || rate.full_duplex) {
    return std::min(rate.read, rate.write);
  }
  return 1.0 / (1.0 / rate.read + 1.0 / rate.write);
}

/// Weights of the open paths; equal ones if all of these are 0. Closed paths have 0.
std::vector<double> effective_weights(std::span<double const> weights,
                                      std::vector<bool> const& open) {
  bool any_weight = false;
  for (std::size_t path = 0; path < weights.size(); ++path) {
    any_weight = any_weight || (open[path] && weights[path] > 0.0);
  }
  std::vector<double> effective(weights.size());
  for (std::size_t path = 0; path < weights.size(); ++path) {
    if (open[path]) {
      effective[path] = any_weight ? std::max(0.0, weights[path]) : 1.0;
    }
  }
  return effective;
}

/// The path that would be least full with one extent more, of those with a weight; the number of
/// paths if none has a weight.
std::size_t emptiest(std::span<double const> weights, std::span<std::int64_t const> counts) {
  std::size_t best = weights.size();
  double best_fill{};
  for (std::size_t path = 0; path < weights.size(); ++path) {
    if (!(weights[path] > 0.0)) {
      continue;
    }
    double const fill = static_cast<double>(counts[path] + 1) / weights[path];
    if (best == weights.size() || fill < best_fill) {
      best = path;
      best_fill = fill;
    }
  }
  return best;
}

/// The number of this rank's extents that each path should have with one more than `counts`. It is
/// the rank's part of the extents that all ranks together would place. Sums over the paths are
/// rounded at a point that is the rank's own, so that the ranks' parts add up to the whole, and the
/// paths' parts to the rank's extents.
std::vector<std::int64_t> quotas_of(std::span<double const> weights,
                                    std::span<std::int64_t const> counts, PathSharer sharer) {
  std::int64_t mine = 1;
  double weight_sum = 0.0;
  for (std::size_t path = 0; path < weights.size(); ++path) {
    mine += weights[path] > 0.0 ? counts[path] : 0;
    weight_sum += weights[path];
  }
  std::int64_t left = mine * sharer.ranks;
  // Placed one by one, extents would reach these numbers at least.
  std::vector<std::int64_t> whole(weights.size());
  for (std::size_t path = 0; path < weights.size() && weight_sum > 0.0; ++path) {
    whole[path] =
        std::min(left, static_cast<std::int64_t>(static_cast<double>(mine * sharer.ranks) *
                                                 (weights[path] / weight_sum)));
    left -= whole[path];
  }
  for (; left > 0 && weight_sum > 0.0; --left) {
    ++whole[emptiest(weights, whole)];
  }
  std::vector<std::int64_t> quotas(weights.size());
  std::int64_t sum = sharer.rank;
  for (std::size_t path = 0; path < weights.size(); ++path) {
    quotas[path] = (sum + whole[path]) / sharer.ranks - sum / sharer.ranks;
    sum += whole[path];
  }
  return quotas;
}

}  // namespace

SplitPolicy parse_split(std::string const& text) {
  if (text == "auto") {
    return {.rule = SplitRule::automatic, .weights = {}};
  }
  if (text == "paper") {
    return {.rule = SplitRule::paper, .weights = {}};
  }
  if (text == "first") {
    return {.rule = SplitRule::first, .weights = {}};
  }
  SplitPolicy policy{.rule = SplitRule::fixed, .weights = {}};
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const end = std::min(text.find(':', begin), text.size());
    policy.weights.push_back(parse_weight(text, std::string_view{text}.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (std::ranges::all_of(policy.weights, [](double weight) { return weight == 0.0; })) {
    throw UsageError{
        fmt::format("'{}' gives no path any extents; one weight must be above 0", text)};
  }
  return policy;
}

std::vector<double> split_weights(SplitPolicy const& policy, std::span<PathRate const> rates) {
  std::vector<double> weights;
  if (rates.empty()) {
    return weights;
  }
  if (policy.rule == SplitRule::fixed) {
    require(policy.weights.size() == rates.size(), "tiers.split has one weight per storage path");
    weights = policy.weights;
  } else if (policy.rule == SplitRule::first) {
    weights.resize(rates.size());
    std::fill_n(weights.begin(), std::min<std::size_t>(1, rates.size()), 1.0);
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

bool needs_rates(SplitPolicy const& policy) {
  return policy.rule == SplitRule::automatic || policy.rule == SplitRule::paper;
}

bool takes_extents(SplitPolicy const& policy, std::size_t path) {
  switch (policy.rule) {
    case SplitRule::first:
      return path == 0;
    case SplitRule::fixed:
      return policy.weights.at(path) > 0.0;
    case SplitRule::automatic:
    case SplitRule::paper:
      break;
  }
  return true;
}

std::size_t next_path(std::span<double const> weights, std::span<std::int64_t const> counts,
                      std::vector<bool> const& open, PathSharer sharer) {
  require(weights.size() == counts.size() && weights.size() == open.size(),
          "weights, counts and open describe the same paths");
  require(sharer.rank >= 0 && sharer.rank < sharer.ranks, "a sharer is one of the ranks");
  auto const effective = effective_weights(weights, open);
  if (sharer.ranks == 1) {
    return emptiest(effective, counts);
  }
  auto const quotas = quotas_of(effective, counts, sharer);
  std::vector<double> below = effective;
  for (std::size_t path = 0; path < below.size(); ++path) {
    below[path] = counts[path] < quotas[path] ? below[path] : 0.0;
  }
  return emptiest(below, counts);
}

Seconds bandwidth_bound(Bytes read_bytes, Bytes write_bytes, std::span<PathRate const> rates) {
  if (read_bytes <= 0 && write_bytes <= 0) {
    return Seconds{};
  }
  require(!rates.empty(), "what is moved has a storage path");
  require_positive(rates);
  // Part of the whole that each path could do per second by itself; the parts add up.
  double speed = 0.0;
  for (PathRate const& rate : rates) {
    double const reading = static_cast<double>(read_bytes) / rate.read;
    double const writing = static_cast<double>(write_bytes) / rate.write;
    speed += 1.0 / (rate.full_duplex ? std::max(reading, writing) : reading + writing);
  }
  return Seconds{1.0 / speed};
}

}  // namespace offstage::plan
