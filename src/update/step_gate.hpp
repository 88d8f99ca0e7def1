#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/optimizer/optimizer.hpp"

namespace offstage::update {

/// Stake of an update that runs before the norm is known.
enum class Stake {
  trial,  ///< its version before can be restored: the presumed step will do
  final   ///< it cannot: only the decided step will do, once the norm is known
};

/// Gate for the trips of an update that begins before its gradients are there and the norm is
/// known.
///
/// Threads: any.
/// Waiting: pass waits for backward and for the norm. Its caller must hold nothing that those need.
class StepGate {
 public:
  /// `presumed`: the step if nothing is clipped. `most_squares`: the sum of squares of the
  /// accumulated gradient at which clipping begins; infinite: it never does.
  StepGate(std::int64_t subgroups, kernels::OptimizerStep const& presumed, double most_squares);
  /// Open gate: all is known already, and everybody passes by this step.
  explicit StepGate(kernels::OptimizerStep const& step);

  /// Tells that the subgroup's gradient can be fetched. `squares`: sum over its elements, or 0
  /// where it is not known yet. When the sum of all subgroups exceeds most_squares, the presumption
  /// has failed and nobody passes by it any more.
  void complete(std::int64_t subgroup, double squares);
  /// Blocks until the subgroup may be updated, and returns the step. Returns nothing if the update
  /// has been cancelled.
  [[nodiscard]] std::optional<kernels::OptimizerStep> pass(std::int64_t subgroup, Stake stake);
  /// Confirms the presumed step: everybody passes by it.
  void confirm();
  /// Closes the gate for good: nobody passes any more.
  void cancel() noexcept;
  [[nodiscard]] bool confirmed() const;
  [[nodiscard]] bool cancelled() const;

 private:
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::vector<bool> complete_;  ///< subgroups that are complete; beyond the end: true
  kernels::OptimizerStep presumed_;
  double most_squares_;
  double squares_ = 0.0;
  bool confirmed_ = false;
  bool cancelled_ = false;
};

}  // namespace offstage::update
