#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/optimizer_state.hpp"
#include "state/model_shape.hpp"

namespace offstage::checkpoint {

/// Everything that a restart needs beside the state itself.
struct Meta {
  std::int64_t step{};     ///< steps done
  std::int64_t samples{};  ///< sequences consumed: the data position
  std::uint64_t seed{};    ///< the whole random state, with step and samples
  double loss_scale = 1.0;
  std::int64_t loss_scale_steps{};  ///< steps since the loss scale changed
  double learning_rate{};    ///< the last step's; the schedule itself is a function of the step
  std::int64_t bad_steps{};  ///< non-finite steps in a row so far
  std::int64_t optimizer_step{};  ///< the optimizer's t: steps that were not skipped
  OptimizerState state;
  state::ModelShape model;
  /// Effective configuration as "key=value" lines, "tokens=N", the tokens seen, and what is
  /// known of validations, "best-validation.step=N" for one.
  std::string configuration;
  std::string program;     ///< version and build that wrote it
  std::int64_t threads{};  ///< run.threads
  std::int64_t ranks{};
  std::uint64_t start{};  ///< level 1: the start of the run that saved it (LocalDirectory); else 0
};

/// The value of a line "key=value" of `meta.configuration`; empty: there is none.
[[nodiscard]] std::string recorded(Meta const& meta, std::string_view key);

}  // namespace offstage::checkpoint
