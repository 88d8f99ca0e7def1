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
  std::string_view hint;  ///< kind of value: N, X, SIZE, PATH or the words to choose from
  /// Value without one given; for a derived key what it derives from, in words; nullopt: required.
  std::optional<std::string_view> fallback;
  std::string_view help;  ///< one line
  /// Reads the text and sets the field. Errors: UsageError without the key's name.
  void (*set)(RunConfig&, std::string const&);
  /// Default that depends on keys which do not derive themselves; null: the fallback.
  std::string (*derive)(RunConfig const&) = nullptr;
  /// May be given several times in one source; `set` is called for each in order and adds, and an
  /// empty text clears.
  bool repeatable = false;

  [[nodiscard]] bool required() const { return !fallback; }
  [[nodiscard]] bool is_path() const { return hint.find("PATH") != std::string_view::npos; }
  /// Only a key whose default is empty may be.
  [[nodiscard]] bool may_be_empty() const { return fallback == std::string_view{}; }
};

/// Every key that a run knows, section by section. Nothing else lists keys.
[[nodiscard]] std::span<Key const> key_table();

/// Null if there is none of this name.
[[nodiscard]] Key const* find_key(std::string_view name);

}  // namespace offstage::config
