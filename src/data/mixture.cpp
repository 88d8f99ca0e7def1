#include "data/mixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/text.hpp"

namespace offstage::data {
namespace {

constexpr double smallest_share = 1e-9;
constexpr int share_bits = 53;
/// Keeps the order of files apart from the order within them, which takes the seed itself.
constexpr std::uint64_t mixture_key = 0x6D69787475726573;

// Standard C++ has no 128-bit product.
__extension__ using Wide = unsigned __int128;

double parse_weight(std::string_view text, std::string_view source) {
  auto const weight = number_in<double>(text);
  if (!weight || !std::isfinite(*weight) || *weight <= 0.0) {
    throw UsageError{
        fmt::format("'{}' behind the colon of {} is no weight above 0; write for example {}:0.5, "
                    "and :1 behind a path that has a colon in it",
                    text, source, source.substr(0, source.size() - text.size() - 1))};
  }
  return *weight;
}

Source parse_source(std::string_view text) {
  auto const colon = text.rfind(':');
  // A colon in a directory's name is no sign of a weight.
  bool const weighted = colon != std::string_view::npos && text.find('/', colon) == text.npos;
  Source source{.path = std::string{text.substr(0, weighted ? colon : text.size())}};
  if (weighted) {
    source.weight = parse_weight(text.substr(colon + 1), text);
  }
  return source;
}

/// Weights as parts of 1, safe from overflow.
std::vector<double> shares_of(std::span<double const> weights) {
  double const largest = std::ranges::max(weights);
  std::vector<double> shares;
  for (double const weight : weights) {
    shares.push_back(weight / largest);
  }
  double const sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) {
    share /= sum;
  }
  return shares;
}

/// `samples` times part / all, rounded to nearest. One sample more gives 0 or 1 more.
std::int64_t share_of(std::int64_t samples, std::uint64_t part, std::uint64_t all) {
  auto const twice = 2 * static_cast<Wide>(samples) * part + all;
  return static_cast<std::int64_t>(twice / (2 * static_cast<Wide>(all)));
}

/// Refuses weights of some sources alone, and one that is nothing beside the others.
void check_weights(std::vector<Source> const& sources) {
  std::vector<double> weights;
  for (Source const& source : sources) {
    if (source.weight.has_value() != sources.front().weight.has_value()) {
      throw UsageError{
          fmt::format("{} has a weight, and {} has none; give all of them weights, or none: then "
                      "files have shares by their sizes",
                      source.weight ? source.path : sources.front().path,
                      source.weight ? sources.front().path : source.path)};
    }
    weights.push_back(source.weight.value_or(1.0));
  }
  auto const shares = shares_of(weights);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (sources[i].weight && shares[i] < smallest_share) {
      throw UsageError{fmt::format(
          "weight {} of {} is below a billionth of all weights together; leave the file out or "
          "give it more",
          weights[i], sources[i].path)};
    }
  }
}

}  // namespace

std::vector<Source> parse_sources(std::string const& text) {
  std::vector<Source> sources;
  std::string_view rest = text;
  for (bool more = true; more;) {
    auto const comma = rest.find(',');
    more = comma != std::string_view::npos;
    sources.push_back(parse_source(trimmed(rest.substr(0, comma))));
    if (sources.back().path.empty()) {
      throw UsageError{fmt::format(
          "path {} of '{}' is empty; write PATH or PATH:WEIGHT,PATH:WEIGHT", sources.size(), text)};
    }
    rest.remove_prefix(more ? comma + 1 : rest.size());
  }
  check_weights(sources);
  return sources;
}

std::vector<Source> parse_sources_in_turn(std::string const& text) {
  auto sources = parse_sources(text);
  for (Source const& file : sources) {
    if (file.weight.value_or(1.0) != 1.0) {
      throw UsageError{
          fmt::format("the weight {} of {} has no effect, as validation reads one file after the "
                      "other; leave weights out",
                      *file.weight, file.path)};
    }
  }
  return sources;
}

Mixture::Mixture(std::span<double const> weights) : cumulative_{0} {
  require(!weights.empty() && std::ranges::all_of(weights, [](double w) { return w > 0.0; }),
          "Mixture: weights must be above 0");
  for (double const share : shares_of(weights)) {
    require(share >= smallest_share, "Mixture: a weight is too small");
    auto const units = std::llround(std::ldexp(share, share_bits));
    cumulative_.push_back(cumulative_.back() + static_cast<std::uint64_t>(units));
  }
}

Mixture::Pick Mixture::file_at(std::int64_t block_number, std::int64_t place) const {
  std::size_t first = 0;
  std::size_t last = cumulative_.size() - 1;
  // What the files from first to last gave before this block, and with it.
  std::int64_t before = block_number * block;
  std::int64_t after = before + block;
  while (last - first > 1) {
    std::size_t const middle = (first + last) / 2;
    auto const all = cumulative_[last] - cumulative_[first];
    auto const half = cumulative_[middle] - cumulative_[first];
    std::int64_t const half_before = share_of(before, half, all);
    std::int64_t const half_after = share_of(after, half, all);
    if (place < half_after - half_before) {
      last = middle;
      before = half_before;
      after = half_after;
    } else {
      place -= half_after - half_before;
      first = middle;
      before -= half_before;
      after -= half_after;
    }
  }
  return {first, before};
}

Mixture::Pick Mixture::pick(std::int64_t sample, std::uint64_t seed) const {
  require(sample >= 0, "Mixture: negative sample");
  std::int64_t const number = sample / block;
  auto const shuffled_pick = [&](std::int64_t i) {
    auto const place = shuffled(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(block),
                                seed ^ mixture_key, static_cast<std::uint64_t>(number));
    return file_at(number, static_cast<std::int64_t>(place));
  };
  Pick const pick = shuffled_pick(sample % block);
  // The file's samples of this block that come earlier; the shuffle shall not reorder them.
  std::int64_t earlier{};
  for (std::int64_t i = 0; i < sample % block; ++i) {
    earlier += shuffled_pick(i).file == pick.file ? 1 : 0;
  }
  return {pick.file, pick.index + earlier};
}

}  // namespace offstage::data
