#pragma once

#include <cstddef>
#include <span>

#include "base/units.hpp"

namespace offstage::plan {

/// What backward can have swapped or computed again: a part of a block's activations.
struct SwapItem {
  double flops{};  ///< that its recomputation takes
  Bytes bytes{};   ///< that leave and come back
};

/// A micro-batch of a rank, for Fuyou's model of it.
struct SwapDemand {
  double forward_flops{};  ///< of forward's products
  Bytes always{};          ///< activations that leave whatever is chosen: the blocks' inputs
  Bytes parameters{};      ///< brought to the device in forward, and again in backward
  Bytes gradients{};       ///< that leave it in backward
  double compute{};        ///< floating-point operations per second
  double host_to_device{}, device_to_host{};  ///< bytes per second, while both directions run
};

struct SwapTimes {
  Seconds forward{}, backward{};
  [[nodiscard]] Seconds total() const { return forward + backward; }
};

/// Forward and backward where items of `swapped` bytes leave and such of `recomputed` operations do not.
/// Source: Fuyou section 4.5, equations 1 to 8; links go both ways at once, activations stay in host memory, and the optimizer is
///         left out, as nothing chosen here changes it.
/// Errors: PreconditionError: a rate that is not above 0.
[[nodiscard]] SwapTimes swap_times(SwapDemand const& demand, Bytes swapped, double recomputed);

/// How many of the items to swap, from the first on, while the others are computed again: the fewest with the least time.
/// Equations 9 to 11 bound the same search; here all counts are tried.
/// Source: Fuyou section 4.5. `items`: in the order of their swap benefit (equation 12), operations per byte, descending.
[[nodiscard]] std::size_t best_swap(SwapDemand const& demand, std::span<SwapItem const> items);

}  // namespace offstage::plan
