#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokens/fields.hpp"
#include "tokens/word_cache.hpp"

namespace offstage::tokens {

/// Tokens' texts and numbers.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// A field of the form {"text": number, ...}. Errors: DataError for numbers that are none, and
  /// for one that two texts have.
  Vocabulary(Fields& fields, char const* name);

  /// Sets a token's text. Of equal texts the last one's number is found.
  void put(std::string const& text, std::int32_t token);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// By number; nullopt for a number that no token has.
  [[nodiscard]] std::vector<std::optional<std::string>> const& texts() const noexcept {
    return texts_;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return static_cast<std::size_t>(hash_bytes(text));
    }
  };
  std::vector<std::optional<std::string>> texts_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> tokens_;
};

}  // namespace offstage::tokens
