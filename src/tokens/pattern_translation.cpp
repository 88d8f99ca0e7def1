#include "tokens/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/printable.hpp"

namespace offstage::tokens {
namespace {

/// What stands between brackets for White_Space and for all else.
constexpr std::string_view spaces =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view no_spaces =
    R"(\x00-\x08\x0E-\x1F\x21-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr std::string_view words = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
/// Oniguruma's \w outside brackets, which has Latin-1's superscripts and fractions, too.
constexpr std::string_view words_alone =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// Reads an expression from the left to the right.
class Translator {
 public:
  Translator(std::string_view text, std::string const& place) : text_{text}, place_{place} {}

  std::string run() {
    while (at_ < text_.size()) {
      switch (text_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          brackets();
          break;
        case '(':
          group();
          break;
        case ')':
          end_group();
          break;
        case '{':
          repeat();
          break;
        default:
          copy(1);
      }
    }
    return std::move(out_.append(options_.back(), ')'));
  }

 private:
  [[noreturn]] void refuse(std::size_t begin, std::size_t count, char const* why) const {
    throw DataError{fmt::format("{}: '{}' in the pattern '{}' {}", place_,
                                printable_name(text_.substr(begin, count)), printable_name(text_),
                                why)};
  }

  void copy(std::size_t count) {
    if (at_ + count > text_.size()) {
      refuse(at_, count, "does not end");
    }
    out_ += text_.substr(at_, count);
    at_ += count;
  }

  [[nodiscard]] bool follows(std::string_view what) const {
    return text_.substr(at_).starts_with(what);
  }

  /// \p{Lu}, \p{Han}, \p{Script=Han}, \x{1F}.
  void braced() {
    auto const end = text_.find('}', at_);
    if (end == std::string_view::npos || text_[at_ + 2] != '{') {
      refuse(at_, 3, "is not known here; \\p{NAME} and \\x{HEX} are");
    }
    auto name = text_.substr(at_ + 3, end - at_ - 3);
    if (text_[at_ + 1] == 'x' || name.size() <= 2) {
      return copy(end + 1 - at_);
    }
    if (name.starts_with("Script=")) {
      name.remove_prefix(std::string_view{"Script="}.size());
    }
    // A script's name alone would match characters that other scripts use, too.
    out_ += fmt::format("\\{}{{sc:{}}}", text_[at_ + 1], name);
    at_ = end + 1;
  }

  void escape(bool in_brackets) {
    if (at_ + 1 >= text_.size()) {
      refuse(at_, 1, "does not end");
    }
    char const letter = text_[at_ + 1];
    auto const put = [&](std::string_view inside, bool negated) {
      out_ += in_brackets ? std::string{inside} : fmt::format("[{}{}]", negated ? "^" : "", inside);
      at_ += 2;
    };
    switch (letter) {
      case 's':
        return put(spaces, false);
      case 'S':
        return in_brackets ? put(no_spaces, false) : put(spaces, true);
      case 'w':
        return put(in_brackets ? words : words_alone, false);
      case 'W':
        if (in_brackets) {
          break;
        }
        return put(words_alone, true);
      case 'v':
        return put(R"(\x0B)", false);
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return copy(2);
      case 'p':
      case 'P':
      case 'x':
        return letter == 'x' && at_ + 2 < text_.size() && text_[at_ + 2] != '{' ? copy(4)
                                                                                : braced();
      case 'u':
        return code_point();
      default:
        if (static_cast<unsigned char>(letter) < 0x80 && std::isalnum(letter) == 0) {
          return copy(2);
        }
    }
    refuse(at_, 2, "is not known here");
  }

  /// \uHHHH
  void code_point() {
    auto const digits = text_.substr(at_ + 2, 4);
    if (digits.size() != 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse(at_, 6, "is no character; four hexadecimal digits are expected");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  void brackets() {
    std::size_t const begin = at_;
    copy(1);
    if (follows("^")) {
      copy(1);
    }
    if (follows("]")) {
      refuse(begin, 3, "is not known here; write \\]");
    }
    while (!follows("]")) {
      if (at_ == text_.size()) {
        refuse(begin, 1, "does not end");
      }
      if (follows("[") || follows("&&")) {
        refuse(begin, at_ + 2 - begin,
               "is not known here: one class in another, or what two have in common");
      }
      if (follows("\\")) {
        escape(true);
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void group() {
    static constexpr std::array<std::string_view, 7> known{"(?:",  "(?i:", "(?=", "(?!",
                                                           "(?<=", "(?<!", "(?>"};
    // In Oniguruma it opens a group to the end of the one that it stands in: a(?i)b|c is a(?i:b|c).
    if (follows("(?i)")) {
      out_ += "(?i:";
      at_ += 4;
      ++options_.back();
      return;
    }
    auto const* const opening =
        std::ranges::find_if(known, [&](std::string_view each) { return follows(each); });
    if (opening == known.end() && (follows("(?") || follows("(*"))) {
      refuse(at_, 4, "is not known here");
    }
    copy(opening == known.end() ? 1 : opening->size());
    options_.push_back(0);
  }

  /// With the groups that options opened in it. One that nothing opened is PCRE2's error.
  void end_group() {
    if (options_.size() > 1) {
      out_.append(options_.back(), ')');
      options_.pop_back();
    }
    copy(1);
  }

  /// {2}, {1,}, {1,3}, {,3}; with + behind it Oniguruma repeats the repeat, PCRE2 does not give
  /// back. {2}? is an optional repeat there, and here one of so many.
  void repeat() {
    auto const end = text_.find('}', at_);
    auto const inside = text_.substr(at_ + 1, end == std::string_view::npos ? end : end - at_ - 1);
    if (end == std::string_view::npos || inside.empty() || inside == "," ||
        inside.find_first_not_of("0123456789,") != std::string_view::npos) {
      refuse(at_, 2, "is no repeat; write \\{ for the character");
    }
    bool const fixed = inside.find(',') == std::string_view::npos;
    if (end + 1 < text_.size() && (text_[end + 1] == '+' || (fixed && text_[end + 1] == '?'))) {
      refuse(at_, end + 2 - at_, "is not known here");
    }
    if (inside.front() == ',') {
      out_ += fmt::format("{{0{}}}", inside);
      at_ = end + 1;
    } else {
      copy(end + 1 - at_);
    }
  }

  std::string_view text_;
  std::string const& place_;
  std::size_t at_{};
  std::string out_;
  /// Groups that options opened, in the expression and in each group around this place.
  std::vector<std::size_t> options_{0};
};

}  // namespace

std::string translate_expression(std::string_view text, std::string const& place) {
  return Translator{text, place}.run();
}

}  // namespace offstage::tokens
