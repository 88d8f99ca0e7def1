#pragma once

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// Returns whether a run with so much workspace fits on the device, with the schedule and the
/// activations that it would settle there. Gradients held there take only the rest. With
/// plan.choose=on: whether a configuration fits whose parameters live where they do in the first
/// that fits without the workspace. Rates do not count, so that bits depend on memory alone.
/// `room.device_memory` is known.
[[nodiscard]] bool has_attention_room(config::RunConfig config, state::ShardMap const& map,
                                      Room const& room, Bytes workspace);

}  // namespace offstage::train
