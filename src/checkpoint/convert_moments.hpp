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
/// other moments in the type of `to`; parameters of another type are left to the caller. A wider type holds every number exactly; to a narrower one numbers are rounded to nearest, ties
/// away from zero, in 8 bits beside the scale of their block, and a variance that is not zero stays so.
/// Threads: OpenMP. Errors: PreconditionError if they do not have the same moments.
void convert_moments(Extent<std::byte const> const& from, Extent<std::byte> const& to,
                     std::int64_t begin);

}  // namespace offstage::checkpoint
