#include "tokens/normalizer.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "tokens/alphabet.hpp"
#include "tokens/pattern_field.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

/// Keeps the characters for which `change` returns true, as it changed them. False if the first one
/// goes.
template <class Change>
bool rewrite(std::string& text, Change const& change) {
  std::string result;
  result.reserve(text.size());
  bool first_stays = true;
  for (std::size_t at = 0; at < text.size();) {
    bool const first = at == 0;
    auto character = next_character(text, at);
    if (change(character)) {
      append_character(result, character);
    } else if (first) {
      first_stays = false;
    }
  }
  text.swap(result);
  return first_stays;
}

bool strip(std::string& text, bool left, bool right) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (right && end > 0) {
    std::size_t before = end;
    if (!is_space(previous_character(text, before))) {
      break;
    }
    end = before;
  }
  while (left && begin < end) {
    std::size_t behind = begin;
    if (!is_space(next_character(text, behind))) {
      break;
    }
    begin = behind;
  }
  text = text.substr(begin, end - begin);
  return begin == 0;
}

/// What SentencePiece's normaliser of this name does to single characters.
bool change_nmt(char32_t& c) {
  bool const control = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                       c == 0x8F || c == 0x9F;
  bool const space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  c = space ? U' ' : c;
  return !control;
}

bool replace(std::string& text, Pattern const& pattern, std::string const& content) {
  Pattern::Search search{pattern, text};
  std::string result;
  std::size_t at = 0;
  bool first_stays = true;
  while (auto const match = search.next()) {
    result.append(text, at, match->begin - at);
    result += content;
    first_stays = first_stays && (match->begin > 0 || !content.empty());
    at = match->end;
  }
  if (at > 0) {
    result.append(text, at);
    text.swap(result);
  }
  return first_stays;
}

}  // namespace

Normalizer::Normalizer(Fields fields) {
  add(std::move(fields));
}

void Normalizer::add(Fields fields) {
  static std::vector<std::string> const types{"NFC",       "NFD",     "NFKC",      "NFKD",
                                              "Lowercase", "Strip",   "Nmt",       "StripAccents",
                                              "Replace",   "Prepend", "ByteLevel", "Sequence"};
  std::string const& type = types[fields.choice("type", types, "")];
  auto const always = [this](auto change) {
    steps_.emplace_back([change](std::string& text) {
      change(text);
      return true;
    });
  };
  if (type == "Sequence") {
    for (Fields& one : fields.objects("normalizers")) {
      add(std::move(one));
    }
  } else if (type.starts_with("NF")) {
    static constexpr std::array forms{Form::nfc, Form::nfd, Form::nfkc, Form::nfkd};
    always([form = forms[static_cast<std::size_t>(std::ranges::find(types, type) - types.begin())]](
               std::string& text) { normalize(text, form); });
  } else if (type == "Lowercase") {
    always([](std::string& text) { lowercase(text); });
  } else if (type == "Strip") {
    steps_.emplace_back([left = fields.flag("strip_left", true),
                         right = fields.flag("strip_right", true)](std::string& text) {
      return strip(text, left, right);
    });
  } else if (type == "StripAccents") {
    steps_.emplace_back(
        [](std::string& text) { return rewrite(text, [](char32_t c) { return !is_mark(c); }); });
  } else if (type == "Nmt") {
    steps_.emplace_back([](std::string& text) { return rewrite(text, change_nmt); });
  } else if (type == "Replace") {
    auto const pattern = std::make_shared<Pattern>(pattern_field(fields, "pattern"));
    steps_.emplace_back([pattern, content = fields.text("content")](std::string& text) {
      return replace(text, *pattern, content);
    });
  } else if (type == "Prepend") {
    always([prefix = fields.text("prepend")](std::string& text) {
      if (!text.empty()) {
        text.insert(0, prefix);
      }
    });
  } else {
    always([alphabet = ByteAlphabet{}](std::string& text) { text = alphabet.spell(text); });
  }
  fields.finish();
}

bool Normalizer::apply(std::string& text) const {
  bool first_stays = true;
  for (Step const& step : steps_) {
    first_stays = step(text) && first_stays;
  }
  return first_stays;
}

}  // namespace offstage::tokens
