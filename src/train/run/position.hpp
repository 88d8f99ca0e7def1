#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/meta.hpp"
#include "config/run_config.hpp"
#include "train/saves/best_loss.hpp"
#include "train/step/loss_scale.hpp"
#include "train/step/step_result.hpp"

namespace offstage::train {

/// Progress of a run.
struct RunProgress {
  std::int64_t step{};     ///< last step that is done
  std::int64_t steps{};    ///< steps since the start
  std::int64_t clipped{};  ///< steps among these that were clipped or skipped
  Seconds start{};         ///< time that the start took
};

/// The place of a run: the facts that its checkpoints have, the loss scale, and the tokens seen so
/// far. All ranks have the same.
class Position {
 public:
  /// The place before the first step. `config` outlives it.
  explicit Position(config::RunConfig const& config);

  /// Goes on from a checkpoint. A checkpoint of another type than fp16 has no loss scale.
  void go_on_from(checkpoint::Meta found);
  /// Sets the facts of this start that its checkpoints have. Where a run goes on, what it began
  /// with stays.
  void set_start(checkpoint::OptimizerState state, std::string program, int threads, int ranks,
                 std::vector<config::Setting> settings);
  /// Counts a step that was made at this learning rate. A step is not bad if the next one has a
  /// smaller loss scale.
  void advance(StepResult const& result, double rate);
  /// Errors: DataError if has_diverged().
  void require_good_steps() const;
  /// Returns whether train.max-bad-steps steps in a row were bad.
  [[nodiscard]] bool has_diverged() const noexcept {
    return meta_.bad_steps >= config_.train.max_bad_steps;
  }
  /// Returns whether the last step was bad. The run may have diverged.
  [[nodiscard]] bool is_bad() const noexcept { return meta_.bad_steps > 0; }

  [[nodiscard]] std::int64_t step() const noexcept { return meta_.step; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::optional<double> last_loss() const noexcept { return last_loss_; }
  [[nodiscard]] double loss_scale() const noexcept { return loss_scale_.value(); }
  [[nodiscard]] checkpoint::Meta const& meta() const noexcept { return meta_; }
  /// Counts the validation of this step. After a bad step it is not the best: the weights may be
  /// spoilt, and with checkpoint.keep-best=on they would be kept.
  void validated(double loss) { best_.add({meta_.step, is_bad() ? std::nan("") : loss}); }
  /// The best validation of all starts of the run.
  [[nodiscard]] BestLoss const& best() const noexcept { return best_; }
  void set_best(BestLoss const& best) { best_ = best; }
  /// Writes the settings' text, with the tokens and the best validation so far, to meta(). A save
  /// needs it.
  void write_configuration();
  /// `start` is the time that the start took.
  [[nodiscard]] RunProgress progress(Seconds start) const;

 private:
  config::RunConfig const& config_;
  std::vector<config::Setting> settings_;  ///< settings of this start
  checkpoint::Meta meta_;
  LossScale loss_scale_;
  BestLoss best_;
  std::optional<double> last_loss_;        ///< loss of the last step; nullopt: not known or finite
  std::int64_t tokens_{};                  ///< tokens seen so far, also with other sequence lengths
  std::int64_t first_step_{}, clipped_{};  ///< step of the start; clipped steps since then
};

}  // namespace offstage::train
