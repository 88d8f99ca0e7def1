#pragma once

#include <string>
#include <string_view>

namespace offstage {

/// Returns whether a config file can hold the value: it has no line break, and no other control
/// character than tabs.
[[nodiscard]] bool fits_a_line(std::string_view value);

/// A value as a line of a config file has it: in quotes if its blanks, its quotes or a `;` in it
/// would be read as something else. The value fits a line.
[[nodiscard]] std::string quoted(std::string const& value);

}  // namespace offstage
