#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "base/units.hpp"
#include "plan/split.hpp"

namespace offstage::plan {

/// A part of a block's activations that can be swapped or computed again for backward.
struct SwapItem {
  double flops{};  ///< operations of its recomputation
  Bytes bytes{};   ///< bytes that leave and come back
};

/// Transfers and updates that go on beside a micro-batch's activations, whichever of these are
/// swapped.
struct SwapCompany {
  Bytes parameters{};   ///< brought to the device in forward, and again in backward
  Bytes gradients{};    ///< gradients that leave the device in backward
  Bytes stored_read{};  ///< parameters that storage gives in forward, and again in backward
  /// Bytes of state, parameters and gradients of an update under backward.
  Bytes update_read{}, update_written{};
  Seconds update{};  ///< seconds of the cores in that update
  /// Bytes of activations for which host memory has room; the others go to storage.
  Bytes host_room = std::numeric_limits<Bytes>::max();
};

/// A micro-batch of a rank, for Fuyou's model of it.
struct SwapDemand {
  double forward_flops{};  ///< operations of forward's products
  Bytes always{};          ///< activations that leave in any case: the blocks' inputs
  SwapCompany company{};
  double compute{};                           ///< floating-point operations per second
  double host_to_device{}, device_to_host{};  ///< bytes per second, while both directions run
  PathRate storage{};                         ///< rate of all paths together; 0: there is none
};

struct SwapTimes {
  Seconds forward{}, backward{};
  [[nodiscard]] Seconds total() const { return forward + backward; }
};

/// Times of forward and backward if items of `swapped` bytes leave, and items of `recomputed`
/// operations are computed again. Without storage, bytes for it take for ever (infinity).
/// Source: Fuyou section 4.5, equations 1 to 8. The link goes both ways at once, and storage as its
///         PathRate says.
/// Errors: PreconditionError: a rate of the device or its link that is not above 0.
[[nodiscard]] SwapTimes swap_times(SwapDemand const& demand, Bytes swapped, double recomputed);

/// The number of items to swap, from the first on, while the others are computed again: the
/// smallest number with the least time. Equations 9 to 11 bound the same search; here all numbers
/// up to `most` are tried.
/// Source: Fuyou section 4.5. `items` are in descending order of their swap benefit (equation 12),
///         operations per byte.
[[nodiscard]] std::size_t best_swap(SwapDemand const& demand, std::span<SwapItem const> items,
                                    std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace offstage::plan
