#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/dtype.hpp"
#include "base/state_layout.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Split parameters: the tiers hold their lower halves, and the bf16 working copy the upper ones.
/// Checkpoints hold whole parameters.
struct SplitParameters {
  StateLayout layout;  ///< layout of extents in the tiers; the parameter is low16
  /// Returns the subgroup's part of the working copy, in host memory.
  std::function<std::span<bfloat16>(state::Subgroup const&)> copy;

  /// Splits these parameters into elements [begin, begin + parameters.size()) of the subgroup: one
  /// half goes to its extent, the other to the working copy.
  /// Threads: OpenMP. Errors: PreconditionError: the extent is shorter, or the elements are not the
  ///          subgroup's.
  void split(state::Subgroup const& subgroup, std::span<std::byte> extent, std::int64_t begin,
             std::span<float const> parameters) const;
  /// Joins the halves to the same parameters, bit for bit; a NaN is canonical.
  void join(state::Subgroup const& subgroup, std::span<std::byte const> extent, std::int64_t begin,
            std::span<float> parameters) const;
};

}  // namespace offstage::checkpoint
