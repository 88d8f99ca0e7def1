#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/run_config.hpp"

namespace offstage::config {

/// One key of the configuration, as `section.name`.
struct Key {
  std::string_view name;
  std::string_view hint;  ///< kind of value: N, X, SIZE, PATH, or the words to choose from
  /// Value of a key that is not given; for a derived key, in words, the keys from which it derives;
  /// nullopt: the key is required.
  std::optional<std::string_view> fallback;
  std::string_view help;  ///< one line
  /// Reads the text and sets the field. Errors: UsageError without the key's name.
  void (*set)(RunConfig&, std::string const&);
  /// Computes a default from keys which do not derive themselves; null: the default is `fallback`.
  std::string (*derive)(RunConfig const&) = nullptr;
  /// The key may be given several times in one source. `set` is called for each value in order, and
  /// adds it; an empty text clears the list.
  bool repeatable = false;

  [[nodiscard]] bool required() const { return !fallback; }
  [[nodiscard]] bool is_path() const { return hint.find("PATH") != std::string_view::npos; }
  /// Returns whether the value may be empty: only if the default is.
  [[nodiscard]] bool may_be_empty() const { return fallback == std::string_view{}; }
};

/// Every key that a run knows, section by section. There is no other list of keys.
[[nodiscard]] std::span<Key const> key_table();

/// The key of this name; null if there is none.
[[nodiscard]] Key const* find_key(std::string_view name);

}  // namespace offstage::config
