#include "checkpoint/convert_moments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "kernels/optimizer/rounding.hpp"

namespace offstage::checkpoint {
namespace {

using Block = std::array<float, static_cast<std::size_t>(scale_block)>;

/// Random words with which stochastic rounding is rounding to nearest: half of the highest number
/// in the bits that it uses. It uses the upper bits for the momentum, and 16 or 20 lower ones for
/// the variance (kernels/optimizer/rounding.hpp).
constexpr std::uint32_t half_momentum = 0x80000000U;
constexpr std::uint32_t half_variance16 = 0x00008000U;
constexpr std::uint32_t half_variance8 = 0x00080000U;

/// A plane of moments, with its scales if it has any.
template <class Byte>
struct Moment {
  PlaneType type{};
  Byte* values{};
  Byte* scales{};
};

/// The moment's values from element `begin` on.
template <class Byte>
Moment<Byte> moment_in(Extent<Byte> const& extent, std::string const& name, std::int64_t begin) {
  Moment<Byte> moment;
  bool found = false;
  for (std::size_t i = 0; i < extent.layout.size(); ++i) {
    Plane const& plane = extent.layout.planes()[i];
    Byte* const values = extent.bytes.data() + extent.layout.plane_offset(i, extent.elements) +
                         extent.layout.plane_bytes(i, begin);
    if (plane.name == name) {
      moment.type = plane.type;
      moment.values = values;
      found = true;
    } else if (plane.name == name + "_scale") {
      moment.scales = values;
    }
  }
  require(found, "checkpoint: moments can be converted to the same ones alone");
  return moment;
}

template <class T>
T value_at(std::byte const* values, std::int64_t index) {
  T value{};
  std::memcpy(&value, values + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void set_value(std::byte* values, std::int64_t index, T value) {
  std::memcpy(values + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

Block decoded(Moment<std::byte const> const& from, std::int64_t block) {
  Block numbers{};
  float const scale = from.scales != nullptr ? value_at<float>(from.scales, block) : 1.0F;
  for (std::int64_t i = 0; i < scale_block; ++i) {
    std::int64_t const at = block * scale_block + i;
    float& number = numbers[static_cast<std::size_t>(i)];
    switch (from.type) {
      case PlaneType::fp32:
        number = value_at<float>(from.values, at);
        break;
      case PlaneType::bf16:
        number = to_float(value_at<bfloat16>(from.values, at));
        break;
      case PlaneType::signed8:
        number = kernels::momentum_of(value_at<std::uint8_t>(from.values, at), scale);
        break;
      case PlaneType::unsigned8:
        number = kernels::variance_of(value_at<std::uint8_t>(from.values, at), scale);
        break;
      case PlaneType::low16:
        throw PreconditionError{"checkpoint: moments have no lower halves"};
    }
  }
  return numbers;
}

kernels::BlockScale scale_of(Block const& numbers, kernels::CodeFormat format) {
  std::uint32_t largest = 0;
  for (float const number : numbers) {
    largest = std::max(largest, kernels::bits_of_float(number) & 0x7FFFFFFFU);
  }
  return kernels::scale_of(largest, format);
}

void encode(Block const& numbers, bool is_variance, Moment<std::byte> const& to,
            std::int64_t block) {
  auto const scale =
      scale_of(numbers, is_variance ? kernels::variance_codes : kernels::momentum_codes);
  for (std::int64_t i = 0; i < scale_block; ++i) {
    std::int64_t const at = block * scale_block + i;
    float const number = numbers[static_cast<std::size_t>(i)];
    switch (to.type) {
      case PlaneType::fp32:
        set_value(to.values, at, number);
        break;
      case PlaneType::bf16:
        if (std::isnan(number)) {
          set_value(to.values, at, bfloat16{bf16_canonical_nan});
        } else {
          set_value(to.values, at,
                    is_variance ? kernels::round_variance16(number, half_variance16)
                                : kernels::round_momentum16(number, half_momentum));
        }
        break;
      case PlaneType::signed8:
        set_value(to.values, at,
                  std::isnan(scale.scale)
                      ? std::uint8_t{0}
                      : kernels::round_momentum8(number, scale.inverse, half_momentum));
        break;
      case PlaneType::unsigned8:
        set_value(to.values, at,
                  std::isnan(scale.scale)
                      ? std::uint8_t{0}
                      : kernels::round_variance8(number, scale.inverse, half_variance8));
        break;
      case PlaneType::low16:
        throw PreconditionError{"checkpoint: moments have no lower halves"};
    }
  }
  if (to.scales != nullptr) {
    set_value(to.scales, block, scale.scale);
  }
}

}  // namespace

void convert_moments(Extent<std::byte const> const& from, Extent<std::byte> const& to,
                     std::int64_t begin) {
  for (std::size_t i = 0; i < to.layout.size(); ++i) {
    Plane const& plane = to.layout.planes()[i];
    auto const alike = std::ranges::find(from.layout.planes(), plane);
    if (alike != from.layout.planes().end()) {
      auto const source = static_cast<std::size_t>(alike - from.layout.planes().begin());
      std::copy_n(from.bytes.data() + from.layout.plane_offset(source, from.elements),
                  to.layout.plane_bytes(i, from.elements),
                  to.bytes.data() + to.layout.plane_offset(i, to.elements) +
                      to.layout.plane_bytes(i, begin));
      continue;
    }
    if (plane.elements_per_value > 1 || i == 0) {
      continue;
    }
    auto const source = moment_in(from, plane.name, 0);
    auto const target = moment_in(to, plane.name, begin);
    bool const is_variance = plane.name == "variance";
    std::int64_t const blocks = from.elements / scale_block;
#pragma omp parallel for schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
      encode(decoded(source, block), is_variance, target, block);
    }
  }
}

bool converts_exactly(StateLayout const& from, StateLayout const& to) {
  return std::ranges::all_of(to.planes(), [&](Plane const& plane) {
    return plane.type == PlaneType::fp32 ||
           std::ranges::find(from.planes(), plane) != from.planes().end();
  });
}

}  // namespace offstage::checkpoint
