#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace offstage {

/// The word of `known` (at least one) that takes the fewest changes to make of `word`; the first of
/// equals. A change is an insertion, a deletion, a replacement or a swap of neighbours.
[[nodiscard]] std::string nearest(std::string_view word, std::span<std::string const> known);

/// The same, but empty if it takes more than `most` changes.
[[nodiscard]] std::string nearest_within(std::string_view word, std::span<std::string const> known,
                                         std::size_t most);

/// The word of `known` (at least one) that may be meant by `word`: one that begins with it, or that
/// takes one change, or one for four letters. Dashes in front are no letters. Empty if there is
/// none.
[[nodiscard]] std::string near_word(std::string_view word, std::span<std::string const> known);

}  // namespace offstage
