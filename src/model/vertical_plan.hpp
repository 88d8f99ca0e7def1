#pragma once

#include <vector>

#include "base/units.hpp"
#include "model/fates.hpp"
#include "model/transformer.hpp"
#include "model/workspace.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// How many tensors of a vertical schedule wait, and how many slabs of device memory they have.
struct VerticalPlan {
  int micro_batches = 0;  ///< of this rank, in a step; 0: the schedule is horizontal
  int blocks = 0;
  bool leaves = false;  ///< they wait in an ActivationStore
  bool ahead = false;   ///< what comes next is brought under the work of what is at hand
  bool tied = false;

  /// Inputs of all blocks, the output of the last one, and the gradient of one layer's inputs.
  [[nodiscard]] int tensors() const { return micro_batches * (blocks + 2); }
  [[nodiscard]] int tables() const { return tied ? micro_batches : 0; }
  /// At work on a block: its input, its output or the gradient; ahead of it the next input and
  /// gradient, behind it what leaves, and one whose slab is free by then.
  [[nodiscard]] int slabs() const {
    constexpr int at_work = 3;
    constexpr int with_ahead = 6;
    int const most = ahead ? with_ahead : at_work;
    return leaves && most < tensors() ? most : tensors();
  }
  /// A GradientSink reads one while the next one is computed.
  [[nodiscard]] int table_slabs() const {
    constexpr int in_turn = 2;
    return leaves && in_turn < tables() ? in_turn : tables();
  }
  /// What leaves, by the numbers that Vertical has for it.
  [[nodiscard]] std::vector<state::LeavingPart> leaving_parts(Bytes tensor, Bytes table) const {
    std::vector<state::LeavingPart> parts;
    for (int i = 0; slabs() < tensors() && i < tensors(); ++i) {
      parts.push_back({i, 0, tensor});
    }
    for (int i = 0; table_slabs() < tables() && i < tables(); ++i) {
      parts.push_back({tensors() + i, 0, table});
    }
    return parts;
  }
  /// Workspace has one without being told.
  [[nodiscard]] VerticalDemand demand() const {
    return micro_batches == 0 ? VerticalDemand{}
                              : VerticalDemand{.micro_batches = micro_batches,
                                               .tensors = slabs(),
                                               .tables = tied ? table_slabs() - 1 : 0};
  }
};

/// Memory of blocks: a vertical schedule computes one at a time, and all of it again in backward.
[[nodiscard]] BlockRing ring_of(state::ModelShape const& shape, RunShape const& run);
[[nodiscard]] VerticalPlan vertical_plan(state::ModelShape const& shape, RunShape const& run);

}  // namespace offstage::model
