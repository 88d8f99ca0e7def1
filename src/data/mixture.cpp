#include "data/mixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>

#include "base/error.hpp"
#include "base/random.hpp"

namespace offstage::data {
namespace {

constexpr double smallest_share = 1e-9;
constexpr std::int64_t smallest_block = 256;
constexpr int share_bits = 53;
constexpr std::uint64_t whole = std::uint64_t{1} << share_bits;
/// Keeps the order of files apart from the order within them, which takes the seed itself.
constexpr std::uint64_t mixture_key = 0x6D69787475726573;

// Standard C++ has no 128-bit product.
__extension__ using Wide = unsigned __int128;

double parse_weight(std::string_view text, std::string_view source) {
  double weight{};
  auto const* const end = text.data() + text.size();
  auto const [rest, code] = std::from_chars(text.data(), end, weight);
  if (code != std::errc{} || rest != end || !std::isfinite(weight) || weight <= 0.0) {
    throw UsageError{
        fmt::format("'{}' behind the colon of {} is no weight above 0; write for example {}:0.5, "
                    "and :1 behind a path that has a colon in it",
                    text, source, source.substr(0, source.size() - text.size() - 1))};
  }
  return weight;
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

}  // namespace

std::vector<Source> parse_sources(std::string const& text) {
  std::vector<Source> sources;
  std::vector<double> weights;
  std::string_view rest = text;
  for (bool more = true; more;) {
    auto const comma = rest.find(',');
    more = comma != std::string_view::npos;
    sources.push_back(parse_source(rest.substr(0, comma)));
    weights.push_back(sources.back().weight);
    if (sources.back().path.empty()) {
      throw UsageError{fmt::format(
          "path {} of '{}' is empty; write PATH or PATH:WEIGHT,PATH:WEIGHT", sources.size(), text)};
    }
    rest.remove_prefix(more ? comma + 1 : rest.size());
  }
  auto const shares = shares_of(weights);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] < smallest_share) {
      throw UsageError{fmt::format(
          "weight {} of {} is below a billionth of all weights together; leave the file out or "
          "give it more",
          weights[i], sources[i].path)};
    }
  }
  return sources;
}

Mixture::Mixture(std::span<double const> weights) {
  require(!weights.empty() && std::ranges::all_of(weights, [](double w) { return w > 0.0; }),
          "Mixture: weights must be above 0");
  auto const shares = shares_of(weights);
  double sum{};
  for (double const share : shares) {
    require(share >= smallest_share, "Mixture: a weight is too small");
    cumulative_.push_back(static_cast<std::uint64_t>(std::llround(std::ldexp(sum, share_bits))));
    sum = std::min(sum + share, 1.0);
  }
  cumulative_.push_back(whole);
  // Where a block holds one sample of a share, rounding both its ends down leaves 0 or more.
  block_ = smallest_block;
  for (std::size_t i = 0; i + 1 < cumulative_.size(); ++i) {
    auto const share = cumulative_[i + 1] - cumulative_[i];
    block_ = std::max(block_, static_cast<std::int64_t>((whole + share - 1) / share));
  }
}

std::int64_t Mixture::before(std::size_t file, std::int64_t blocks) const {
  auto const samples = static_cast<Wide>(blocks) * static_cast<Wide>(block_);
  return static_cast<std::int64_t>((samples * cumulative_[file]) >> share_bits);
}

Mixture::Pick Mixture::pick(std::int64_t sample, std::uint64_t seed) const {
  require(sample >= 0, "Mixture: negative sample");
  std::int64_t const blocks = sample / block_;
  auto place = static_cast<std::int64_t>(
      shuffled(static_cast<std::uint64_t>(sample % block_), static_cast<std::uint64_t>(block_),
               seed ^ mixture_key, static_cast<std::uint64_t>(blocks)));
  for (std::size_t file = 0;; ++file) {
    auto const given = before(file + 1, blocks) - before(file, blocks);
    auto const quota = before(file + 1, blocks + 1) - before(file, blocks + 1) - given;
    if (place < quota) {
      return {file, given + place};
    }
    place -= quota;
  }
}

}  // namespace offstage::data
