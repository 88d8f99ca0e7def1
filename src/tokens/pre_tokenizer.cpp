#include "tokens/pre_tokenizer.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tokens/alphabet.hpp"
#include "tokens/pattern_field.hpp"
#include "tokens/segments.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

constexpr char const* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Splits and hands on; the part that begins with the piece is the first one if the piece was.
void split_piece(Piece piece, Behavior behavior, bool inverted,
                 std::function<std::optional<Range>()> const& next, PieceSink const& sink) {
  split(piece.text, behavior, inverted, next, [&](std::string_view part) {
    sink({part, piece.first && part.data() == piece.text.data()});
  });
}

void split_by(Pattern const& pattern, Piece piece, Behavior behavior, bool inverted,
              PieceSink const& sink) {
  Pattern::Search search{pattern, piece.text};
  split_piece(
      piece, behavior, inverted, [&] { return search.next(); }, sink);
}

/// Matches are characters for which `is` returns true, one each.
template <class Is>
void split_by_characters(Piece piece, Behavior behavior, PieceSink const& sink, Is const& is) {
  std::size_t at = 0;
  split_piece(
      piece, behavior, false,
      [&]() -> std::optional<Range> {
        while (at < piece.text.size()) {
          std::size_t const begin = at;
          if (is(next_character(piece.text, at))) {
            return Range{begin, at};
          }
        }
        return std::nullopt;
      },
      sink);
}

/// Runs of characters of a word, runs of others; what lies between them goes.
void split_words(Piece piece, PieceSink const& sink) {
  auto const kind = [](char32_t c) { return is_space(c) ? 0 : is_word(c) ? 1 : 2; };
  std::size_t at = 0;
  while (at < piece.text.size()) {
    std::size_t const begin = at;
    int const of_run = kind(next_character(piece.text, at));
    while (at < piece.text.size()) {
      std::size_t behind = at;
      if (kind(next_character(piece.text, behind)) != of_run) {
        break;
      }
      at = behind;
    }
    if (of_run != 0) {
      sink({piece.text.substr(begin, at - begin), piece.first && begin == 0});
    }
  }
}

Behavior behavior_field(Fields& fields) {
  static std::vector<std::string> const names{"Removed", "Isolated", "MergedWithPrevious",
                                              "MergedWithNext", "Contiguous"};
  static constexpr std::array values{Behavior::removed, Behavior::isolated,
                                     Behavior::merged_with_previous, Behavior::merged_with_next,
                                     Behavior::contiguous};
  return values[fields.choice("behavior", names, "")];
}

}  // namespace

Prepend prepend_field(Fields& fields) {
  if (!fields.has("prepend_scheme")) {
    return fields.flag("add_prefix_space", true) ? Prepend::always : Prepend::never;
  }
  fields.ignore("add_prefix_space");
  static constexpr std::array values{Prepend::always, Prepend::first, Prepend::never};
  return values[fields.choice("prepend_scheme", {"always", "first", "never"}, "")];
}

PreTokenizer::PreTokenizer(Fields fields) {
  add(std::move(fields));
}

void PreTokenizer::add_byte_level(Fields& fields) {
  bool const prefix = fields.flag("add_prefix_space", true);
  fields.ignore("trim_offsets");
  std::shared_ptr<Pattern> pattern;
  if (fields.flag("use_regex", true)) {
    pattern = std::make_shared<Pattern>(Pattern::expression(gpt2_words, fields.file()));
  }
  steps_.emplace_back([prefix, pattern](Piece piece, PieceSink const& sink) {
    std::string longer;
    if (prefix && !piece.text.starts_with(' ')) {
      longer.append(" ").append(piece.text);
      piece.text = longer;
    }
    if (pattern) {
      split_by(*pattern, piece, Behavior::isolated, false, sink);
    } else {
      sink(piece);
    }
  });
  leaves_bytes_ = true;
}

