#pragma once

#include <cstdint>

#include "config/run_config.hpp"
#include "parameters/home.hpp"
#include "plan/memory.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// The share of what is free that tiers.host-memory=auto takes.
constexpr double auto_host_share = 0.9;

/// The program's own pages, its libraries and stacks, of a rank and beside the plan: part of the
/// peak that is held against it. Measured: 12 MiB with 4 M parameters, 13 with 25 M, 10 to 16 with
/// other types, threads and ranks. MemoryDemand::reserve_bytes leaves room for more.
constexpr Bytes usual_library_bytes = 25 * MiB / 2;

/// Where the ranks of a run are.
struct NodeShape {
  int ranks_per_node = 1;
  state::Route route = state::Route::in_place;  ///< of layers between ranks (device_demand.hpp)
  Bytes host_memory{};                          ///< the limit, per node
};

/// Contents that a run's host memory must hold, from its configuration alone: for the run itself and for `offstage
/// plan`. T is numerics.dtype. What libraries take follows run.threads, if that is known.
template <class T>
[[nodiscard]] plan::MemoryDemand memory_demand(config::RunConfig const& config,
                                               state::ShardMap const& map, NodeShape const& node);

/// How far parameters that do not live on the device are brought ahead of use. `free`: device memory.
template <class T>
[[nodiscard]] parameters::DepthDemand depth_demand(config::RunConfig const& config,
                                                   state::ShardMap const& map, Bytes free);
/// Layers on the device at a time; 0 where none has to be brought: parameters live there, or whole ones, one rank's or a
/// node's, in host memory that the device uses as its own.
template <class T>
[[nodiscard]] int parameter_slots(config::RunConfig const& config, state::ShardMap const& map,
                                  bool host_visible, Bytes free);

/// Whether versions before those on trial are kept, where an update begins under backward. Those of split parameters
/// would lack the halves that are the working copy's.
[[nodiscard]] bool keeps_versions(config::RunConfig const& config);
/// Whether saves hold the state that lies on storage beside later steps (checkpoint.rate).
[[nodiscard]] bool holds_versions(config::RunConfig const& config);

/// Elements of a rank's shard whose state lives on the device.
[[nodiscard]] std::int64_t resident_elements(config::RunConfig const& config,
                                             state::ShardMap const& map, int rank);

/// Whether gradients are summed on the device as far as it has room, whoever updates then: where the device, which the
/// host does not see, has all that is to be summed, as one rank's has and those that ranks pass slices to. The cores add
/// nothing then, and what crosses the link is no more than the parts of the sums were: 4 bytes an element once a step, for
/// 2 of each round and rank; a single one's sums are 2 bytes.
[[nodiscard]] bool sums_on_device(int ranks, state::Route route);

/// `subgroup_elements`: of the largest; `workers` and `sums_on_device`: left as they are.
template <class T>
[[nodiscard]] UpdateShape update_shape(config::RunConfig const& config, std::int64_t shard_elements,
                                       std::int64_t subgroup_elements);

}  // namespace offstage::train
