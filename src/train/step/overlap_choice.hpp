#pragma once

#include <optional>

#include "base/units.hpp"
#include "config/run_config.hpp"

namespace offstage::train {

/// Whether the next step's update begins under its backward. Pure: what was measured in, a choice out; it
/// changes when something is computed, never what.
///
/// automatic: the mean time of a step that began its update under backward, those that had to be redone
///            included as often as clipping and overflows have struck lately, against that of a step which
///            did not. The first steps do not overlap and show what that takes; then it is on, until it costs
///            more than it gains, and on again when it would gain clearly; now and then it tries in any
///            case. Also where every step is redone: under the next forward that may take less time than
///            to wait for the update.
class OverlapChoice {
 public:
  /// `possible`: updates can begin under backward, and for `automatic`, gain by it; else it is never on.
  OverlapChoice(config::Overlap policy, bool possible) noexcept;

  [[nodiscard]] bool next() const noexcept { return on_; }

  struct Step {
    bool overlapped{};
    bool
        redone{};  ///< its norm was above the limit, or it was skipped: it would have been, if not overlapped
    Seconds seconds{};
  };
  /// A step has ended; its seconds are those after the choice for it. Its update, or the redoing
  /// of it, goes on under the next forward, so it is not learned from before that has ended, too.
  void ended(Step const& step) noexcept { ended_ = step; }
  /// The update of that step has ended, `before` seconds into the next one. All that its choice has
  /// cost lies between the two choices.
  void update_ended(Seconds before) noexcept;
  /// Something else ran between or beside the steps: nothing is learned from the last one.
  void disturbed() noexcept { ended_.reset(); }

  /// `step`: with all seconds from its choice to the next one.
  void learn(Step const& step) noexcept;

 private:
  /// A mean that follows; 0: nothing was measured yet.
  struct Mean {
    double value{};
    void follow(double now) noexcept;
  };
  config::Overlap policy_;
  bool possible_;
  bool on_;
  int steps_ = 0;
  int plain_since_ = 0;
  double redone_share_ = 0.0;
  Mean plain_, clean_, redone_;
  std::optional<Step> ended_;  ///< whose update may go on
};

}  // namespace offstage::train
