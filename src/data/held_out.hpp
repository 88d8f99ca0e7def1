#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_file.hpp"

namespace offstage::data {

/// The tokens at the end of every file that are held out of training, and which side of them a
/// Dataset takes.
struct HeldOut {
  double part = 0.0;  ///< part of a file's tokens, below 1; 0: nothing is held out
  bool is_taken{};    ///< takes what is held out, and leaves the rest

  [[nodiscard]] bool any() const noexcept { return part > 0.0; }
  [[nodiscard]] bool takes_end() const noexcept { return any() && is_taken; }
  /// "the last 2 %", "all but the last 2 %"; empty: nothing is held out.
  [[nodiscard]] std::string text() const;
};

/// The part that "N%" says, or "N %"; nullopt: the text is no number with a %. Errors: UsageError
/// without the key's name: a part that leaves nothing on one side.
[[nodiscard]] std::optional<double> parse_held_out(std::string_view text);

/// The token at which the held-out end of a file begins: the begin of a document, or the file's
/// end, whichever is nearest to `part`, so that no document is on both sides; the first document
/// stays in training. Without documents it is that token itself. It does not depend on windows.
[[nodiscard]] std::int64_t begin_of_held_out(
    std::int64_t tokens, double part, std::optional<std::vector<std::int64_t>> const& documents);

/// The same where `separator` ends documents. Reads no further than to the begin that it returns.
[[nodiscard]] std::int64_t begin_of_held_out(TokenFile const& file, double part,
                                             std::int32_t separator);

/// The tokens of a file from `first` on, `count` of them, as a file of their own. `documents` are
/// the begins in the whole file, nullopt if nothing tells them apart; they are not kept.
[[nodiscard]] std::unique_ptr<TokenFile> section_of(
    std::unique_ptr<TokenFile> file, std::int64_t first, std::int64_t count,
    std::optional<std::vector<std::int64_t>> const& documents);

}  // namespace offstage::data
