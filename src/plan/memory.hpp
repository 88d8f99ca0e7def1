#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"

namespace offstage::plan {

/// What decides where the optimizer state's memory goes, per node.
struct MemoryDemand {
  std::int64_t shard_elements{};  ///< of the rank with most, padding included
  std::int64_t ranks_per_node = 1;
  std::int64_t gradient_bytes_per_element = 4;
  Bytes exchange_bytes{};            ///< per rank: buffers that gradients travel through
  Bytes reserve_bytes{};             ///< per rank: what libraries take beside; see plan_memory
  std::int64_t subgroup_elements{};  ///< wished for
  bool subgroup_is_default = true;   ///< then it may shrink to fit
  bool on_storage = false;
  Bytes host_memory{};  ///< the limit, per node
};

struct MemoryPlan {
  std::int64_t subgroup_elements{};
  int buffers{};       ///< 3 or more with storage, 0 in host memory
  Bytes gradients{};   ///< per rank, exchange buffers included
  Bytes state{};       ///< per rank, in host memory: buffers or the whole state
  Bytes node_total{};  ///< all ranks of the node
};

/// Three buffers on storage (one fetched, one updated, one flushed), four where they fit; a subgroup of
/// default size is halved until three buffers fit and the reserve stays free. The reserve is a wish: it
/// is given up where a subgroup of the size asked for, or of one chunk, fits only without it.
/// Errors: UsageError naming tiers.host-memory, what is needed for what, and what would help.
[[nodiscard]] MemoryPlan plan_memory(MemoryDemand const& demand);

}  // namespace offstage::plan
