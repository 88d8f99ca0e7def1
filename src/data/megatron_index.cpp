#include "data/megatron_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "base/error.hpp"

namespace offstage::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::size_t magic_bytes = sizeof megatron_magic;
static_assert(magic_bytes == 9);

struct Code {
  std::uint8_t code;
  TokenType type;
};
constexpr std::array codes{Code{1, TokenType::u8},  Code{2, TokenType::i8},
                           Code{3, TokenType::i16}, Code{4, TokenType::i32},
                           Code{5, TokenType::i64}, Code{8, TokenType::u16}};

/// One array of the index, read in order, piece by piece.
template <class T>
class Column {
 public:
  Column(ByteSource const& source, Bytes begin, std::int64_t count)
      : source_{source}, offset_{begin}, left_{count} {}

  T next() {
    if (used_ == piece_.size()) {
      auto const count = std::min<std::int64_t>(left_, piece);
      piece_.resize(static_cast<std::size_t>(count));
      source_.read(offset_, std::as_writable_bytes(std::span{piece_}));
      offset_ += count * static_cast<Bytes>(sizeof(T));
      left_ -= count;
      used_ = 0;
    }
    return piece_[used_++];
  }

 private:
  static constexpr std::int64_t piece = 8192;
  ByteSource const& source_;
  Bytes offset_;
  std::int64_t left_;
  std::vector<T> piece_;
  std::size_t used_{};
};

struct Header {
  TokenType type{};
  std::int64_t sequences{};
  std::int64_t boundaries{};  ///< document indices, one more than documents
};

TokenType type_of(ByteSource const& index, std::uint8_t code) {
  auto const* const known = std::ranges::find(codes, code, &Code::code);
  if (known != codes.end()) {
    return known->type;
  }
  if (code == 6 || code == 7) {
    index.fail(fmt::format(
        "token type {} is {}, which holds no tokens; tokens are u8, i8, u16, i16, i32 or i64", code,
        code == 6 ? "f64" : "f32"));
  }
  index.fail(
      fmt::format("token type {} is not known; 1 to 5 and 8 are u8, i8, i16, i32, i64, u16", code));
}

Header read_header(ByteSource const& index) {
  Bytes const size = index.size();
  std::array<std::byte, megatron_header_bytes> bytes{};
  auto const there = static_cast<std::size_t>(std::min<Bytes>(size, megatron_header_bytes));
  index.read(0, std::span{bytes}.first(there));
  if (std::memcmp(bytes.data(), megatron_magic, std::min(there, magic_bytes)) != 0) {
    index.fail("does not begin with MMIDIDX; name the .idx that Megatron wrote with its .bin");
  }
  if (size < megatron_header_bytes) {
    index.fail(fmt::format("ends after {} of the header's {} bytes; copy it again", size,
                           megatron_header_bytes));
  }
  std::uint64_t version{};
  std::uint64_t sequences{};
  std::uint64_t boundaries{};
  std::memcpy(&version, &bytes[9], sizeof version);
  std::memcpy(&sequences, &bytes[18], sizeof sequences);
  std::memcpy(&boundaries, &bytes[26], sizeof boundaries);
  if (version != 1) {
    index.fail(fmt::format("version {} is not known; version 1 is", version));
  }
  auto const type = type_of(index, std::to_integer<std::uint8_t>(bytes[17]));
  // By division: products of these numbers may be beyond 64 bits.
  auto const rest = static_cast<std::uint64_t>(size - megatron_header_bytes);
  bool const fits = sequences <= rest / 12 && boundaries == (rest - 12 * sequences) / 8 &&
                    (rest - 12 * sequences) % 8 == 0;
  if (!fits) {
    index.fail(fmt::format(
        "{} bytes do not hold the {} sequences and {} document indices that its header counts, 12 "
        "and 8 bytes each after {}; copy it again, and images beside text are not known",
        size, sequences, boundaries, megatron_header_bytes));
  }
  return {type, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(boundaries)};
}

/// Walks through lengths and pointers together.
class Sequences {
 public:
  Sequences(ByteSource const& index, Header const& header, Bytes data_bytes)
      : index_{index},
        lengths_{index, megatron_header_bytes, header.sequences},
        pointers_{index, megatron_header_bytes + 4 * header.sequences, header.sequences},
        item_bytes_{size_of(header.type)},
        data_bytes_{data_bytes} {}

  [[nodiscard]] std::int64_t passed() const noexcept { return passed_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }

  /// Passes one sequence.
  void next() {
    std::int64_t const length = lengths_.next();
    std::int64_t const pointer = pointers_.next();
    if (length < 0) {
      index_.fail(fmt::format("sequence {} has length {}; lengths are 0 or more", passed_, length));
    }
    if (pointer != tokens_ * item_bytes_) {
      index_.fail(
          fmt::format("sequence {} begins at byte {} of the .bin, but the lengths before it say {}",
                      passed_, pointer, tokens_ * item_bytes_));
    }
    if (length > data_bytes_ / item_bytes_ - tokens_) {
      index_.fail(
          fmt::format("sequence {} of {} tokens at byte {} ends beyond the {} bytes of the .bin; "
                      "copy both again",
                      passed_, length, pointer, data_bytes_));
    }
    tokens_ += length;
    ++passed_;
  }

 private:
  ByteSource const& index_;
  Column<std::int32_t> lengths_;
  Column<std::int64_t> pointers_;
  Bytes item_bytes_;
  Bytes data_bytes_;
  std::int64_t passed_{};
  std::int64_t tokens_{};
};

}  // namespace

std::uint8_t megatron_code(TokenType type) {
  auto const* const known = std::ranges::find(codes, type, &Code::type);
  require(known != codes.end(), "megatron_code: a type that Megatron does not have");
  return known->code;
}

MegatronIndex read_megatron_index(ByteSource const& index, Bytes data_bytes,
                                  std::function<void(std::int64_t)> const& on_document) {
  Header const header = read_header(index);
  Sequences sequences{index, header, data_bytes};
  Column<std::int64_t> boundaries{index, megatron_header_bytes + 12 * header.sequences,
                                  header.boundaries};
  MegatronIndex result{.type = header.type};
  for (std::int64_t i = 0; i < header.boundaries; ++i) {
    auto const boundary = boundaries.next();
    if (boundary < sequences.passed() || boundary > header.sequences || (i == 0 && boundary != 0)) {
      index.fail(fmt::format(
          "document index {} is {}; they ascend from 0 to the number of sequences, here {}", i,
          boundary, header.sequences));
    }
    auto const begin = sequences.tokens();
    while (sequences.passed() < boundary) {
      sequences.next();
    }
    if (sequences.tokens() == begin) {
      continue;
    }
    ++result.documents;
    if (on_document) {
      on_document(begin);
    }
  }
  if (sequences.passed() != header.sequences) {
    index.fail(fmt::format("the last document index is {}; it must be the number of sequences, {}",
                           sequences.passed(), header.sequences));
  }
  result.tokens = sequences.tokens();
  if (result.tokens * size_of(header.type) != data_bytes) {
    index.fail(fmt::format(
        "counts {} tokens of type {}, but the .bin has {} bytes, not {}; copy both again",
        result.tokens, name_of(header.type), data_bytes, result.tokens * size_of(header.type)));
  }
  return result;
}

}  // namespace offstage::data
