#pragma once

#include <functional>
#include <span>
#include <utility>

#include "checkpoint/optimizer_state.hpp"
#include "state/model_shape.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// The state that a run keeps, and wants from a checkpoint. The optimizer must be the same. Other
/// moments are converted, which the log says.
struct RunState {
  RunState(state::ModelShape of_model, OptimizerState of_optimizer = {})
      : model{of_model}, state{std::move(of_optimizer)} {}

  state::ModelShape model;
  OptimizerState state;
};

/// Takes the restored FP32 parameters of a subgroup, verified, to rebuild the working copy. If the
/// rest of the checkpoint turns out to be damaged after that, the parameters of another one follow.
/// Not called for split parameters, which rebuild the working copy themselves.
using OnSubgroup = std::function<void(state::Subgroup const&, std::span<float const> parameter)>;

}  // namespace offstage::checkpoint
