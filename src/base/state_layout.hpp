#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.hpp"

namespace offstage {

/// How a plane keeps its values.
enum class PlaneType {
  fp32,       ///< 4 bytes
  bf16,       ///< 2 bytes
  signed8,    ///< 1 byte: a code of a signed number, beside a plane of scales
  unsigned8,  ///< 1 byte: a code of a number that is not negative, beside a plane of scales
  low16,      ///< 2 bytes: the lower half of an FP32 whose upper half is the bf16 working copy's
};
/// "fp32", "bf16", "signed8", "unsigned8", "low16".
[[nodiscard]] std::string_view name_of(PlaneType type);
/// Bytes of one value.
[[nodiscard]] Bytes bytes_of(PlaneType type);

/// Elements that share one scale of an 8-bit plane; divides chunk_elements.
constexpr std::int64_t scale_block = 256;

/// One array of the optimizer state.
struct Plane {
  /// "parameter", "momentum", "variance", "momentum_scale", ...: as in checkpoints.
  std::string name;
  PlaneType type{};
  std::int64_t elements_per_value = 1;  ///< 1, or scale_block for scales
  friend bool operator==(Plane const&, Plane const&) = default;
};

/// Alignment of planes in an extent. Each plane is rounded up to it with zeros behind its values,
/// so that direct I/O can read and write any of them.
constexpr Bytes plane_alignment = 4096;

/// Planes of a run's optimizer state. They follow each other, in this order, in the extent of a
/// subgroup of N elements, each rounded up to plane_alignment; N is a multiple of chunk_elements.
class StateLayout {
 public:
  /// Errors: PreconditionError if the first plane is not the parameter, or values do not divide a
  /// chunk.
  explicit StateLayout(std::vector<Plane> planes);

  [[nodiscard]] std::vector<Plane> const& planes() const noexcept { return planes_; }
  [[nodiscard]] std::size_t size() const noexcept { return planes_.size(); }
  /// Bytes of this plane's values for N elements.
  [[nodiscard]] Bytes plane_bytes(std::size_t plane, std::int64_t elements) const;
  /// The same, rounded up to plane_alignment.
  [[nodiscard]] Bytes padded_bytes(std::size_t plane, std::int64_t elements) const;
  /// Where the plane begins in the extent of N elements.
  [[nodiscard]] Bytes plane_offset(std::size_t plane, std::int64_t elements) const;
  /// Bytes of the extent of N elements.
  [[nodiscard]] Bytes bytes(std::int64_t elements) const;
  /// Zeros what pads the planes of an extent of N elements.
  void clear_padding(std::span<std::byte> extent, std::int64_t elements) const;
  /// Bytes of state per parameter in a large extent: 12 for AdamW with FP32 moments.
  [[nodiscard]] double bytes_per_element() const;

  friend bool operator==(StateLayout const&, StateLayout const&) = default;

 private:
  std::vector<Plane> planes_;
};

/// AdamW's with FP32 moments: parameter, momentum, variance.
[[nodiscard]] StateLayout adamw_layout();

/// "12", "6.03": bytes of state per parameter, as messages say it.
[[nodiscard]] std::string format_bytes_per_element(StateLayout const& layout);

}  // namespace offstage
