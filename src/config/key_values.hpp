#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage::config {

// Readers of a key's value. Errors: UsageError without the key's name. It has the text and what
// would be right.

/// A whole number between -10^12 and 10^12, for std::int32_t and int between -10^6 and 10^6. The
/// limits are far beyond any use, and so far from the types' ends that sums and small products do
/// not overflow.
template <class T>
[[nodiscard]] T whole(std::string const& text);

/// A number from 0 to 2^64 - 1.
[[nodiscard]] std::uint64_t seed(std::string const& text);

/// A finite number.
[[nodiscard]] double real(std::string const& text);

/// The truth of `true` or `false`.
[[nodiscard]] bool truth(std::string const& text);
/// The truth of `on` or `off`.
[[nodiscard]] bool switched(std::string const& text);

/// The word of `hint` (`auto|on|off`) that means the same truth as the text: `true`, `on` and `yes`
/// are one, and so are `false`, `off` and `no`. The text itself if it is such a word, or none does.
[[nodiscard]] std::string word_of_truth(std::string_view hint, std::string const& text);

/// Bytes per second from 10^3 to 10^15, or 0: `25GB/s`, with or without `/s`.
[[nodiscard]] double bytes_rate(std::string const& text);
/// Parameters per second from 10^3 to 10^15, or 0: `1.9G`, with or without `/s`.
[[nodiscard]] double count_rate(std::string const& text);
/// Floating-point operations per second from 10^3 to 10^18, or 0: `400T`, with or without `/s`.
[[nodiscard]] double flops_rate(std::string const& text);

/// The value of one of several words.
template <class T>
[[nodiscard]] T choice(std::string const& text,
                       std::vector<std::pair<std::string_view, T>> const& words) {
  std::vector<std::string_view> names;
  for (auto const& [name, value] : words) {
    if (text == name) {
      return value;
    }
    names.push_back(name);
  }
  throw UsageError{names.size() == 1
                       ? fmt::format("'{}' is not known; use {}", text, names.front())
                       : fmt::format("'{}' is none of {}", text, fmt::join(names, ", "))};
}

/// The value whose name the text is, by name_of.
template <class T>
[[nodiscard]] T named(std::string const& text, std::initializer_list<T> values) {
  std::vector<std::pair<std::string_view, T>> words;
  for (T const value : values) {
    words.emplace_back(name_of(value), value);
  }
  return choice(text, words);
}

}  // namespace offstage::config