void PreTokenizer::add_metaspace(Fields& fields) {
  auto const mark = fields.text("replacement");
  auto const scheme = prepend_field(fields);
  fields.ignore("str_rep");
  std::size_t end = 0;
  if (mark.empty() || (static_cast<void>(next_character(mark, end)), end != mark.size())) {
    fields.fail("replacement", "one character is expected");
  }
  auto const pattern =
      std::make_shared<Pattern>(Pattern::literal(mark, fields.place("replacement")));
  bool const splits = fields.flag("split", true);
  steps_.emplace_back([=](Piece piece, PieceSink const& sink) {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    for (char const c : piece.text) {
      c == ' ' ? text += mark : text += c;
    }
    bool const wanted = scheme == Prepend::always || (scheme == Prepend::first && piece.first);
    if (wanted && !text.starts_with(mark)) {
      text.insert(0, mark);
    }
    Piece const marked{text, piece.first};
    splits ? split_by(*pattern, marked, Behavior::merged_with_next, false, sink) : sink(marked);
  });
}

void PreTokenizer::add(Fields fields) {
  static std::vector<std::string> const types{"ByteLevel",          "Split",       "Whitespace",
                                              "WhitespaceSplit",    "Punctuation", "Digits",
                                              "CharDelimiterSplit", "Metaspace",   "Sequence"};
  std::string const& type = types[fields.choice("type", types, "")];
  if (type != "Sequence" && leaves_bytes_) {
    // Later steps see the spelling.
    steps_.emplace_back([alphabet = ByteAlphabet{}](Piece piece, PieceSink const& sink) {
      auto const spelled = alphabet.spell(piece.text);
      sink({spelled, piece.first});
    });
    leaves_bytes_ = false;
  }
  if (type == "Sequence") {
    for (Fields& one : fields.objects("pretokenizers")) {
      add(std::move(one));
    }
  } else if (type == "ByteLevel") {
    add_byte_level(fields);
  } else if (type == "Metaspace") {
    add_metaspace(fields);
  } else if (type == "Split") {
    auto const pattern = std::make_shared<Pattern>(pattern_field(fields, "pattern"));
    steps_.emplace_back(
        [pattern, behavior = behavior_field(fields), inverted = fields.flag("invert", false)](
            Piece piece, PieceSink const& sink) {
          split_by(*pattern, piece, behavior, inverted, sink);
        });
  } else if (type == "Whitespace") {
    steps_.emplace_back(split_words);
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back([](Piece piece, PieceSink const& sink) {
      split_by_characters(piece, Behavior::removed, sink, is_space);
    });
  } else if (type == "Punctuation") {
    steps_.emplace_back([behavior = fields.has("behavior")
                                        ? behavior_field(fields)
                                        : Behavior::isolated](Piece piece, PieceSink const& sink) {
      split_by_characters(piece, behavior, sink, is_punctuation);
    });
  } else if (type == "Digits") {
    auto const behavior =
        fields.flag("individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
    steps_.emplace_back([behavior](Piece piece, PieceSink const& sink) {
      split_by_characters(piece, behavior, sink, is_number);
    });
  } else {
    auto const pattern = std::make_shared<Pattern>(
        Pattern::literal(fields.text("delimiter"), fields.place("delimiter")));
    steps_.emplace_back([pattern](Piece piece, PieceSink const& sink) {
      split_by(*pattern, piece, Behavior::removed, false, sink);
    });
  }
  fields.finish();
}

void PreTokenizer::run(std::size_t step, Piece piece, PieceSink const& sink) const {
  if (step + 1 == steps_.size()) {
    return steps_[step](piece, sink);
  }
  steps_[step](piece, [&](Piece part) { run(step + 1, part, sink); });
}

void PreTokenizer::split(Piece piece, PieceSink const& sink) const {
  if (piece.text.empty()) {
    return;
  }
  steps_.empty() ? sink(piece) : run(0, piece, sink);
}

}  // namespace offstage::tokens
