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

}  // namespace offstage
