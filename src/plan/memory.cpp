#include "plan/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::plan {
namespace {

constexpr Bytes state_bytes_per_element = 12;
constexpr int least_buffers = 3;
constexpr int most_buffers = 4;

}  // namespace

MemoryPlan plan_memory(MemoryDemand const& demand) {
  MemoryPlan plan;
  plan.subgroup_elements =
      std::clamp(demand.subgroup_elements / chunk_elements * chunk_elements, chunk_elements,
                 std::max(chunk_elements, demand.shard_elements));
  plan.gradients =
      demand.gradient_bytes_per_element * demand.shard_elements + demand.exchange_bytes;
  Bytes const per_rank = demand.host_memory / demand.ranks_per_node;
  Bytes const left = per_rank - plan.gradients;

  if (!demand.on_storage) {
    plan.state = state_bytes_per_element * demand.shard_elements;
    plan.node_total = (plan.gradients + plan.state) * demand.ranks_per_node;
    if (plan.state > left) {
      throw UsageError{fmt::format(
          "tiers.host-memory={} is too small: the optimizer state needs {} and the gradients {} on "
          "each node; raise it, or set tiers.path to a directory on local storage",
          format_bytes(demand.host_memory), format_bytes(plan.state * demand.ranks_per_node),
          format_bytes(plan.gradients * demand.ranks_per_node))};
    }
    return plan;
  }

  auto const buffer_bytes = [&] { return state_bytes_per_element * plan.subgroup_elements; };
  Bytes const wished = left - demand.reserve_bytes;
  while (demand.subgroup_is_default && plan.subgroup_elements > chunk_elements &&
         least_buffers * buffer_bytes() > wished) {
    plan.subgroup_elements =
        std::max(chunk_elements, plan.subgroup_elements / 2 / chunk_elements * chunk_elements);
  }
  if (least_buffers * buffer_bytes() > left) {
    throw UsageError{fmt::format(
        "tiers.host-memory={} is too small: gradients need {} and {} buffers of "
        "update.subgroup-size={} parameters need {} on each node; raise it{}",
        format_bytes(demand.host_memory), format_bytes(plan.gradients * demand.ranks_per_node),
        least_buffers, plan.subgroup_elements,
        format_bytes(least_buffers * buffer_bytes() * demand.ranks_per_node),
        demand.subgroup_is_default ? "" : ", or lower update.subgroup-size")};
  }
  plan.buffers =
      static_cast<int>(std::clamp<Bytes>(wished / buffer_bytes(), least_buffers, most_buffers));
  plan.state = plan.buffers * buffer_bytes();
  plan.node_total = (plan.gradients + plan.state) * demand.ranks_per_node;
  return plan;
}

}  // namespace offstage::plan
