#include "tokens/decoder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "tokens/alphabet.hpp"
#include "tokens/pattern_field.hpp"
#include "tokens/pre_tokenizer.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

using Texts = std::vector<std::string>;

void replace_all(std::string& text, Pattern const& pattern, std::string const& content) {
  Pattern::Search search{pattern, text};
  std::string result;
  std::size_t at = 0;
  while (auto const match = search.next()) {
    result.append(text, at, match->begin - at).append(content);
    at = match->end;
  }
  if (at > 0) {
    text = result.append(text, at);
  }
}

void decode_byte_level(ByteAlphabet const& alphabet, Texts& texts) {
  std::string bytes;
  for (std::string const& text : texts) {
    alphabet.append_bytes(bytes, text);
  }
  texts.assign(1, replace_invalid(bytes));
}

/// The byte of "<0x41>".
std::optional<char> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') {
    return std::nullopt;
  }
  auto const byte = number_in<unsigned char>(text.substr(3, 2), 16);
  return byte ? std::optional{static_cast<char>(*byte)} : std::nullopt;
}

/// Bytes in a row become their text, or so many marks if they are none.
void decode_bytes(Texts& texts) {
  Texts result;
  std::string bytes;
  auto const finish = [&] {
    if (!bytes.empty() && is_valid(bytes)) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\uFFFD");
    }
    bytes.clear();
  };
  for (std::string& text : texts) {
    if (auto const byte = byte_of(text)) {
      bytes += *byte;
    } else {
      finish();
      result.push_back(std::move(text));
    }
  }
  finish();
  texts.swap(result);
}

/// At most so many of this character from both ends of each text.
void strip(std::string const& content, std::int64_t start, std::int64_t stop, Texts& texts) {
  for (std::string& text : texts) {
    std::string_view rest = text;
    for (std::int64_t i = 0; i < start && rest.starts_with(content); ++i) {
      rest.remove_prefix(content.size());
    }
    for (std::int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
      rest.remove_suffix(content.size());
    }
    text = std::string{rest};
  }
}

void decode_marks(Pattern const& mark, bool prepended, Texts& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    replace_all(texts[i], mark, i == 0 && prepended ? "" : " ");
  }
}

/// The suffix of a word's last token becomes a blank, but the last one's.
void decode_suffix(Pattern const& suffix, Texts& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    replace_all(texts[i], suffix, i + 1 == texts.size() ? "" : " ");
  }
}

}  // namespace

Decoder::Decoder(Fields fields) : any_{true} {
  add(std::move(fields));
}

void Decoder::add(Fields fields) {
  static std::vector<std::string> const types{"ByteLevel", "Metaspace", "ByteFallback", "Fuse",
                                              "Strip",     "Replace",   "BPEDecoder",   "Sequence"};
  std::string const& type = types[fields.choice("type", types, "")];
  auto const literal = [&](char const* name) {
    return std::make_shared<Pattern>(Pattern::literal(fields.text(name), fields.place(name)));
  };
  if (type == "Sequence") {
    for (Fields& one : fields.objects("decoders")) {
      add(std::move(one));
    }
  } else if (type == "ByteLevel") {
    for (char const* const of_encoding : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      fields.ignore(of_encoding);
    }
    steps_.emplace_back(
        [alphabet = ByteAlphabet{}](Texts& texts) { decode_byte_level(alphabet, texts); });
  } else if (type == "Metaspace") {
    auto const mark = literal("replacement");
    bool const prepended = prepend_field(fields) != Prepend::never;
    fields.ignore("split");
    fields.ignore("str_rep");
    steps_.emplace_back([=](Texts& texts) { decode_marks(*mark, prepended, texts); });
  } else if (type == "ByteFallback") {
    steps_.emplace_back(decode_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back(
        [](Texts& texts) { texts.assign(1, fmt::format("{}", fmt::join(texts, ""))); });
  } else if (type == "Strip") {
    constexpr std::int64_t most = 1'000'000;
    steps_.emplace_back([content = fields.text("content"), start = fields.whole("start", 0, most),
                         stop = fields.whole("stop", 0, most)](Texts& texts) {
      strip(content, start, stop, texts);
    });
  } else if (type == "Replace") {
    auto const pattern = std::make_shared<Pattern>(pattern_field(fields, "pattern"));
    steps_.emplace_back([pattern, content = fields.text("content")](Texts& texts) {
      for (std::string& text : texts) {
        replace_all(text, *pattern, content);
      }
    });
  } else {
    auto const suffix = literal("suffix");
    steps_.emplace_back([suffix](Texts& texts) { decode_suffix(*suffix, texts); });
  }
  fields.finish();
}

std::string Decoder::decode(std::vector<std::string> texts) const {
  for (Step const& step : steps_) {
    step(texts);
  }
  return fmt::format("{}", fmt::join(texts, any_ ? "" : " "));
}

}  // namespace offstage::tokens
