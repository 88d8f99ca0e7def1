#include "cli/show_documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "generate/text_stream.hpp"

namespace offstage::cli {
namespace {

/// More than a person reads.
constexpr std::int64_t most_tokens = 4096;

/// Puts tokens together with the names of special ones and marks of what counts.
class Text {
 public:
  explicit Text(data::Tokenizer const& tokenizer) : tokenizer_{tokenizer}, stream_{tokenizer} {}

  void add(std::int32_t token) {
    // Decoders may drop a blank in front of the first of two.
    if (tokenizer_.decode({{token, token}}).empty()) {
      mark(tokenizer_.name_of(token));
      stream_.pass_over(token);
    } else {
      text_ += stream_.add(token);
    }
  }
  void mark(std::string const& words) { text_ += stream_.finish() + words; }
  [[nodiscard]] std::string finish() {
    mark("");
    return std::move(text_);
  }

 private:
  data::Tokenizer const& tokenizer_;
  generate::TextStream stream_;
  std::string text_;
};

}  // namespace

std::string text_of(Readable const& what, std::int64_t begin, std::int64_t end) {
  auto const shown = std::min(end - begin, most_tokens);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shown));
  std::vector<std::uint8_t> counts(tokens.size(), 0);
  what.file.read(begin, tokens);
  if (what.mask != nullptr) {
    what.mask->read(begin, counts);
  }
  Text text{what.tokenizer};
  bool learns = false;
  auto const turn = [&](bool now) {
    if (now != learns) {
      text.mark(now ? "{learn}" : "{/learn}");
    }
    learns = now;
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    turn(counts[i] != 0);
    text.add(tokens[i]);
  }
  if (shown < end - begin) {
    text.mark(fmt::format("\n... {} more tokens", end - begin - shown));
  } else {
    turn(false);
  }
  return text.finish();
}

void show_parts(Readable const& what, std::vector<std::int64_t> const& begins, std::int64_t count,
                char const* name) {
  auto const all = std::ssize(begins);
  for (std::int64_t i = 0; i < std::min(count, all); ++i) {
    auto const begin = begins[static_cast<std::size_t>(i)];
    auto const end = i + 1 < all ? begins[static_cast<std::size_t>(i) + 1] : what.file.tokens();
    log::write_lines(fmt::format("\n{} {}: {} tokens\n{}", name, i + 1, end - begin,
                                 printable_lines(text_of(what, begin, end))));
  }
}

}  // namespace offstage::cli
