#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "tokens/pattern.hpp"

namespace offstage::tokens {

/// Fate of the matches where a text is split.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Calls `next_match` for one match after another, ascending and not empty, and hands the parts of
/// the text to `sink`, in order, without empty ones. With `inverted`, matches and what lies between
/// them change places.
void split(std::string_view text, Behavior behavior, bool inverted,
           std::function<std::optional<Range>()> const& next_match,
           std::function<void(std::string_view)> const& sink);

}  // namespace offstage::tokens
