#include "tensorboard/event.hpp"

#include <bit>
#include <cstddef>

#include "tensorboard/crc32c.hpp"

namespace offstage::tensorboard {
namespace {

/// Kinds of fields in protobuf's wire format.
enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class T>
void add_little_endian(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    text += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

void add_varint(std::string& text, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) {
    text += static_cast<char>(static_cast<unsigned char>(value | 0x80U));
  }
  text += static_cast<char>(value);
}

void add_tag(std::string& text, unsigned field, Wire wire) {
  add_varint(text, field << 3U | static_cast<unsigned>(wire));
}

void add_bytes(std::string& text, unsigned field, std::string_view bytes) {
  add_tag(text, field, Wire::bytes);
  add_varint(text, bytes.size());
  text += bytes;
}

void add_integer(std::string& text, unsigned field, std::int64_t value) {
  add_tag(text, field, Wire::varint);
  add_varint(text, static_cast<std::uint64_t>(value));
}

std::string event(double time, std::int64_t step) {
  constexpr unsigned wall_time_field = 1, step_field = 2;
  std::string text;
  add_tag(text, wall_time_field, Wire::fixed64);
  add_little_endian(text, std::bit_cast<std::uint64_t>(time));
  add_integer(text, step_field, step);
  return text;
}

}  // namespace

std::string version_event(double time) {
  constexpr unsigned file_version_field = 3;
  std::string text = event(time, 0);
  add_bytes(text, file_version_field, "brain.Event:2");
  return text;
}

std::string start_event(double time, std::int64_t step) {
  constexpr unsigned session_log_field = 7, status_field = 1;
  constexpr std::int64_t start = 1;
  std::string log;
  add_integer(log, status_field, start);
  std::string text = event(time, step);
  add_bytes(text, session_log_field, log);
  return text;
}

std::string scalars_event(double time, std::int64_t step, std::span<Scalar const> scalars) {
  constexpr unsigned summary_field = 5, value_field = 1, tag_field = 1, simple_value_field = 2;
  std::string summary;
  for (Scalar const& scalar : scalars) {
    std::string value;
    add_bytes(value, tag_field, scalar.tag);
    add_tag(value, simple_value_field, Wire::fixed32);
    add_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    add_bytes(summary, value_field, value);
  }
  std::string text = event(time, step);
  add_bytes(text, summary_field, summary);
  return text;
}

std::string framed(std::string_view event) {
  std::string record;
  add_little_endian(record, static_cast<std::uint64_t>(event.size()));
  add_little_endian(record, masked_crc32c(record));
  record += event;
  add_little_endian(record, masked_crc32c(event));
  return record;
}

}  // namespace offstage::tensorboard
