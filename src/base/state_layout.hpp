#pragma once

#include <cstddef>
#include <cstdint>
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
  std::string
      name;  ///< "parameter", "momentum", "variance", "momentum_scale", ...: as in checkpoints
  PlaneType type{};
  std::int64_t elements_per_value = 1;  ///< 1, or scale_block for scales
  friend bool operator==(Plane const&, Plane const&) = default;
};

/// What the optimizer state of a run consists of: its planes. They follow each other, in this order and without gaps,
/// in the extent of a subgroup of N elements; N is a multiple of chunk_elements.
class StateLayout {
 public:
  /// Errors: PreconditionError if the first plane is not the parameter, or values do not divide a chunk.
  explicit StateLayout(std::vector<Plane> planes);

  [[nodiscard]] std::vector<Plane> const& planes() const noexcept { return planes_; }
  /// Values of this plane for N elements.
  [[nodiscard]] std::int64_t values(std::size_t plane, std::int64_t elements) const;
  /// Bytes of these values.
  [[nodiscard]] Bytes plane_bytes(std::size_t plane, std::int64_t elements) const;
  /// Where the plane begins in the extent of N elements.
  [[nodiscard]] Bytes plane_offset(std::size_t plane, std::int64_t elements) const;
  /// Bytes of the planes of N elements.
  [[nodiscard]] Bytes bytes(std::int64_t elements) const;
  /// Bytes of the extent that holds N elements: a whole number of storage blocks (extent_block), for direct I/O.
  [[nodiscard]] Bytes extent_bytes(std::int64_t elements) const;
  /// Bytes of state per parameter: 12 for AdamW with FP32 moments.
  [[nodiscard]] double bytes_per_element() const;

  friend bool operator==(StateLayout const&, StateLayout const&) = default;

 private:
  std::vector<Plane> planes_;
};

/// What extents are rounded up to.
constexpr Bytes extent_block = 4096;

/// "12", "6.03": bytes of state per parameter, as messages say it.
[[nodiscard]] std::string format_bytes_per_element(StateLayout const& layout);

}  // namespace offstage
