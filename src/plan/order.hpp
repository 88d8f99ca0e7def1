#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace offstage::plan {

/// The key update.order.
enum class UpdateOrder { alternate, ascending };

/// The order in which a step updates subgroups 0 .. n - 1: ascending, or under `alternate`
/// descending in every second step (MLP section 3.2). With `spread`, subgroups that are `in_memory`
/// are distributed evenly among the others, each kind in that order, so that their computation
/// hides under the others' transfers from the first moment on. Without `spread` the order is not
/// changed.
[[nodiscard]] std::vector<std::int64_t> update_order(UpdateOrder order, std::int64_t step,
                                                     std::vector<bool> const& in_memory,
                                                     bool spread);

}  // namespace offstage::plan
