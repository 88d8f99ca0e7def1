#include "config/key_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/text.hpp"
#include "base/units.hpp"

namespace offstage::config {
namespace {

/// A rate below this is a slip.
constexpr double least_rate = 1e3;

double rate_in_range(std::string const& text, double rate, int most_exponent = 15) {
  if (rate != 0.0 && (rate < least_rate || rate > std::pow(10.0, most_exponent))) {
    throw UsageError{
        fmt::format("'{}' is no rate; it lies between 1k/s and 10^{}/s, or is 0: not known", text,
                    most_exponent)};
  }
  return rate;
}

std::string without_per_second(std::string const& text) {
  return text.ends_with("/s") ? text.substr(0, text.size() - 2) : text;
}

/// The whole number of "10k" or "1.5M"; nullopt if the text is none.
std::optional<std::int64_t> with_unit(std::string const& text) {
  constexpr std::string_view units = "kMGT";
  constexpr double most = 1e15;  // beyond it whole()'s own limit is the error
  auto const unit = text.back() == 'K' ? 0 : units.find(text.back());
  auto const* const end = text.data() + text.size() - 1;
  double mantissa{};
  auto const [rest, code] = std::from_chars(text.data(), end, mantissa, std::chars_format::fixed);
  if (unit == std::string_view::npos || code != std::errc{} || rest != end) {
    return std::nullopt;
  }
  double const count =
      std::clamp(mantissa * std::pow(1e3, static_cast<double>(unit + 1)), -most, most);
  return count == std::floor(count) ? std::optional{static_cast<std::int64_t>(count)}
                                    : std::nullopt;
}

}  // namespace

template <class T>
T whole(std::string const& text) {
  constexpr std::int64_t largest = sizeof(T) > 4 ? 1'000'000'000'000 : 1'000'000;
  std::int64_t value{};
  auto const* const end = text.data() + text.size();
  auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc{} && rest != end) {
    if (auto const scaled = with_unit(text)) {
      value = *scaled;
      rest = end;
    }
  }
  if (code == std::errc::invalid_argument || rest != end) {
    throw UsageError{
        fmt::format("'{}' is not a whole number; write for example 20000 or 20k", text)};
  }
  if (code != std::errc{} || value > largest || value < -largest) {
    throw UsageError{fmt::format("'{}' is too large; the limit is {}", text, largest)};
  }
  return static_cast<T>(value);
}

template std::int32_t whole(std::string const&);
template std::int64_t whole(std::string const&);

std::uint64_t seed(std::string const& text) {
  auto const value = number_in<std::uint64_t>(text);
  if (!value) {
    throw UsageError{fmt::format("'{}' is not a whole number from 0 to 2^64 - 1", text)};
  }
  return *value;
}

double real(std::string const& text) {
  auto const value = number_in<double>(text);
  if (!value || !std::isfinite(*value)) {
    throw UsageError{fmt::format("'{}' is not a number; write for example 0.1 or 3e-4", text)};
  }
  return *value;
}

bool truth(std::string const& text) {
  return choice<bool>(text, {{"true", true}, {"false", false}});
}

bool switched(std::string const& text) {
  return choice<bool>(text, {{"off", false}, {"on", true}});
}

std::string word_of_truth(std::string_view hint, std::string const& text) {
  using Words = std::array<std::string_view, 3>;
  auto const stands_in_hint = [hint](std::string_view word) {
    return fmt::format("|{}|", hint).find(fmt::format("|{}|", word)) != std::string::npos;
  };
  for (Words const& words : {Words{"true", "on", "yes"}, Words{"false", "off", "no"}}) {
    auto const* const same = std::ranges::find_if(words, stands_in_hint);
    if (std::ranges::find(words, text) != words.end() && same != words.end() &&
        !stands_in_hint(text)) {
      return std::string{*same};
    }
  }
  return text;
}

double bytes_rate(std::string const& text) {
  return rate_in_range(text, static_cast<double>(parse_bytes(without_per_second(text))));
}

double count_rate(std::string const& text) {
  return rate_in_range(text, static_cast<double>(parse_count(without_per_second(text))));
}

double flops_rate(std::string const& text) {
  return rate_in_range(text, static_cast<double>(parse_count(without_per_second(text))), 18);
}

}  // namespace offstage::config
