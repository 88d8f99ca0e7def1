#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace offstage {

/// `text` for a person's eyes, as a part of one line that looks the same on every terminal. Bytes
/// that a terminal would act on become visible: control characters, DEL and bytes that are no UTF-8
/// as `\x1b`; characters that are not seen or that change the order of others (of C1, line
/// separators, bidirectional controls, marks of no width) as `\u202e` or `\U000e0001`. Backslashes
/// stay, so that a second call changes nothing.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, and a text that would take more than `longest` characters is cut in the middle, where
/// `[...]` stands then. Takes time and memory for `longest` characters alone, however long the text
/// is.
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest);

/// The same with line breaks left as they are: a table, a usage text.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// A text of any language for a terminal: line breaks, tabs and characters that are not seen stay,
/// and what a terminal would act on becomes visible. Carriage returns are left out: every line of a
/// text from Windows ends with one, and the line break behind it may come in a later part.
[[nodiscard]] std::string printable_text(std::string_view text);

/// Characters of a name that comes from outside: a file of another user, a key or a text out of a
/// file, an answer of another program.
constexpr std::size_t longest_name = 128;
/// Characters of an error or a warning.
constexpr std::size_t longest_message = 16384;

/// A name that comes from outside, as a message shows it.
[[nodiscard]] inline std::string printable_name(std::string_view name) {
  return printable(name, longest_name);
}

/// Sentence on a text that is no JSON: "is no JSON: mistake at its byte 11 (invalid string:
/// ill-formed UTF-8 byte)". `message`: what nlohmann's parser says of it.
[[nodiscard]] std::string describe_json_mistake(std::size_t byte, std::string_view message);

}  // namespace offstage
