#include "parquet/thrift.hpp"

namespace offstage::parquet {
namespace {

constexpr int deepest_structure = 64;
constexpr int half_octet = 4;
constexpr int lower_half = 0x0F;

Kind kind_of(int bits) {
  if (bits < static_cast<int>(Kind::yes) || bits > static_cast<int>(Kind::structure)) {
    throw Damage{"a field has no known type"};
  }
  return static_cast<Kind>(bits);
}

}  // namespace

Thrift::Depth::Depth(Thrift& of) : of_{of} {
  if (of.depth_ == deepest_structure) {
    throw Damage{"its parts are nested too deeply"};
  }
  ++of.depth_;
}

std::span<std::byte const> Thrift::take(std::uint64_t count) {
  if (count > bytes_.size() - used_) {
    throw Cut{};
  }
  auto const part = bytes_.subspan(used_, static_cast<std::size_t>(count));
  used_ += part.size();
  return part;
}

std::uint8_t Thrift::octet() {
  return std::to_integer<std::uint8_t>(take(1).front());
}

std::uint64_t Thrift::varint() {
  constexpr int bits = 64;
  constexpr int per_octet = 7;
  std::uint64_t value = 0;
  for (int shift = 0; shift < bits; shift += per_octet) {
    std::uint64_t const next = octet();
    value |= (next & 0x7FU) << shift;
    if (next < 0x80U) {
      return value;
    }
  }
  throw Damage{"a number has too many bytes"};
}

std::int64_t Thrift::zigzag() {
  std::uint64_t const value = varint();
  return static_cast<std::int64_t>((value >> 1U) ^ (~(value & 1U) + 1));
}

bool Thrift::next(Field& field) {
  int const first = octet();
  if (first == 0) {
    return false;
  }
  int const step = first >> half_octet;
  auto const id = step != 0 ? field.id + step : zigzag();
  if (id < 0 || id > INT16_MAX) {
    throw Damage{"a field has no known number"};
  }
  field = {static_cast<int>(id), kind_of(first & lower_half)};
  return true;
}

void Thrift::require(Field const& field, Kind kind) {
  if (field.kind != kind) {
    throw Damage{"field " + std::to_string(field.id) + " has another type"};
  }
}

std::int64_t Thrift::list_size(Kind element) {
  constexpr int long_list = 15;
  int const first = octet();
  auto const size = (first >> half_octet) == long_list
                        ? varint()
                        : static_cast<std::uint64_t>(first >> half_octet);
  if (size > bytes_.size() - used_) {  // an element takes a byte or more
    throw Cut{};
  }
  if (size > 0 && kind_of(first & lower_half) != element) {
    throw Damage{"a list has elements of another type"};
  }
  return static_cast<std::int64_t>(size);
}

bool Thrift::take(Field const& field, std::initializer_list<Wanted> wanted) {
  for (auto const& [id, value] : wanted) {
    if (id == field.id) {
      *value = integer(field);
      return true;
    }
  }
  return false;
}

std::int64_t Thrift::integer(Field const& field) {
  if (field.kind != Kind::int16 && field.kind != Kind::int32 && field.kind != Kind::int64) {
    require(field, Kind::int64);
  }
  return zigzag();
}

bool Thrift::truth(Field const& field) {
  if (field.kind != Kind::no) {
    require(field, Kind::yes);
  }
  return field.kind == Kind::yes;
}

std::string Thrift::text(Field const& field) {
  require(field, Kind::binary);
  return text();
}

std::string Thrift::text() {
  auto const bytes = take(varint());
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

void Thrift::skip_elements(Kind kind) {
  // Elements that are true or false have a byte, unlike fields.
  if (kind == Kind::yes || kind == Kind::no) {
    kind = Kind::byte;
  }
  skip(kind);
}

void Thrift::skip(Kind kind) {
  constexpr std::uint64_t number_bytes = 8;
  Depth const depth{*this};
  switch (kind) {
    case Kind::yes:
    case Kind::no:
      return;
    case Kind::byte:
      static_cast<void>(take(1));
      return;
    case Kind::int16:
    case Kind::int32:
    case Kind::int64:
      static_cast<void>(varint());
      return;
    case Kind::number:
      static_cast<void>(take(number_bytes));
      return;
    case Kind::binary:
      static_cast<void>(take(varint()));
      return;
    case Kind::list:
    case Kind::set: {
      constexpr int long_list = 15;
      int const first = octet();
      bool const is_long = (first >> half_octet) == long_list;
      auto left = is_long ? varint() : static_cast<std::uint64_t>(first >> half_octet);
      for (; left > 0; --left) {
        skip_elements(kind_of(first & lower_half));
      }
      return;
    }
    case Kind::map: {
      auto left = varint();
      int const kinds = left > 0 ? octet() : 0;
      for (; left > 0; --left) {
        skip_elements(kind_of(kinds >> half_octet));
        skip_elements(kind_of(kinds & lower_half));
      }
      return;
    }
    case Kind::structure:
      structure([](Field const& /*field*/) { return false; });
      return;
  }
}

}  // namespace offstage::parquet
