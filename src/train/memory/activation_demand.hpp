#pragma once

#include <vector>

#include "activations/stored_activations.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "model/dims.hpp"
#include "model/transformer.hpp"
#include "plan/memory.hpp"

namespace offstage::train {

/// The shape for which a run's model is made. If copies block (update.transfers), nothing moves
/// under other blocks' work, so there is one slab.
[[nodiscard]] model::RunShape run_shape(config::RunConfig const& config);

/// The dims of that shape, on the device that the configuration names.
[[nodiscard]] model::Dims run_dims(config::RunConfig const& config);

/// The parts of blocks that leave the device.
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts(config::RunConfig const& config);

/// The part of a vertical schedule's tensors that stay on the device although train.activations
/// lets them leave; 0 of other policies.
[[nodiscard]] double staying_part(config::RunConfig const& config);
/// Host memory of a rank for activations that leave the device and stay in host memory.
[[nodiscard]] Bytes activation_bytes(config::RunConfig const& config);
/// Sizes of the extents of activations that may go to storage.
[[nodiscard]] std::vector<Bytes> activation_extents(config::RunConfig const& config);
/// The part of those extents that is on storage by the plan.
[[nodiscard]] Bytes stored_activations(config::RunConfig const& config,
                                       plan::MemoryPlan const& plan);
/// The share of train.activations=swap:SHARE with which so many parts of each block leave.
[[nodiscard]] double share_of_parts(config::RunConfig const& config, int parts);
/// Extents in flight: one is written or read on each path, and one more is copied.
[[nodiscard]] int wished_activation_buffers(config::RunConfig const& config);
/// Threads that work on so many buffers.
[[nodiscard]] activations::StoredSettings activation_workers(int buffers);

}  // namespace offstage::train
