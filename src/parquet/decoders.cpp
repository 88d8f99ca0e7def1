#include "parquet/decoders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "parquet/damage.hpp"
#include "parquet/thrift.hpp"

namespace offstage::parquet {
namespace {

constexpr int octet_bits = 8;

[[noreturn]] void fail() {
  throw Damage{"a page has fewer values than it says"};
}

/// The `width` bits, at most 64, from bit `from` on, the lowest first.
std::uint64_t bits_at(std::span<std::byte const> bytes, std::uint64_t from, int width) {
  auto const last = from + static_cast<std::uint64_t>(width);
  if (last > bytes.size() * octet_bits) {
    fail();
  }
  std::uint64_t value = 0;
  auto const first = static_cast<std::size_t>(from / octet_bits);
  auto const count = std::min<std::size_t>(sizeof value, bytes.size() - first);
  if (width == 0) {
    return 0;
  }
  std::memcpy(&value, bytes.data() + first, count);
  auto const shift = static_cast<int>(from % octet_bits);
  value >>= shift;
  int const had = 64 - shift;
  if (width > had) {  // they end in a ninth byte
    value |= std::to_integer<std::uint64_t>(bytes[first + sizeof value]) << had;
  }
  return width == 64 ? value : value & ((std::uint64_t{1} << width) - 1);
}

template <class T>
T number_at(std::span<std::byte const> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::string_view text_of(std::span<std::byte const> bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// Values one behind the other.
class PlainValues final : public Values {
 public:
  PlainValues(Type type, std::span<std::byte const> bytes)
      : type_{type}, bytes_{bytes}, in_{bytes} {}

  [[nodiscard]] Value next() override {
    switch (type_) {
      case Type::boolean:
        return {.integer = static_cast<std::int64_t>(bits_at(bytes_, bit_++, 1))};
      case Type::int32:
        return {.integer = number_at<std::int32_t>(in_.take(sizeof(std::int32_t)))};
      case Type::int64:
        return {.integer = number_at<std::int64_t>(in_.take(sizeof(std::int64_t)))};
      case Type::float32:
        return {.number = number_at<float>(in_.take(sizeof(float)))};
      case Type::float64:
        return {.number = number_at<double>(in_.take(sizeof(double)))};
      case Type::bytes: {
        auto const size = number_at<std::uint32_t>(in_.take(sizeof(std::uint32_t)));
        return {.bytes = text_of(in_.take(size))};
      }
      case Type::int96:
      case Type::fixed_bytes:
        break;
    }
    throw Unread{"has values of a type that JSON lacks"};
  }

 private:
  Type type_;
  std::span<std::byte const> bytes_;
  Thrift in_;
  std::uint64_t bit_{};
};

/// Values by their numbers in a dictionary.
class DictionaryValues final : public Values {
 public:
  DictionaryValues(std::span<std::byte const> bytes, std::vector<Value> const& dictionary)
      : dictionary_{dictionary} {
    if (!bytes.empty()) {
      numbers_ = {bytes.subspan(1), std::to_integer<int>(bytes.front())};
    }
  }
  [[nodiscard]] Value next() override {
    auto const number = numbers_.next();
    if (number >= dictionary_.size()) {
      throw Damage{"a page has a value that is not in the dictionary"};
    }
    return dictionary_[number];
  }

 private:
  RunLengths numbers_;
  std::vector<Value> const& dictionary_;
};

class BooleanRuns final : public Values {
 public:
  explicit BooleanRuns(std::span<std::byte const> bytes) {
    constexpr std::size_t length_bytes = 4;  // of the runs, which are the rest of the page
    runs_ = {bytes.subspan(std::min(length_bytes, bytes.size())), 1};
  }
  [[nodiscard]] Value next() override { return {.integer = runs_.next()}; }

 private:
  RunLengths runs_;
};

/// The first bytes of all numbers, then the second ones, and so on (BYTE_STREAM_SPLIT).
class StreamValues final : public Values {
 public:
  StreamValues(Type type, std::span<std::byte const> bytes)
      : type_{type},
        bytes_{bytes},
        width_{type == Type::int64 || type == Type::float64 ? 8U : 4U},
        count_{bytes.size() / width_} {}
  [[nodiscard]] Value next() override {
    if (next_ == count_) {
      fail();
    }
    std::array<std::byte, 8> number{};
    for (std::size_t i = 0; i < width_; ++i) {
      number[i] = bytes_[i * count_ + next_];
    }
    ++next_;
    return PlainValues{type_, std::span{number}.first(width_)}.next();
  }

 private:
  Type type_;
  std::span<std::byte const> bytes_;
  std::size_t width_;
  std::size_t count_;
  std::size_t next_{};
};

class DifferenceValues final : public Values {
 public:
  DifferenceValues(Type type, std::span<std::byte const> bytes, std::int64_t most)
      : is_short_{type == Type::int32}, integers_{bytes, most} {}
  [[nodiscard]] Value next() override {
    auto const value = integers_.next();  // of 32 bits: modulo 2^32
    return {.integer = is_short_ ? static_cast<std::int32_t>(value) : value};
  }

 private:
  bool is_short_;
  Differences integers_;
};

/// Bytes of the differences that stand at the front.
std::size_t bytes_of_differences(std::span<std::byte const> bytes, std::int64_t most) {
  Differences all{bytes, most};
  while (all.left() > 0) {
    static_cast<void>(all.next());
  }
  if (all.end() > bytes.size()) {
    fail();
  }
  return all.end();
}

/// Lengths of all texts, and then the texts (DELTA_LENGTH_BYTE_ARRAY).
class LengthsAndTexts final : public Values {
 public:
  LengthsAndTexts(std::span<std::byte const> bytes, std::int64_t most)
      : lengths_{bytes, most}, texts_{bytes.subspan(bytes_of_differences(bytes, most))} {}
  [[nodiscard]] Value next() override {
    auto const length = lengths_.next();
    if (length < 0) {
      fail();
    }
    return {.bytes = text_of(texts_.take(static_cast<std::uint64_t>(length)))};
  }

 private:
  Differences lengths_;
  Thrift texts_;
};

/// Texts that begin as the one before does (DELTA_BYTE_ARRAY).
class TextsWithPrefixes final : public Values {
 public:
  TextsWithPrefixes(std::span<std::byte const> bytes, std::int64_t most)
      : prefixes_{bytes, most}, endings_{bytes.subspan(bytes_of_differences(bytes, most)), most} {}
  [[nodiscard]] Value next() override {
    auto const prefix = prefixes_.next();
    if (prefix < 0 || prefix > std::ssize(text_)) {
      throw Damage{"a text is said to begin with more than the one before has"};
    }
    text_.resize(static_cast<std::size_t>(prefix));
    text_ += endings_.next().bytes;
    return {.bytes = text_};
  }

 private:
  Differences prefixes_;
  LengthsAndTexts endings_;
  std::string text_;
};

}  // namespace

RunLengths::RunLengths(std::span<std::byte const> bytes, int width) : bytes_{bytes}, width_{width} {
  constexpr int most = 32;
  if (width > most) {
    throw Damage{"a page has numbers of too many bits"};
  }
}

std::uint32_t RunLengths::next() {
  while (left_ == 0) {
    if (is_packed_) {
      bytes_ = bytes_.subspan(static_cast<std::size_t>(bit_ / octet_bits));
    }
    Thrift in{bytes_};
    auto const head = in.varint();
    is_packed_ = (head & 1U) != 0;
    left_ = head >> 1U;
    if (is_packed_) {
      // No more groups than there are bytes, so that no product overflows. Bits of padding may
      // lack.
      left_ = std::min<std::uint64_t>(left_, UINT32_MAX) * octet_bits;
      bit_ = 0;
    } else {
      auto const value =
          in.take(static_cast<std::uint64_t>((width_ + octet_bits - 1) / octet_bits));
      value_ = 0;
      for (std::size_t i = 0; i < value.size(); ++i) {
        value_ |= std::to_integer<std::uint32_t>(value[i]) << (octet_bits * i);
      }
    }
    bytes_ = bytes_.subspan(in.used());
  }
  --left_;
  if (!is_packed_) {
    return value_;
  }
  auto const value = bits_at(bytes_, bit_, width_);
  bit_ += static_cast<std::uint64_t>(width_);
  return static_cast<std::uint32_t>(value);
}

Differences::Differences(std::span<std::byte const> bytes, std::int64_t most) : bytes_{bytes} {
  constexpr std::uint64_t most_values = std::uint64_t{1} << 20U;
  Thrift in{bytes};
  auto const block = in.varint();
  parts_ = in.varint();
  left_ = in.varint();
  value_ = static_cast<std::uint64_t>(in.zigzag());
  if (parts_ == 0 || block > most_values || block % parts_ != 0 ||
      block / parts_ % octet_bits != 0 || block == 0) {
    throw Damage{"a page has differences in parts of no allowed size"};
  }
  if (left_ > static_cast<std::uint64_t>(most)) {
    throw Damage{"a page has more values than it says"};
  }
  part_values_ = block / parts_;
  part_ = parts_;
  in_part_ = part_values_;
  begin_ = in.used();
}

std::size_t Differences::packed_bytes() const noexcept {
  return static_cast<std::size_t>(part_values_) * static_cast<std::size_t>(width_) / octet_bits;
}

void Differences::begin_block() {
  Thrift in{bytes_.subspan(begin_)};
  least_ = static_cast<std::uint64_t>(in.zigzag());
  auto const widths = in.take(parts_);
  widths_.clear();
  for (std::byte const width : widths) {
    widths_.push_back(std::to_integer<std::uint8_t>(width));
  }
  begin_ += in.used();
  part_ = 0;
}

void Differences::begin_part() {
  constexpr int most_bits = 64;
  begin_ = end();
  width_ = 0;
  if (begin_ > bytes_.size()) {
    fail();
  }
  if (part_ == parts_) {
    begin_block();
  }
  width_ = widths_[static_cast<std::size_t>(part_++)];
  if (width_ > most_bits) {
    throw Damage{"a page has differences of too many bits"};
  }
  in_part_ = 0;
}

std::int64_t Differences::next() {
  if (left_ == 0) {
    fail();
  }
  --left_;
  if (std::exchange(is_first_, false)) {
    return static_cast<std::int64_t>(value_);
  }
  if (in_part_ == part_values_) {
    begin_part();
  }
  auto const place = begin_ * octet_bits + in_part_++ * static_cast<std::uint64_t>(width_);
  value_ += least_ + bits_at(bytes_, place, width_);
  return static_cast<std::int64_t>(value_);
}

std::unique_ptr<Values> make_values(Type type, std::int64_t encoding,
                                    std::span<std::byte const> bytes, std::int64_t most,
                                    std::vector<Value> const& dictionary) {
  enum Encoding : std::uint8_t {
    plain = 0,
    plain_dictionary = 2,
    runs = 3,
    differences = 5,
    lengths = 6,
    prefixes = 7,
    dictionary_runs = 8,
    streams = 9,
  };
  bool const is_integer = type == Type::int32 || type == Type::int64;
  switch (encoding) {
    case plain:
      return std::make_unique<PlainValues>(type, bytes);
    case plain_dictionary:
    case dictionary_runs:
      return std::make_unique<DictionaryValues>(bytes, dictionary);
    case runs:
      if (type == Type::boolean) {
        return std::make_unique<BooleanRuns>(bytes);
      }
      break;
    case differences:
      if (is_integer) {
        return std::make_unique<DifferenceValues>(type, bytes, most);
      }
      break;
    case lengths:
      if (type == Type::bytes) {
        return std::make_unique<LengthsAndTexts>(bytes, most);
      }
      break;
    case prefixes:
      if (type == Type::bytes) {
        return std::make_unique<TextsWithPrefixes>(bytes, most);
      }
      break;
    case streams:
      if (type != Type::boolean && type != Type::bytes) {
        return std::make_unique<StreamValues>(type, bytes);
      }
      break;
    default:
      break;
  }
  throw Unread{fmt::format("has the encoding {}", encoding)};
}

std::vector<Value> read_dictionary(Type type, std::span<std::byte const> bytes,
                                   std::int64_t count) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  constexpr std::int64_t least_bytes = 4;  // a text's length, or a number
  if (count < 0 || count > most || count > std::ssize(bytes) / least_bytes) {
    throw Damage{"a dictionary has more values than it can have"};
  }
  PlainValues values{type, bytes};
  std::vector<Value> all;
  all.reserve(static_cast<std::size_t>(count));
  for (; count > 0; --count) {
    all.push_back(values.next());
  }
  return all;
}

}  // namespace offstage::parquet
