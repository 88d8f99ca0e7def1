#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "checkpoint/meta.hpp"
#include "config/run_config.hpp"
#include "train/step/loss_scale.hpp"
#include "train/step/step_result.hpp"

namespace offstage::train {

/// How far a run has come.
struct RunProgress {
  std::int64_t step{};     ///< the last one that is done
  std::int64_t steps{};    ///< steps since the start
  std::int64_t clipped{};  ///< of these, steps that were clipped or skipped
  Seconds start{};         ///< time that the start took
};

/// Where a run is: what a checkpoint says of it, the loss scale, and what it has seen so far. The same on all ranks.
class Position {
 public:
  /// Before the first step. `config` outlives it.
  explicit Position(config::RunConfig const& config);

  /// Goes on from a checkpoint. One of another type than fp16 says nothing of the loss scale.
  void go_on_from(checkpoint::Meta found);
  /// Facts that checkpoints have of the start that wrote them, beside the configuration's.
  void set_start(checkpoint::OptimizerState state, std::string program, int threads, int ranks);
  /// A step was made at this learning rate. A step that was skipped because the loss scale was too large is no bad
  /// one: the next has a smaller scale.
  void advance(StepResult const& result, double rate);
  /// Errors: DataError: as many steps in a row were bad as train.max-bad-steps allows.
  void require_good_steps() const;

  [[nodiscard]] std::int64_t step() const noexcept { return meta_.step; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] double loss_scale() const noexcept { return loss_scale_.value(); }
  [[nodiscard]] checkpoint::Meta const& meta() const noexcept { return meta_; }
  /// Writes the configuration's text, and the tokens so far, to meta(): before a save.
  void write_configuration();
  /// `start`: time that the start took.
  [[nodiscard]] RunProgress progress(Seconds start) const;

 private:
  config::RunConfig const& config_;
  checkpoint::Meta meta_;
  LossScale loss_scale_;
  std::int64_t tokens_{};                  ///< those of other sequences included
  std::int64_t first_step_{}, clipped_{};  ///< step of the start; steps since then, clipped
};

}  // namespace offstage::train
