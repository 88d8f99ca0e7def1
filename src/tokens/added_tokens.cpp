#include "tokens/added_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

bool word_ends(std::string_view text) {
  std::size_t end = text.size();
  return !text.empty() && is_word(previous_character(text, end));
}

bool word_begins(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_word(next_character(text, at));
}

std::size_t before_spaces(std::string_view text, std::size_t end) {
  for (std::size_t at = end; at > 0; end = at) {
    if (!is_space(previous_character(text, at))) {
      break;
    }
  }
  return end;
}

std::size_t behind_spaces(std::string_view text, std::size_t begin) {
  for (std::size_t at = begin; at < text.size(); begin = at) {
    if (!is_space(next_character(text, at))) {
      break;
    }
  }
  return begin;
}

AddedTokens::Token read_token(Fields& fields) {
  AddedTokens::Token token;
  token.text = fields.text("content");
  token.number = static_cast<std::int32_t>(fields.whole("id", 0, largest_vocab - 1));
  token.special = fields.flag("special", false);
  token.single_word = fields.flag("single_word", false);
  token.takes_left = fields.flag("lstrip", false);
  token.takes_right = fields.flag("rstrip", false);
  token.normalized = fields.flag("normalized", !token.special);
  fields.finish();
  if (token.text.empty()) {
    fields.fail("content", "is empty");
  }
  return token;
}

}  // namespace

AddedTokens::AddedTokens(Fields& file, Model const& model, Normalizer const& normalizer) {
  auto const known =
      std::ranges::count_if(model.texts(), [](auto const& text) { return text.has_value(); });
  for (Fields& fields : file.objects("added_tokens")) {
    Token const token = read_token(fields);
    auto const number = static_cast<std::size_t>(token.number);
    bool const of_model = number < model.texts().size() && model.texts()[number].has_value();
    auto const wanted = model.find(token.text);
    // The `tokenizers` package numbers those that the model lacks in their order, whatever the file
    // says.
    std::int64_t const last = tokens_.empty() ? -1 : tokens_.rbegin()->first;
    std::int64_t const next = std::max<std::int64_t>(known, last + 1);
    bool const right = wanted ? *wanted == token.number : !of_model && token.number == next;
    if (!right || tokens_.contains(token.number) || find(token.text) != nullptr) {
      fields.fail(
          "id",
          fmt::format(
              "{} is not the number of '{}': {}", token.number, printable_name(token.text),
              wanted ? fmt::format("the model has it as {}", *wanted)
              : token.number > next
                  ? fmt::format("the tokenizers package makes it {}, behind the vocabulary and the "
                                "tokens before it; write the file again with transformers: "
                                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                                next)
                  : std::string{"the model or another added token has the number or the text"}));
    }
    tokens_.emplace(token.number, token);
    numbers_.emplace(token.text, token.number);
    Finder& finder = token.normalized ? normalized_ : raw_;
    std::string text = token.text;
    if (token.normalized) {
      static_cast<void>(normalizer.apply(text));
    }
    if (!text.empty()) {
      finder.trie.put(text, token.number);
      finder.any = true;
      finder.first[static_cast<unsigned char>(text.front())] = true;
    }
  }
}

AddedTokens::Token const* AddedTokens::find(std::string_view text) const {
  auto const found = numbers_.find(text);
  return found == numbers_.end() ? nullptr : &tokens_.at(found->second);
}

AddedTokens::Match AddedTokens::next(Finder const& finder, std::string_view text,
                                     std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!finder.first[static_cast<unsigned char>(text[at])]) {
      continue;
    }
    Match match;
    finder.trie.prefixes(text.substr(at), [&](std::size_t length, std::int32_t token) {
      match = {at, at + length, token};
    });
    if (match.token >= 0) {
      return match;
    }
  }
  return {};
}

void AddedTokens::split(
    std::string_view text, bool normalized,
    std::function<void(std::string_view part, std::int32_t token)> const& sink) const {
  Finder const& finder = normalized ? normalized_ : raw_;
  std::size_t done = 0;
  auto const hand = [&](std::size_t begin, std::size_t end, std::int32_t token) {
    if (begin < end) {
      sink(text.substr(begin, end - begin), token);
    }
  };
  for (auto match = finder.any ? next(finder, text, 0) : Match{}; match.token >= 0;
       match = next(finder, text, match.end)) {
    Token const& token = tokens_.at(match.token);
    bool const inside_word =
        word_ends(text.substr(0, match.begin)) || word_begins(text.substr(match.end));
    if (token.single_word && inside_word) {
      continue;
    }
    // A token inside the blanks that the one before took counts, too, and the text goes on behind
    // it: so it is in the `tokenizers` package.
    auto const begin =
        token.takes_left ? std::max(done, before_spaces(text, match.begin)) : match.begin;
    auto const end = token.takes_right ? behind_spaces(text, match.end) : match.end;
    hand(done, begin, -1);
    hand(begin, end, match.token);
    done = end;
  }
  hand(done, text.size(), -1);
}

}  // namespace offstage::tokens
