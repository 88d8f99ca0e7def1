#include "base/log.hpp"

#include <cstdio>

#include "base/printable.hpp"

namespace offstage::log {
namespace {

void write(std::FILE* file, std::string text) {
  text += '\n';
  // One fwrite of the whole line: stdio locks the stream, so threads do not mix either.
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

void write_lines(std::string_view text) {
  write(stdout, printable_lines(text));
}
void write_info(std::string_view line) {
  write(stdout, printable(line));
}
void write_warning(std::string_view line) {
  write(stderr, "offstage: warning: " + printable(line, longest_message));
}
void write_error(std::string_view line) {
  write(stderr, "offstage: error: " + printable(line, longest_message));
}

}  // namespace offstage::log
