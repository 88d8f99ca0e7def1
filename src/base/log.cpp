#include "base/log.hpp"

#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>

#include "base/printable.hpp"
#include "base/watch.hpp"

namespace offstage::log {
namespace {

constexpr std::string_view clear_to_the_end = "\x1b[K";

// The terminal is the process's, and so is what stands on its last line.
std::atomic<bool> status_stands{false};

// The error of the first write to standard output that failed; 0: none.
std::atomic<int> lost_output{0};

void write_whole(std::FILE* file, std::string_view text) {
  // A reader that pauses blocks its writer: the watchdog shall know what the run waits for.
  Waiting const waiting{file == stdout ? "the reader of standard output"
                                       : "the reader of standard error"};
  errno = 0;
  // One fwrite of the whole line: stdio locks the stream, so threads do not mix either.
  bool const all = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  bool const written = std::fflush(file) == 0 && all;
  if (!written && file == stdout && errno != EPIPE) {
    int none = 0;
    lost_output.compare_exchange_strong(none, errno == 0 ? EIO : errno);
  }
}

void write(std::FILE* file, std::string text) {
  if (status_stands.exchange(false)) {
    write_whole(stdout, clear_to_the_end);
  }
  text += '\n';
  write_whole(file, text);
}

std::size_t width_of_terminal() {
  constexpr std::size_t usual = 80;
  winsize size{};
  bool const known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : usual;
}

/// The code by which terminals change their style (ECMA-48, SGR).
std::string_view code_of(Style style) {
  switch (style) {
    case Style::plain:
      break;
    case Style::bold:
      return "\x1b[1m";
    case Style::dim:
      return "\x1b[2m";
    case Style::bar:
      return "\x1b[42m";
    case Style::rest:
      return "\x1b[100m";
  }
  return "";
}

}  // namespace

void write_lines(std::string_view text) {
  write(stdout, printable_lines(text));
}
void write_info(std::string_view line) {
  write(stdout, printable(line));
}
void write_aside(std::string_view line) {
  write(stderr, printable(line));
}
void write_dated(std::string_view line) {
  auto const now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  auto const stamp = fmt::gmtime(std::chrono::system_clock::to_time_t(now));
  write(stdout, fmt::format("{:%Y-%m-%dT%H:%M:%S}Z {}", stamp, printable(line)));
}
void write_warning(std::string_view line) {
  write(stderr, "offstage: warning: " + printable(line, longest_message));
}
void write_error(std::string_view line) {
  write(stderr, "offstage: error: " + printable(line, longest_message));
}

std::size_t status_width() {
  return width_of_terminal() - 1;
}

// The cursor goes back to the line's begin, so that whatever is written next covers it.
void write_status(std::span<Styled const> parts, bool colours) {
  std::size_t room = status_width();
  std::string text;
  for (Styled const& part : parts) {
    std::string const shown = printable(part.text);
    if (shown.size() > room) {
      break;
    }
    room -= shown.size();
    auto const code = colours ? code_of(part.style) : std::string_view{};
    text += fmt::format("{}{}{}", code, shown, code.empty() ? "" : "\x1b[0m");
  }
  write_whole(stdout, fmt::format("{}{}\r", text, clear_to_the_end));
  status_stands = true;
}

int take_lost_output() noexcept {
  return lost_output.exchange(0);
}

}  // namespace offstage::log
