#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/dtype.hpp"
#include "base/state_layout.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Parameters of which the tiers hold the lower halves, and the bf16 working copy the upper ones. Checkpoints hold whole
/// ones.
struct SplitParameters {
  StateLayout layout;  ///< of extents in the tiers: the parameter is low16
  /// The working copy's part that is the subgroup's, in host memory.
  std::function<std::span<bfloat16>(state::Subgroup const&)> copy;

  /// Gives these to elements [begin, begin + parameters.size()) of the subgroup, in its extent and in the copy.
  /// Threads: OpenMP. Errors: PreconditionError: the extent is shorter, or the elements are not the subgroup's.
  void split(state::Subgroup const& subgroup, std::span<std::byte> extent, std::int64_t begin,
             std::span<float const> parameters) const;
  /// The same back, bit for bit; a NaN is canonical.
  void join(state::Subgroup const& subgroup, std::span<std::byte const> extent, std::int64_t begin,
            std::span<float> parameters) const;
};

}  // namespace offstage::checkpoint
