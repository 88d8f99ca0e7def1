#include "checkpoint/optimizer_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::size_t most_planes = 16;
constexpr std::size_t longest_name = 32;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= longest_name &&
         std::ranges::all_of(text, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

std::optional<PlaneType> parse_type(std::string_view text) {
  constexpr std::array types{PlaneType::fp32, PlaneType::bf16, PlaneType::signed8,
                             PlaneType::unsigned8};
  auto const* const found =
      std::ranges::find_if(types, [&](PlaneType type) { return name_of(type) == text; });
  return found == types.end() ? std::nullopt : std::optional{*found};
}

/// A number of elements of which a chunk is a multiple.
std::optional<std::int64_t> parse_divisor(std::string_view text) {
  auto const value = number_in<std::int64_t>(text);
  return value && *value >= 1 && chunk_elements % *value == 0 ? value : std::nullopt;
}

std::optional<Plane> parse_plane(std::string_view text) {
  std::string_view const name = take_until(':', text);
  auto const type = parse_type(take_until('/', text));
  auto const elements = text.empty() ? std::optional<std::int64_t>{1} : parse_divisor(text);
  if (!is_name(name) || !type || !elements) {
    return std::nullopt;
  }
  return Plane{std::string{name}, *type, *elements};
}

bool is_8_bits(Plane const& plane) {
  return plane.type == PlaneType::signed8 || plane.type == PlaneType::unsigned8;
}

/// Returns whether each plane of codes has its scales, and no other plane has values for several
/// elements.
bool have_scales(std::vector<Plane> const& planes) {
  auto const scales_of = [](Plane const& plane) {
    return Plane{plane.name + "_scale", PlaneType::fp32, scale_block};
  };
  return std::ranges::all_of(planes, [&](Plane const& plane) {
    if (plane.elements_per_value > 1) {
      return std::ranges::any_of(planes, [&](Plane const& codes) {
        return is_8_bits(codes) && plane == scales_of(codes);
      });
    }
    return !is_8_bits(plane) || std::ranges::find(planes, scales_of(plane)) != planes.end();
  });
}

}  // namespace

std::string to_text(StateLayout const& layout) {
  std::string text;
  for (Plane const& plane : layout.planes()) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", plane.name, name_of(plane.type));
    if (plane.elements_per_value > 1) {
      text += fmt::format("/{}", plane.elements_per_value);
    }
  }
  return text;
}

std::optional<StateLayout> parse_layout(std::string_view text) {
  std::vector<Plane> planes;
  if (text.ends_with(',')) {
    return std::nullopt;
  }
  while (!text.empty()) {
    auto plane = parse_plane(take_until(',', text));
    bool const again =
        plane && std::ranges::find(planes, plane->name, &Plane::name) != planes.end();
    if (!plane || again || planes.size() == most_planes) {
      return std::nullopt;
    }
    planes.push_back(*std::move(plane));
  }
  bool const has_parameter =
      !planes.empty() && planes.front() == Plane{"parameter", PlaneType::fp32};
  return has_parameter && have_scales(planes) ? std::optional{StateLayout{std::move(planes)}}
                                              : std::nullopt;
}

h5::Type dataset_type(Plane const& plane) {
  switch (plane.type) {
    case PlaneType::fp32:
      return h5::Type::f32;
    case PlaneType::bf16:
      return h5::Type::bf16;
    case PlaneType::signed8:
      return h5::Type::i8;
    case PlaneType::unsigned8:
      return h5::Type::u8;
    case PlaneType::low16:  // a checkpoint holds whole parameters
      break;
  }
  throw PreconditionError{"checkpoint: a plane of no type that checkpoints have"};
}

std::int64_t dataset_values(StateLayout const& layout, std::size_t plane, std::int64_t elements) {
  return layout.padded_bytes(plane, elements) / bytes_of(layout.planes()[plane].type);
}

}  // namespace offstage::checkpoint
