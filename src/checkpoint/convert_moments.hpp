#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/state_layout.hpp"

namespace offstage::checkpoint {

/// An extent of so many elements.
template <class Byte>
struct Extent {
  StateLayout const& layout;
  std::span<Byte> bytes;
  std::int64_t elements{};
};

/// Copies `from` to elements [begin, begin + from.elements) of `to`, in whole chunks. Planes that
/// both have are copied bit for bit, and other moments are converted to the type of `to`.
/// Parameters of another type are left to the caller. FP32 holds every number exactly. In other
/// types numbers are rounded to nearest, ties away from zero; 8-bit codes have the scale of their
/// block beside them. A variance that is not zero stays so.
/// Threads: OpenMP. Errors: PreconditionError if they do not have the same moments.
void convert_moments(Extent<std::byte const> const& from, Extent<std::byte> const& to,
                     std::int64_t begin);

/// Returns whether no number changes: each moment of `to` is in FP32, or has the type that it has
/// in `from`. An 8-bit code stands for more digits than bf16 has.
[[nodiscard]] bool converts_exactly(StateLayout const& from, StateLayout const& to);

}  // namespace offstage::checkpoint
