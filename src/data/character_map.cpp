#include "data/character_map.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

namespace offstage::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tables of characters are little-endian");

// Fields of SentencePiece's messages.
constexpr std::uint64_t normalizer_field = 3, denormalizer_field = 5, map_field = 2;

std::optional<std::uint64_t> take_number(std::string_view& bytes) {
  constexpr unsigned most_bits = 64, bits = 7;
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < most_bits && !bytes.empty(); shift += bits) {
    auto const byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    number |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) {
      return number;
    }
  }
  return std::nullopt;
}

bool skip(std::string_view& bytes, std::size_t count) {
  bool const are_there = bytes.size() >= count;
  bytes.remove_prefix(are_there ? count : 0);
  return are_there;
}

/// Calls is_sound(number, contents) for each field of a message that has bytes. Returns whether it
/// can be read to its end, and all are sound.
template <class IsSound>
bool all_fields(std::string_view message, IsSound const& is_sound) {
  while (!message.empty()) {
    auto const tag = take_number(message);
    if (!tag || *tag > std::numeric_limits<std::uint32_t>::max()) {
      return false;
    }
    bool good = false;
    switch (*tag & 7U) {
      case 0:
        good = take_number(message).has_value();
        break;
      case 1:
        good = skip(message, 8);
        break;
      case 2: {
        auto const size = take_number(message);
        good = size && *size <= message.size() &&
               is_sound(*tag >> 3U, message.substr(0, static_cast<std::size_t>(*size))) &&
               skip(message, static_cast<std::size_t>(*size));
        break;
      }
      case 5:
        good = skip(message, 4);
        break;
      default:  // groups, which no model has
        break;
    }
    if (!good) {
      return false;
    }
  }
  return true;
}

/// The bytes of a double array of darts-clone, with their number in front, and texts with a 0
/// behind each. A node's children, and the number of its text, stand in the block of 256 units that
/// its offset names.
bool is_sound_map(std::string_view map) {
  constexpr std::size_t block = 256;
  constexpr std::uint32_t leaf = 1U << 31U;
  std::uint32_t bytes = 0;
  if (map.empty()) {
    return true;
  }
  if (map.size() <= sizeof bytes) {
    return false;
  }
  std::memcpy(&bytes, map.data(), sizeof bytes);
  map.remove_prefix(sizeof bytes);
  if (bytes == 0 || bytes % (block * sizeof(std::uint32_t)) != 0 || bytes >= map.size() ||
      map.back() != '\0') {
    return false;
  }
  std::vector<std::uint32_t> units(bytes / sizeof(std::uint32_t));
  std::memcpy(units.data(), map.data(), bytes);
  std::size_t const text_bytes = map.size() - bytes;
  for (std::size_t i = 0; i < units.size(); ++i) {
    std::uint32_t const unit = units[i];
    if (i > 0 && (unit & leaf) != 0) {
      continue;
    }
    std::size_t const next = i ^ (std::size_t{unit >> 10U} << ((unit & (1U << 9U)) >> 6U));
    bool const has_text = (unit & (1U << 8U)) != 0;
    if ((next | (block - 1)) >= units.size() || (has_text && (units[next] & ~leaf) >= text_bytes)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool has_sound_character_maps(std::string_view model) {
  return all_fields(model, [](std::uint64_t field, std::string_view contents) {
    bool const has_map = field == normalizer_field || field == denormalizer_field;
    return !has_map || all_fields(contents, [](std::uint64_t inner, std::string_view map) {
      return inner != map_field || is_sound_map(map);
    });
  });
}

}  // namespace offstage::data
