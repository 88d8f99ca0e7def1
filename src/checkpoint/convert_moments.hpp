#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/state_layout.hpp"

namespace offstage::checkpoint {

/// The extent of so many elements.
template <class Byte>
struct Extent {
  StateLayout const& layout;
  std::span<Byte> bytes;
  std::int64_t elements{};
};

/// Gives elements [begin, begin + from.elements) of `to` what `from` holds, whole chunks: planes that both have bit for bit,
/// other moments in the type of `to`; parameters of another type are left to the caller. FP32 holds every number exactly; in
/// other types numbers are rounded to nearest, ties away from zero, in 8 bits beside the scale of their block, and a
/// variance that is not zero stays so.
/// Threads: OpenMP. Errors: PreconditionError if they do not have the same moments.
void convert_moments(Extent<std::byte const> const& from, Extent<std::byte> const& to,
                     std::int64_t begin);

/// Whether no number changes: each moment of `to` is in FP32, or has the type that it has in `from`. An 8-bit code stands for
/// more digits than bf16 has.
[[nodiscard]] bool converts_exactly(StateLayout const& from, StateLayout const& to);

}  // namespace offstage::checkpoint
