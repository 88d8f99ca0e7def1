#include "cli/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "data/input_file.hpp"
#include "pack/conversation.hpp"

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
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

std::vector<Prompt> prompts_of_conversations(std::string const& text, std::string const& place,
                                             pack::Template const& form,
                                             data::Tokenizer const& tokenizer) {
  std::vector<Prompt> prompts;
  pack::ConversationEncoder encoder{form, tokenizer};
  std::int64_t number = 0;
  for (std::string const& line : lines_of(text)) {
    ++number;
    if (line.find_first_not_of(" \t") == std::string::npos) {
      continue;
    }
    auto const here = fmt::format("{}: line {}", place, number);
    auto messages = pack::read_conversation(line, "messages", form, here).messages;
    Prompt prompt;
    if (!messages.empty() && messages.back().role->is_learned) {
      prompt.answer = std::move(messages.back().content);
      messages.pop_back();
    }
    if (messages.empty()) {
      throw DataError{fmt::format("{}: has no message that a model could answer", here)};
    }
    prompt.text = messages.back().content;
    prompt.tokens = encoder.prompt(messages);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace offstage::cli
