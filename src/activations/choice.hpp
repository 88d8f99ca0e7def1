#pragma once

#include <vector>

#include "activations/policy.hpp"
#include "base/units.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "plan/swapping.hpp"

namespace offstage::activations {

/// The fates of each block, in type T; `automatic` counts as `keep`. Where not all can be swapped,
/// or stay, the parts whose recomputation takes most operations per byte are, or do (Fuyou equation
/// 12), in all blocks; those of the last such part in blocks that are spread evenly, so that the
/// link is never idle for long.
template <class T>
[[nodiscard]] std::vector<model::BlockFates> block_fates(Policy const& policy,
                                                         model::Dims const& dims, int blocks);

/// The rates that Fuyou's rule goes by, of one rank while all do the same.
struct Rates {
  double compute{};  ///< floating-point operations per second; 0: not known
  double host_to_device{}, device_to_host{};  ///< bytes per second; 0: not known
  plan::PathRate storage{};                   ///< rate of all paths together; 0: not known, or none
  [[nodiscard]] bool known() const {
    return compute > 0.0 && host_to_device > 0.0 && device_to_host > 0.0;
  }
};

/// Parts of a block that products make.
constexpr int product_parts = 4;

/// Blocks, and how many of them keep their parts whatever is chosen: the last of each copy in the
/// ring.
struct BlockCount {
  int all{};
  int staying{};
};

/// The share that takes least time by plan::best_swap, and that time.
struct PaperChoice {
  double share{};
  Seconds seconds{};
};
/// The choice among shares of which no more than `parts` parts leave, the first ones in the order
/// of their benefit. `rates` are known.
template <class T>
[[nodiscard]] PaperChoice paper_choice(Rates const& rates, plan::SwapCompany const& company,
                                       model::Dims const& dims, BlockCount blocks,
                                       int parts = product_parts);
/// The share with which so many parts leave in all blocks, and no other.
template <class T>
[[nodiscard]] double share_of_parts(model::Dims const& dims, int parts);
/// The time of a micro-batch by the same model, if nothing leaves, and all but what stays by
/// `policy`, which is `part` or `recompute`, is computed again.
template <class T>
[[nodiscard]] Seconds recompute_seconds(Rates const& rates, plan::SwapCompany const& company,
                                        model::Dims const& dims, BlockCount blocks,
                                        Policy const& policy);

}  // namespace offstage::activations
