#pragma once

#include <span>
#include <string>
#include <string_view>

namespace offstage {

/// The word of `known` (at least one) that takes the fewest insertions, deletions and replacements
/// to make of `word`; the first of equals.
[[nodiscard]] std::string nearest(std::string_view word, std::span<std::string const> known);

}  // namespace offstage
