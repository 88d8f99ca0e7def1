#pragma once

#include <fmt/format.h>

#include <new>
#include <string_view>
#include <utility>

namespace offstage::log {

/// Lines for the person who runs the job. Information goes to standard output, warnings and errors
/// to standard error, each written whole and flushed, so that lines of several ranks do not mix.
/// No text can break out of its line or command a terminal: all are written printable
/// (base/printable.hpp), and of a longer warning or error `longest_message` characters. Whoever puts a
/// name from outside into a line cuts it too: printable_name.
/// Memory:  where there is none for a line, info, warning and error leave it out: they stand in handlers of errors and
///          in functions that throw nothing.
/// Threads: any.
void write_info(std::string_view line);
void write_warning(std::string_view line);
void write_error(std::string_view line);
/// Information of several lines: a table, a usage text. Names from outside in it are the caller's to make
/// printable, as a line break in one would begin a line.
void write_lines(std::string_view text);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  try {
    write_info(fmt::format(format, std::forward<Args>(args)...));
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
