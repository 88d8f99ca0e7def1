#include "base/state_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage {

std::string_view name_of(PlaneType type) {
  switch (type) {
    case PlaneType::fp32:
      return "fp32";
    case PlaneType::bf16:
      return "bf16";
    case PlaneType::signed8:
      return "signed8";
    case PlaneType::unsigned8:
      return "unsigned8";
    case PlaneType::low16:
      return "low16";
  }
  throw PreconditionError{"PlaneType: no such type"};
}

Bytes bytes_of(PlaneType type) {
  switch (type) {
    case PlaneType::fp32:
      return 4;
    case PlaneType::bf16:
    case PlaneType::low16:
      return 2;
    case PlaneType::signed8:
    case PlaneType::unsigned8:
      return 1;
  }
  throw PreconditionError{"PlaneType: no such type"};
}

StateLayout::StateLayout(std::vector<Plane> planes) : planes_{std::move(planes)} {
  require(!planes_.empty() && planes_.front().name == "parameter" &&
              planes_.front().elements_per_value == 1,
          "StateLayout: the parameter comes first");
  for (Plane const& plane : planes_) {
    require(plane.elements_per_value >= 1 && chunk_elements % plane.elements_per_value == 0,
            "StateLayout: a chunk is a whole number of values of every plane");
  }
}

Bytes StateLayout::plane_bytes(std::size_t plane, std::int64_t elements) const {
  return elements / planes_[plane].elements_per_value * bytes_of(planes_[plane].type);
}

Bytes StateLayout::padded_bytes(std::size_t plane, std::int64_t elements) const {
  return round_up(plane_bytes(plane, elements), plane_alignment);
}

Bytes StateLayout::plane_offset(std::size_t plane, std::int64_t elements) const {
  Bytes offset = 0;
  for (std::size_t before = 0; before < plane; ++before) {
    offset += padded_bytes(before, elements);
  }
  return offset;
}

Bytes StateLayout::bytes(std::int64_t elements) const {
  return plane_offset(size(), elements);
}

void StateLayout::clear_padding(std::span<std::byte> extent, std::int64_t elements) const {
  for (std::size_t plane = 0; plane < size(); ++plane) {
    Bytes const values = plane_bytes(plane, elements);
    std::ranges::fill(
        extent.subspan(static_cast<std::size_t>(plane_offset(plane, elements) + values),
                       static_cast<std::size_t>(padded_bytes(plane, elements) - values)),
        std::byte{});
  }
}

double StateLayout::bytes_per_element() const {
  Bytes bytes = 0;  // of a chunk, without padding
  for (std::size_t plane = 0; plane < size(); ++plane) {
    bytes += plane_bytes(plane, chunk_elements);
  }
  return static_cast<double>(bytes) / static_cast<double>(chunk_elements);
}

StateLayout adamw_layout() {
  return StateLayout{{{"parameter", PlaneType::fp32},
                      {"momentum", PlaneType::fp32},
                      {"variance", PlaneType::fp32}}};
}

std::string format_bytes_per_element(StateLayout const& layout) {
  return fmt::format("{:.3g}", layout.bytes_per_element());
}

}  // namespace offstage
