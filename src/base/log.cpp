#include "base/log.hpp"

#include <cstdio>

namespace offstage::log {
namespace {

void write(std::FILE* file, char const* prefix, std::string_view line) {
  // One fwrite of the whole line: stdio locks the stream, so threads do not mix either.
  auto const text = fmt::format("{}{}\n", prefix, line);
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

void write_info(std::string_view line) {
  write(stdout, "", line);
}
void write_warning(std::string_view line) {
  write(stderr, "offstage: warning: ", line);
}
void write_error(std::string_view line) {
  write(stderr, "offstage: error: ", line);
}

}  // namespace offstage::log
