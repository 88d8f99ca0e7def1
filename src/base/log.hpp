#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace offstage::log {

/// Lines for the person who runs the job. Information goes to standard output, warnings and errors
/// to standard error, each written whole and flushed, so that lines of several ranks do not mix.
/// No text can break out of its line or command a terminal: all are written printable
/// (base/printable.hpp), and of a longer warning or error `longest_message` characters. Whoever
/// puts a name from outside into a line cuts it too: printable_name.
/// Memory:  where there is none for a line, info, dated, warning and error leave it out: they stand
///          in handlers of errors and in functions that throw nothing.
/// Threads: any.
void write_info(std::string_view line);
/// Information for standard error, where standard output is what a file is made of.
void write_aside(std::string_view line);
void write_warning(std::string_view line);
void write_error(std::string_view line);
/// Information with the time before it, UTC: "2026-11-23T07:05:11Z step 3", of what happens as a
/// run goes on.
void write_dated(std::string_view line);

enum class Style { plain, bold, dim, bar, rest };
struct Styled {
  std::string text;
  Style style = Style::plain;
};
/// Columns that a status may have: those of the terminal at standard output without the last one,
/// or 79 where the terminal's width is not known.
[[nodiscard]] std::size_t status_width();
/// How far something has come: the last line of a terminal at standard output, whose place the next
/// status or line takes. Parts from the first one that does not fit into status_width() are left
/// out; no part is cut. Without `colours` styles do nothing.
void write_status(std::span<Styled const> parts, bool colours);
/// Information of several lines: a table, a usage text. Names from outside in it are the caller's
/// to make printable, as a line break in one would begin a line.
void write_lines(std::string_view text);

/// The errno of the first write to standard output that has failed since the last call; 0: none. A
/// reader that went away (EPIPE) does not count.
/// Threads: any.
[[nodiscard]] int take_lost_output() noexcept;

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  try {
    write_info(fmt::format(format, std::forward<Args>(args)...));
  } catch (std::bad_alloc const&) {
  }
}
template <class... Args>
void dated(fmt::format_string<Args...> format, Args&&... args) {
  try {
    write_dated(fmt::format(format, std::forward<Args>(args)...));
  } catch (std::bad_alloc const&) {
  }
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  try {
    write_warning(fmt::format(format, std::forward<Args>(args)...));
  } catch (std::bad_alloc const&) {
  }
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  try {
    write_error(fmt::format(format, std::forward<Args>(args)...));
  } catch (std::bad_alloc const&) {
  }
}

}  // namespace offstage::log
