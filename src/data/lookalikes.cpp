#include "data/lookalikes.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace offstage::data {
namespace {

using namespace std::literals;

struct Magic {
  std::string_view bytes;
  char const* name;
  char const* advice;
  bool is_unpacked = false;
};

constexpr char const* unpack_it = "unpack it first";
constexpr char const* pack_it =
    "if there is text in it, make tokens of it with offstage data pack; else unpack it first";
constexpr char const* take_its_text =
    "write the column of its texts to a text file, and make tokens of that with offstage data pack";

constexpr std::array magics{
    Magic{"\x93NUMPY"sv, "a NumPy array",
          "write its tokens without a header: array.astype('<u2').tofile('tokens.bin')"},
    Magic{"\x1f\x8b\x08"sv, "compressed by gzip", pack_it, true},
    Magic{"\x28\xb5\x2f\xfd"sv, "compressed by zstd", pack_it, true},
    Magic{"\xfd\x37zXZ\0"sv, "compressed by xz", unpack_it},
    Magic{"BZh"sv, "compressed by bzip2", unpack_it},
    Magic{"PK\x03\x04"sv, "a zip archive (as .npz and .zip are)", unpack_it},
    Magic{"PAR1"sv, "a Parquet table", take_its_text},
    Magic{"ARROW1"sv, "an Arrow table", take_its_text},
    Magic{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file", take_its_text},
};

constexpr Bytes look = 64 * 1024;

std::string first_bytes(ByteSource const& file, Bytes most) {
  std::string bytes(static_cast<std::size_t>(std::min(file.size(), most)), '\0');
  file.read(0, std::as_writable_bytes(std::span{bytes}));
  return bytes;
}

/// `{"`, `[{` or `["` with blanks anywhere: what JSON and JSONL of texts begin with, and hardly any
/// prose or program.
bool looks_like_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);
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
  return first == "{\"" || first == "[{" || first == "[\"";
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

}  // namespace

std::optional<Lookalike> find_lookalike(ByteSource const& file) {
  std::string const first = first_bytes(file, 4096);
  for (Magic const& magic : magics) {
    if (first.starts_with(magic.bytes)) {
      return Lookalike{magic.name, magic.advice, magic.is_unpacked};
    }
  }
  if (looks_like_json(first)) {
    return Lookalike{
        "JSON", "make tokens of the texts in it with offstage data pack, which reads JSON lines"};
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
