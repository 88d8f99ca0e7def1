#pragma once

#include <string>
#include <string_view>

namespace offstage::pack {

/// The line with null in place of NaN, Infinity and -Infinity outside of texts: Python's json
/// writes them, and JSON has none. It is `line`, or a view of `changed`.
[[nodiscard]] std::string_view with_nulls(std::string_view line, std::string& changed);

}  // namespace offstage::pack
