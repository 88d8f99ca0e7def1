#pragma once

#include <cstdint>

#include "config/run_config.hpp"
#include "parameters/home.hpp"
#include "plan/memory.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// The part of free memory that tiers.host-memory=auto takes.
constexpr double auto_host_part = 0.9;

/// A rank's memory beside the plan, for the program's own pages, its libraries and stacks. It is
/// added to the plan before the peak is compared with it. Measured: 12 MiB with 4 M parameters, 13
/// with 25 M, 10 to 16 with other types, threads and ranks. MemoryDemand::reserve_bytes leaves room
/// for more.
constexpr Bytes usual_library_bytes = 25 * MiB / 2;

/// Contents that a run's host memory must have, from its configuration alone, for the run itself
/// and for `offstage plan`. The libraries' memory depends on run.threads, if that is known.
[[nodiscard]] plan::MemoryDemand memory_demand(config::RunConfig const& config,
                                               state::ShardMap const& map, Room const& room);
/// The memory plan of such contents.
/// Errors: UsageError as plan::plan_memory.
[[nodiscard]] plan::MemoryPlan host_plan(config::RunConfig const& config,
                                         state::ShardMap const& map, Room const& room);

/// The demand that decides how far ahead of use parameters are brought that do not live on the
/// device. `free` is device memory.
[[nodiscard]] parameters::DepthDemand depth_demand(config::RunConfig const& config,
                                                   state::ShardMap const& map, Bytes free);
/// Layers on the device at a time; 0 if none has to be brought. None has if parameters live there,
/// or if the device uses host memory as its own and that has whole layers: one rank's, or a node's.
[[nodiscard]] int layer_slots(config::RunConfig const& config, state::ShardMap const& map,
                              bool host_visible, Bytes free);

/// Returns whether the versions before those on trial are kept if an update begins under backward.
/// With split parameters such versions would lack the halves that are in the working copy.
[[nodiscard]] bool keeps_versions(config::RunConfig const& config);
/// The state that leaves host memory first. Under updates that may begin under backward the lowest
/// subgroups stay, whatever tiers.evict is: the next forward needs them first.
[[nodiscard]] plan::Evict evicted_first(config::RunConfig const& config);
/// Returns whether saves hold versions on storage beside later steps (checkpoint.rate).
[[nodiscard]] bool holds_versions(config::RunConfig const& config);

/// Host memory through which layers are gathered into a working copy on the device.
[[nodiscard]] Bytes gathering_bytes(config::RunConfig const& config, state::ShardMap const& map,
                                    state::Route route);

/// Elements of all layers, with what equal parts of ranks pad.
[[nodiscard]] std::int64_t all_elements(state::ShardMap const& map);

/// Elements of a rank's shard whose state lives on the device.
[[nodiscard]] std::int64_t resident_elements(config::RunConfig const& config,
                                             state::ShardMap const& map, int rank);

/// Returns whether gradients are summed on the device as far as it has room, whichever side
/// updates. That is so if the host does not see the device's memory, and the device has all
/// gradients to be summed: those of one rank, or slices that ranks pass from device to device. Then
/// the cores add nothing, and no more bytes cross the link than those of the summands: 4 bytes an
/// element once a step, instead of 2 for each round and rank. The sums of a single micro-batch have
/// 2 bytes.
[[nodiscard]] bool sums_on_device(int ranks, state::Route route);

/// The shape of a rank's updates. A subgroup has `subgroup_elements`, or the whole shard if that
/// has fewer. `storage`, which decides what sums have in turn, and `workers` are not set.
[[nodiscard]] UpdateShape update_shape(config::RunConfig const& config, state::ShardMap const& map,
                                       int rank, std::int64_t subgroup_elements,
                                       state::Route route);

}  // namespace offstage::train
