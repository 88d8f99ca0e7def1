#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/optimizer_state.hpp"
#include "state/model_shape.hpp"

namespace offstage::checkpoint {

/// Everything that a restart needs beside the state itself.
struct Meta {
  std::int64_t step{};     ///< steps done
  std::int64_t samples{};  ///< sequences consumed: the data position
  std::uint64_t seed{};    ///< with step and samples this is the whole random state
  double loss_scale = 1.0;
  std::int64_t loss_scale_steps{};  ///< since it changed
  double learning_rate{};    ///< of the last step; the schedule itself is a function of the step
  std::int64_t bad_steps{};  ///< non-finite steps in a row so far
  std::int64_t optimizer_step{};  ///< the optimizer's t: steps that were not skipped
  OptimizerState state;
  state::ModelShape model;
  std::string configuration;  ///< effective configuration, "key=value" lines, and "tokens=N", seen
  std::string program;        ///< version and build that wrote it
  std::int64_t threads{};     ///< run.threads
  std::int64_t ranks{};
};

}  // namespace offstage::checkpoint
