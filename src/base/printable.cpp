#include "base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

namespace offstage {
namespace {

constexpr std::string_view cut_mark = "[...]";
/// Of a character in UTF-8.
constexpr std::size_t most_bytes = 4;

struct Range {
  char32_t first;
  char32_t last;
};

/// Characters beyond ASCII that are not seen, or that move others.
constexpr std::array<Range, 8> hidden{{
    {0x61c, 0x61c},      // Arabic letter mark
    {0x180e, 0x180e},    // of no width
    {0x200b, 0x200f},    // of no width, marks of direction
    {0x2028, 0x202e},    // separators of lines and paragraphs, directions
    {0x2060, 0x206f},    // of no width, directions
    {0xfeff, 0xfeff},    // byte order mark
    {0xfff9, 0xfffb},    // annotations
    {0xe0000, 0xe007f},  // tags
}};

struct Character {
  std::size_t bytes{1};
  char32_t code{};
  bool valid{};  ///< else one byte that is no UTF-8
};

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

/// The first character of a text that is not empty.
Character first_of(std::string_view text) {
  auto const lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) {
    return {1, lead, true};
  }
  std::size_t const bytes = lead >= 0xF0 ? 4 : (lead >= 0xE0 ? 3 : 2);
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes ||
      !std::ranges::all_of(text.substr(1, bytes - 1), continues)) {
    return {};
  }
  char32_t code = lead & (0xFFU >> (bytes + 1));
  for (char const byte : text.substr(1, bytes - 1)) {
    code = code << 6U | (static_cast<unsigned char>(byte) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  bool const surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < least[bytes] || code > 0x10FFFF || surrogate) {
    return {};
  }
  return {bytes, code, true};
}

bool is_in(Range const& range, Character const& character) {
  return character.code >= range.first && character.code <= range.last;
}

/// False for what a terminal may act on.
bool is_harmless(Character const& character) {
  constexpr Range c1{0x7F, 0x9f};  // with DEL; 0x9b begins an escape sequence
  return character.valid && character.code >= ' ' && !is_in(c1, character);
}

bool is_seen(Character const& character) {
  return is_harmless(character) &&
         std::ranges::none_of(hidden, [&](Range const& range) { return is_in(range, character); });
}

/// One character as it is to be shown.
struct Piece {
  std::string text;
  std::size_t width{};
};

/// Takes the first character from a text that is not empty; `stays`: it is shown as it is.
Piece take(std::string_view& text, bool (*stays)(Character const&) = is_seen) {
  Character const character = first_of(text);
  std::string_view const bytes = text.substr(0, character.bytes);
  text.remove_prefix(character.bytes);
  if (stays(character)) {
    return {std::string{bytes}, 1};
  }
  std::string escaped;
  if (character.bytes == 1) {
    escaped = fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes.front()));
  } else {
    auto const code = static_cast<std::uint32_t>(character.code);
    escaped = code > 0xFFFF ? fmt::format("\\U{:08x}", code) : fmt::format("\\u{:04x}", code);
  }
  return {escaped, escaped.size()};
}

bool is_plain(char c) {
  return c >= ' ' && c <= '~';
}

/// Pieces from the first on, or from the last, as many as `width` has room for.
template <class Iterator>
Iterator fit(Iterator begin, Iterator end, std::size_t width) {
  while (begin != end && begin->width <= width) {
    width -= begin->width;
    ++begin;
  }
  return begin;
}

std::vector<Piece> pieces_of(std::string_view text) {
  std::vector<Piece> pieces;
  while (!text.empty()) {
    pieces.push_back(take(text));
  }
  return pieces;
}

/// A text that is too long: its beginning, the mark and its end.
std::string cut(std::string_view text, std::size_t longest) {
  std::size_t const room = longest - std::min(longest, cut_mark.size());
  std::size_t const of_end = room / 3;
  auto const begin = pieces_of(text.substr(0, most_bytes * longest));
  // It may begin within a character: those bytes are too many to stay.
  auto const end =
      pieces_of(text.substr(text.size() - std::min(text.size(), most_bytes * longest)));
  auto const head = fit(begin.begin(), begin.end(), room - of_end);
  auto const tail = fit(end.rbegin(), end.rend(), of_end).base();
  std::string result;
  std::for_each(begin.begin(), head, [&](Piece const& piece) { result += piece.text; });
  result += cut_mark.substr(0, longest);
  std::for_each(tail, end.end(), [&](Piece const& piece) { result += piece.text; });
  return result;
}

}  // namespace

std::string printable(std::string_view text) {
  if (std::ranges::all_of(text, is_plain)) {
    return std::string{text};
  }
  std::string result;
  while (!text.empty()) {
    result += take(text).text;
  }
  return result;
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string result;
  std::size_t width = 0;
  for (std::string_view rest = text; !rest.empty();) {
    Piece const piece = take(rest);
    width += piece.width;
    if (width > longest) {
      return cut(text, longest);
    }
    result += piece.text;
  }
  return result;
}

std::string printable_lines(std::string_view text) {
  std::string result;
  for (std::size_t begin = 0;;) {
    std::size_t const end = text.find('\n', begin);
    result += printable(text.substr(begin, end - begin));
    if (end == std::string_view::npos) {
      return result;
    }
    result += '\n';
    begin = end + 1;
  }
}

std::string printable_text(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (text.front() == '\r') {
      text.remove_prefix(1);
    } else if (text.front() == '\n' || text.front() == '\t') {
      result += text.front();
      text.remove_prefix(1);
    } else {
      result += take(text, is_harmless).text;
    }
  }
  return result;
}

// Such as "... syntax error while parsing value - invalid string: missing closing quote; last read:
// '"a'".
std::string describe_json_mistake(std::size_t byte, std::string_view message) {
  constexpr std::string_view before = " - ";
  auto text = fmt::format("is no JSON: mistake at its byte {}", byte);
  if (auto const at = message.find(before); at != std::string_view::npos) {
    auto const cause = message.substr(at + before.size());
    text += fmt::format(" ({})", printable_name(cause.substr(0, cause.find(';'))));
  }
  return text;
}

}  // namespace offstage
