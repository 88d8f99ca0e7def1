#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokens/model.hpp"
#include "tokens/normalizer.hpp"
#include "tokens/trie.hpp"

namespace offstage::tokens {

/// The field "added_tokens" of a tokenizer.json: tokens that are found in a text before the model
/// sees it.
/// Threads: any.
class AddedTokens {
 public:
  struct Token {
    std::string text;
    std::int32_t number{};
    bool special{};  ///< stands for no text: left out when tokens become text
    bool single_word{};
    bool takes_left{};   ///< with the spaces before it
    bool takes_right{};  ///< with the spaces behind it
    bool normalized{};   ///< found in the normalised text
  };

  /// Errors: DataError naming file, field and value, also for a number that the `tokenizers`
  ///         package would not give the token.
  AddedTokens(Fields& file, Model const& model, Normalizer const& normalizer);

  /// Hands the parts of a text to `sink`, in order: those between tokens with token -1, and tokens.
  /// The longest of the tokens that begin at the same place is taken. `normalized` says which ones
  /// are looked for.
  void split(std::string_view text, bool normalized,
             std::function<void(std::string_view part, std::int32_t token)> const& sink) const;

  [[nodiscard]] std::map<std::int32_t, Token> const& by_number() const noexcept { return tokens_; }
  [[nodiscard]] Token const* find(std::string_view text) const;

 private:
  struct Finder {
    Trie trie;
    bool any{};
    std::array<bool, 256> first{};  ///< bytes that a token begins with
  };
  struct Match {
    std::size_t begin{};
    std::size_t end{};
    std::int32_t token = -1;
  };
  [[nodiscard]] Match next(Finder const& finder, std::string_view text, std::size_t from) const;

  std::map<std::int32_t, Token> tokens_;
  std::map<std::string, std::int32_t, std::less<>> numbers_;  ///< numbers by texts
  Finder raw_;
  Finder normalized_;
};

}  // namespace offstage::tokens
