#include "cli/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "data/input_file.hpp"

namespace offstage::cli {
namespace {

constexpr Bytes longest_prompt = 64 * MiB;

std::string read_standard_input() {
  std::string text;
  std::array<char, 65536> piece{};
  while (std::size_t const count = std::fread(piece.data(), 1, piece.size(), stdin)) {
    text.append(piece.data(), count);
    if (std::ssize(text) > longest_prompt) {
      break;
    }
  }
  if (std::ferror(stdin) != 0) {
    throw IoError{"cannot read", "standard input", errno};
  }
  return text;
}

}  // namespace

std::string read_prompt(std::string const& path, std::string const& option) {
  std::string text;
  if (path == "-") {
    text = read_standard_input();
  } else {
    data::InputFile const file{path, option};
    text.resize(static_cast<std::size_t>(std::min(file.size(), longest_prompt + 1)));
    file.read(0, std::as_writable_bytes(std::span{text}));
  }
  if (std::ssize(text) > longest_prompt) {
    throw DataError{fmt::format("{}={}: has more than {}; a prompt is shorter", option, path,
                                format_bytes(longest_prompt))};
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    auto const end = std::min(text.find('\n', begin), text.size());
    auto line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      lines.push_back(std::move(line));
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace offstage::cli
