#include "tokens/unicode.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utypes.h>

#include <array>
#include <cstdint>

#include "base/error.hpp"

namespace offstage::tokens {
namespace {

constexpr char const* replacement = "\uFFFD";

struct Lead {
  std::size_t bytes;     ///< of the character, 0 for no first byte
  unsigned char lowest;  ///< second byte
  unsigned char highest;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) {
    return {1, 0, 0};
  }
  if (byte < 0xC2 || byte > 0xF4) {
    return {0, 0, 0};
  }
  if (byte < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (byte < 0xF0) {
    return {3, static_cast<unsigned char>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(byte == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<unsigned char>(byte == 0xF0 ? 0x90 : 0x80),
          static_cast<unsigned char>(byte == 0xF4 ? 0x8F : 0xBF)};
}

/// How many bytes from `at` on belong together; `whole` says whether they are a character.
std::size_t measure(std::string_view bytes, std::size_t at, bool& whole) {
  auto const lead = lead_of(static_cast<unsigned char>(bytes[at]));
  whole = lead.bytes == 1;
  std::size_t size = 1;
  unsigned char lowest = lead.lowest;
  unsigned char highest = lead.highest;
  while (size < lead.bytes && at + size < bytes.size()) {
    auto const byte = static_cast<unsigned char>(bytes[at + size]);
    if (byte < lowest || byte > highest) {
      return size;
    }
    lowest = 0x80;
    highest = 0xBF;
    ++size;
    whole = size == lead.bytes;
  }
  return size;
}

/// Where the first bytes lie that are no UTF-8; the size if there are none.
std::size_t first_invalid(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    bool whole = false;
    auto const size = measure(bytes, at, whole);
    if (!whole) {
      return at;
    }
    at += size;
  }
  return at;
}

// The `tokenizers` package knows punctuation as it was in Unicode 8, marks as in 9 and normal forms
// as in 11; later characters have none of them.
constexpr unsigned char punctuation_age = 8;
constexpr unsigned char mark_age = 9;
// Characters whose category is another one since.
constexpr char32_t punctuation_then = 0x166D;
constexpr char32_t punctuation_no_mark_then = 0x111C9;
constexpr char32_t first_mark_then = 0x1CF2;
constexpr char32_t last_mark_then = 0x1CF3;
constexpr char const* old_enough = "[:age=11.0:]";

bool is_of_age(char32_t character, unsigned char most) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(character), age);
  return age[0] <= most;
}

void check(UErrorCode status) {
  if (U_FAILURE(status)) {
    throw IoError{fmt::format("ICU cannot normalise a text: {}", u_errorName(status))};
  }
}

icu::Normalizer2 const& normalizer_of(Form form) {
  UErrorCode status = U_ZERO_ERROR;
  icu::Normalizer2 const* found = nullptr;
  switch (form) {
    case Form::nfc:
      found = icu::Normalizer2::getNFCInstance(status);
      break;
    case Form::nfd:
      found = icu::Normalizer2::getNFDInstance(status);
      break;
    case Form::nfkc:
      found = icu::Normalizer2::getNFKCInstance(status);
      break;
    case Form::nfkd:
      found = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  check(status);
  return *found;
}

/// Made once and not changed again.
icu::UnicodeSet const& old_characters() {
  static icu::UnicodeSet const set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet made{old_enough, status};
    check(status);
    made.freeze();
    return made;
  }();
  return set;
}

bool has_mask(char32_t character, std::uint32_t mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(character)) & mask) != 0;
}

}  // namespace

std::size_t character_bytes(char first) {
  auto const byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t next_character(std::string_view text, std::size_t& at) {
  auto const byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  auto const first = byte(0);
  char32_t character = first;
  std::size_t const size = character_bytes(text[at]);
  if (size == 2) {
    character = (first & 0x1F) << 6 | (byte(1) & 0x3F);
  } else if (size == 3) {
    character = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  } else if (size == 4) {
    character =
        (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
  at += size;
  return character;
}

char32_t previous_character(std::string_view text, std::size_t& at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  std::size_t begin = at;
  return next_character(text, begin);
}

void append_character(std::string& text, char32_t character) {
  auto const put = [&](char32_t byte) {
    text += static_cast<char>(static_cast<unsigned char>(byte));
  };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | character >> 6);
    put(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  } else {
    put(0xF0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3F));
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  }
}

bool is_valid(std::string_view bytes) {
  return first_invalid(bytes) == bytes.size();
}

std::string replace_invalid(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 8);
  for (std::size_t at = 0; at < bytes.size();) {
    auto const good = first_invalid(bytes.substr(at));
    text += bytes.substr(at, good);
    at += good;
    if (at < bytes.size()) {
      bool whole = false;
      at += measure(bytes, at, whole);
      text += replacement;
    }
  }
  return text;
}

Invalid find_invalid(std::string_view bytes) {
  Invalid found;
  for (auto at = first_invalid(bytes); at < bytes.size(); at += first_invalid(bytes.substr(at))) {
    found.first = found.bytes == 0 ? at : found.first;
    bool whole = false;
    auto const size = measure(bytes, at, whole);
    found.bytes += static_cast<std::int64_t>(size);
    at += size;
  }
  return found;
}

void normalize(std::string& text, Form form) {
  require(text.size() <= INT32_MAX, "normalize: ICU takes texts of 2 GiB at most");
  auto const& normalizer = normalizer_of(form);
  UErrorCode status = U_ZERO_ERROR;
  icu::StringPiece const piece{text.data(), static_cast<std::int32_t>(text.size())};
  if (normalizer.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) {
    return;
  }
  status = U_ZERO_ERROR;
  std::string result;
  icu::StringByteSink<std::string> sink{&result, piece.size()};
  icu::FilteredNormalizer2 const filtered{normalizer, old_characters()};
  filtered.normalizeUTF8(0, piece, sink, nullptr, status);
  check(status);
  text.swap(result);
}

void lowercase(std::string& text) {
  constexpr char32_t dotted_i = 0x130;  // the one whose lower case has two characters
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto const character = next_character(text, at);
    if (character == dotted_i) {
      result += "i\u0307";
    } else {
      append_character(result, static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))));
    }
  }
  text.swap(result);
}

bool is_space(char32_t character) {
  return u_isUWhiteSpace(static_cast<UChar32>(character)) != 0;
}

bool is_number(char32_t character) {
  return has_mask(character, U_GC_N_MASK);
}

bool is_punctuation(char32_t character) {
  bool const ascii =
      character > 0x20 && character < 0x7F && u_isalnum(static_cast<UChar32>(character)) == 0;
  if (character == punctuation_then || character == punctuation_no_mark_then) {
    return true;
  }
  return ascii || (has_mask(character, U_GC_P_MASK) && is_of_age(character, punctuation_age));
}

bool is_mark(char32_t character) {
  if (character >= first_mark_then && character <= last_mark_then) {
    return true;
  }
  return has_mask(character, U_GC_M_MASK) && is_of_age(character, mark_age) &&
         character != punctuation_no_mark_then;
}

bool is_word(char32_t character) {
  auto const point = static_cast<UChar32>(character);
  return u_isUAlphabetic(point) != 0 ||
         has_mask(character, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL) != 0;
}

}  // namespace offstage::tokens
