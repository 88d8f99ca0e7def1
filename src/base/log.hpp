#pragma once

#include <fmt/format.h>

#include <string_view>

namespace offstage::log {

/// Lines for the person who runs the job. Information goes to standard output, warnings and errors
/// to standard error, each written whole and flushed, so that lines of several ranks do not mix.
/// Threads: any.
void write_info(std::string_view line);
void write_warning(std::string_view line);
void write_error(std::string_view line);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write_info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write_warning(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace offstage::log
