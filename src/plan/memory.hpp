#pragma once

#include <cstdint>
#include <string>

#include "base/state_layout.hpp"
#include "base/units.hpp"

namespace offstage::plan {

/// Demands that decide the place of the optimizer state, per node.
struct MemoryDemand {
  StateLayout state = adamw_layout();
  std::int64_t shard_elements{};     ///< elements of the rank with most, padding included
  std::int64_t resident_elements{};  ///< elements of it whose state lives in device memory
  std::int64_t ranks_per_node = 1;
  std::int64_t gradient_bytes_per_element = 4;  ///< bytes of the accumulated gradient
  bool flush_fp32 = false;  ///< gradients go to storage in FP32 beside (update.gradients)
  Bytes exchange_bytes{};   ///< per rank: buffers that gradients and gathered layers travel through
  Bytes activation_bytes{};  ///< per rank: activations that wait in host memory for backward
  /// Per rank: number of blocks whose activations may wait on storage instead. The next members are
  /// the size of each one's extent, and the wished number in flight. 0: none may.
  std::int64_t activation_extents = 0;
  Bytes activation_extent{};
  int activation_buffers = 0;
  /// Bytes of the working copy if the device does not have it; 0: the device has it.
  Bytes parameter_bytes_per_element = 0;
  /// Elements of the working copy that the ranks of a node share. An equal part of them counts for
  /// each rank. 0: each has its shard's.
  std::int64_t shared_parameters = 0;
  /// The working copy is on storage; else all of it stays in host memory.
  bool parameters_on_storage = false;
  int parameter_buffers = 0;         ///< wished number of its extents in flight; on storage
  Bytes reserve_bytes{};             ///< per rank: memory for libraries; see plan_memory
  std::int64_t subgroup_elements{};  ///< wished size of a subgroup
  bool subgroup_is_default = true;   ///< the size is the default, so it may shrink to fit
  std::int64_t paths = 0;            ///< storage paths; 0: the state lives in host memory
  /// Wish for second versions of extents in host memory, as far as memory goes.
  bool spares = false;
  Bytes most_cache = -1;  ///< tiers.cache, per node; below 0: no limit
  Bytes host_memory{};    ///< the limit, per node
  /// Nobody gave the limit: it is 90 % of what the node, or the process's cgroup, has free.
  bool host_memory_is_found = false;
};

/// Memory of a rank, in units of subgroups (of `subgroup_elements`; the last one may be smaller).
/// An extent takes one place: a buffer or a place in the cache. A tier needs min(subgroups, buffers
/// + cached) places. With cached == subgroups nothing goes to storage.
struct MemoryPlan {
  std::int64_t subgroup_elements{};
  std::int64_t subgroups{};  ///< subgroups of the rank with most, resident ones not included
  int buffers{};             ///< state extents in flight; 0 without paths
  std::int64_t cached{};     ///< state extents that stay in host memory
  int gradient_buffers{};    ///< gradient extents in flight; 0 if all stay
  /// Gradient extents that stay in host memory, those of resident subgroups included.
  std::int64_t gradients_cached{};
  int parameter_buffers{};  ///< extents of the working copy in flight; 0 unless it is on storage
  std::int64_t spares{};    ///< state extents with a second version in host memory at a time
  Bytes gradients{};    ///< per rank: gradients in host memory, their buffers and the exchange's
  Bytes parameters{};   ///< per rank: the working copy in host memory, its part, or its buffers
  Bytes activations{};  ///< per rank: those that wait for backward, and their buffers
  int activation_buffers{};  ///< extents of activations in flight; 0 if none may go to storage
  std::int64_t activations_cached{};  ///< extents of them that stay in host memory
  Bytes state{};       ///< per rank: buffers, cache and spares, or the whole state and spares
  Bytes node_total{};  ///< all ranks of the node
};

/// Divides the limit among these, in this order, each as far as the ones before leave memory:
///   1. exchange buffers; activations that stay, or two buffers of them; three state buffers (one
///      fetched, one updated, one flushed); the working copy, or three buffers of it (one read, one
///      sent to the device, one updated); the least of the gradients that 2. allows. A subgroup of
///      default size is halved until they fit and the reserve stays free.
///   2. gradients: all of them, or three gradient buffers and as many gradients as fit; the others
///      spill. With flush_fp32 all must fit, and three FP32 buffers beside.
///   3. further buffers of activations, and as many of their extents as fit. Each of these saves a
///      write and a read in every micro-batch; an extent of the state saves one in every step. Then
///      buffers of the working copy, as many as are wished for, and of the state, 2 + 2 per path in
///      all, so that every path always has work.
///   4. the cache. All extents stay if there is a place for each and most_cache allows it.
///   5. second versions, if all extents stay and second versions are asked for.
/// On several paths a subgroup of default size is first made so small that the ranks of the node
/// have 32 together and 8 each, but not below 2 Mi parameters. The split then comes near to its
/// weights, and every path has work from the first moment to the last (perf/README.md has the
/// figures). There are never more buffers than subgroups. The reserve is a wish: it is given up if
/// a subgroup of the size asked for, or of one chunk, fits only without it. Without paths
/// everything but second versions must fit.
/// Errors: UsageError naming tiers.host-memory, what is needed for what, and what would help;
///         PreconditionError: something negative, flush_fp32 or parameters_on_storage without
///         paths.
[[nodiscard]] MemoryPlan plan_memory(MemoryDemand const& demand);

}  // namespace offstage::plan
