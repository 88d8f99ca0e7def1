#include "data/lookalikes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/text.hpp"

namespace offstage::data {
namespace {

using namespace std::literals;

struct Magic {
  std::string_view bytes;
  char const* name;
  char const* advice;
  char const* advice_to_packer = advice;
};

constexpr char const* unpack_it = "unpack it first";
constexpr char const* pack_it =
    "if there is text in it, make tokens of it with offstage data pack; else unpack it first";
constexpr char const* take_its_text =
    "write the column of its texts to a text file, and make tokens of that with offstage data pack";
constexpr char const* write_lines =
    "write the column of its texts as JSON lines, {\"text\": \"...\"} each, to a file NAME.jsonl";

constexpr std::array magics{
    Magic{"\x93NUMPY"sv, "a NumPy array",
          "write its tokens without a header: array.astype('<u2').tofile('tokens.bin')"},
    Magic{"\x1f\x8b\x08"sv, "compressed by gzip", pack_it, unpack_it},
    Magic{"\x28\xb5\x2f\xfd"sv, "compressed by zstd", pack_it, unpack_it},
    Magic{"\x04\x22\x4d\x18"sv, "compressed by lz4", unpack_it},
    Magic{"\xfd\x37zXZ\0"sv, "compressed by xz", unpack_it},
    Magic{"BZh"sv, "compressed by bzip2", unpack_it},
    Magic{"PK\x03\x04"sv, "a zip archive (as .npz, .docx and .xlsx are)", unpack_it},
    Magic{"PAR1"sv, "a Parquet table", "make tokens of a column of it with offstage data pack",
          "name it .parquet or add --documents=jsonl"},
    Magic{"ARROW1"sv, "an Arrow table", take_its_text, write_lines},
    Magic{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file", take_its_text, write_lines},
    Magic{"%PDF-"sv, "a PDF document",
          "write its text to a file, and make tokens of that with offstage data pack",
          "write its text to a file first, by pdftotext for example"},
};

constexpr char const* convert_it = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW";
constexpr char const* convert_wide = "convert it: iconv -f UTF-32 -t UTF-8 FILE > NEW";

/// Byte order marks that no text of UTF-8 begins with. Tokens of 16 bits may.
constexpr std::array marks{
    Magic{"\xFF\xFE\0\0"sv, "UTF-32", convert_wide},
    Magic{"\0\0\xFE\xFF"sv, "UTF-32", convert_wide},
    Magic{"\xFF\xFE"sv, "UTF-16", convert_it},
    Magic{"\xFE\xFF"sv, "UTF-16", convert_it},
};

constexpr Bytes look = 64 * 1024;

std::string first_bytes(ByteSource const& file, Bytes most) {
  std::string bytes(static_cast<std::size_t>(std::min(file.size(), most)), '\0');
  file.read(0, std::as_writable_bytes(std::span{bytes}));
  return bytes;
}

/// JSON for `{"`, and an array of it for `[{` or `["`, with blanks anywhere: JSON and JSONL of
/// texts begin so, and hardly any prose or program. `other`: neither.
Lookalike::Kind json_in(std::string_view text) {
  using Kind = Lookalike::Kind;
  if (text.starts_with(byte_order_mark)) {
    text.remove_prefix(byte_order_mark.size());
  }
  std::string first;
  for (char const c : text) {
    if (" \t\r\n"sv.find(c) == std::string_view::npos) {
      first += c;
    }
    if (first.size() == 2) {
      break;
    }
  }
  if (first == "{\"") {
    return Kind::json;
  }
  return first == "[{" || first == "[\"" ? Kind::json_array : Kind::other;
}

/// The magic that the bytes begin with; null: none.
template <std::size_t Count>
Magic const* find_magic(std::array<Magic, Count> const& known, std::string_view first) {
  auto const* const found = std::ranges::find_if(
      known, [&](Magic const& magic) { return first.starts_with(magic.bytes); });
  return found == known.end() ? nullptr : found;
}

/// Which of the u16 at places 0 to 3 modulo 4 have a bit that is set.
std::array<bool, 4> places_in_use(ByteSource const& file, Bytes begin) {
  constexpr Bytes step = 8;
  Bytes const size = std::min(look, (file.size() - begin) / step * step);
  std::vector<std::uint16_t> words(static_cast<std::size_t>(size / 2));
  file.read(begin, std::as_writable_bytes(std::span{words}));
  std::array<bool, 4> used{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    used[i % 4] = used[i % 4] || words[i] != 0;
  }
  return used;
}

/// The lookalike of binary data: a byte of 0, which no text has, is among its first ones.
std::optional<Lookalike> find_binary(std::string_view first, char const* advice) {
  constexpr std::size_t tar_mark = 257;
  if (first.size() > tar_mark && first.substr(tar_mark).starts_with("ustar")) {
    return Lookalike{.name = "a tar archive", .advice = unpack_it};
  }
  if (auto const zero = first.find('\0'); zero != std::string::npos) {
    return Lookalike{.name = fmt::format("binary data (byte {} is 0)", zero), .advice = advice};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Lookalike> find_lookalike(ByteSource const& file, bool as_text) {
  std::string const first = first_bytes(file, lookalike_bytes);
  auto const* const mark = as_text ? find_magic(marks, first) : nullptr;
  if (auto const* const magic = mark != nullptr ? mark : find_magic(magics, first)) {
    return Lookalike{.name = magic->name, .advice = magic->advice};
  }
  if (auto binary = find_binary(first, "give a text, or call a file of 16-bit tokens NAME.bin");
      as_text && binary) {
    return binary;
  }
  auto const kind = json_in(first);
  if (kind == Lookalike::Kind::other) {
    return std::nullopt;
  }
  return Lookalike{
      kind, "JSON",
      "make tokens of the texts in it with offstage data pack, which reads JSON lines"};
}

std::optional<Lookalike> find_text_lookalike(std::string_view first) {
  auto const* const mark = find_magic(marks, first);
  if (auto const* const magic = mark != nullptr ? mark : find_magic(magics, first)) {
    return Lookalike{.name = magic->name, .advice = magic->advice_to_packer};
  }
  if (auto binary = find_binary(first,
                                "give a text; of UTF-16 without a byte order mark, convert "
                                "it first: iconv -f UTF-16LE -t UTF-8 FILE > NEW")) {
    return binary;
  }
  switch (auto const kind = json_in(first)) {
    case Lookalike::Kind::json:
      return Lookalike{
          kind, "JSON",
          "if each of its lines is an object, add --documents=jsonl or name it .jsonl"};
    case Lookalike::Kind::json_array:
      return Lookalike{kind, "a JSON array",
                       "write its elements as JSON lines: jq -c '.[]' FILE > NAME.jsonl"};
    case Lookalike::Kind::other:
      break;
  }
  return std::nullopt;
}

int seeming_width(ByteSource const& file) {
  constexpr Bytes least = 32;  // fewer numbers show nothing
  if (file.size() < least || file.size() % 4 != 0) {
    return 2;
  }
  auto used = places_in_use(file, 0);
  auto const middle = places_in_use(file, file.size() / 16 * 8);
  for (std::size_t i = 0; i < used.size(); ++i) {
    used[i] = used[i] || middle[i];
  }
  if (!used[0] || used[1] || used[3]) {
    return 2;
  }
  return used[2] || file.size() % 8 != 0 ? 4 : 8;
}

}  // namespace offstage::data
