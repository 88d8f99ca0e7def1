#pragma once

#include <optional>

#include "base/units.hpp"
#include "config/run_config.hpp"

namespace offstage::train {

/// Decides whether the next step's update begins under its backward. Pure: measured times in, a
/// choice out. It changes when something is computed, never what.
///
/// automatic: compares the mean time of a step whose update began under backward with that of a
///            step whose update did not. Steps that had to be made again count as often as clipping
///            and overflows have struck lately. The first steps do not overlap, and show the time
///            of such steps. Then overlap is on until it costs more than it gains, and on again
///            when it would gain clearly. Now and then it is tried in any case. It may gain even if
///            every update is made again, because that may take less time under the next forward
///            than the wait for the update.
class OverlapChoice {
 public:
  /// `possible`: updates can begin under backward and, for `automatic`, gain by it. Otherwise
  /// overlap is never on.
  OverlapChoice(config::Switch policy, bool possible) noexcept;

  [[nodiscard]] bool next() const noexcept { return on_; }

  struct Step {
    bool overlapped{};
    /// The norm was above the limit, or the step was skipped. Without overlap: the update would
    /// have been made again.
    bool redone{};
    Seconds seconds{};
  };
  /// Takes the step that has ended; its seconds are those after the choice for it. Its update may
  /// go on under the next forward, also one that is made again. So the step counts only once that
  /// has ended, too.
  void ended(Step const& step) noexcept { ended_ = step; }
  /// Says that the update of that step has ended, `before` seconds into the next one. The whole
  /// cost of a choice lies between it and the next choice.
  void update_ended(Seconds before) noexcept;
  /// Says that something else ran between or beside the steps. Nothing is learned from the last
  /// one.
  void disturbed() noexcept { ended_.reset(); }

  /// Learns from a step. `step` has all seconds from its choice to the next one.
  void learn(Step const& step) noexcept;

 private:
  /// A mean in which newer figures weigh more; 0: nothing was measured yet.
  struct Mean {
    double value{};
    void follow(double now) noexcept;
  };
  config::Switch policy_;
  bool possible_;
  bool on_;
  int steps_ = 0;
  int plain_since_ = 0;
  double redone_share_ = 0.0;
  Mean plain_, clean_, redone_;
  std::optional<Step> ended_;  ///< step whose update may go on
};

}  // namespace offstage::train
