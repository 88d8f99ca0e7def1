#include "model/vertical_plan.hpp"

#include <algorithm>

namespace offstage::model {

BlockRing ring_of(state::ModelShape const& shape, RunShape const& run) {
  return run.micro_batches > 0 ? BlockRing{1, {recomputed_block}, 1}
                               : BlockRing{static_cast<int>(shape.layers), run.fates, run.slabs};
}

VerticalPlan vertical_plan(state::ModelShape const& shape, RunShape const& run) {
  bool const leaves = std::ranges::any_of(
      run.fates, [](BlockFates const& fates) { return fates[Part::input] == Fate::leave; });
  return {.micro_batches = run.micro_batches,
          .blocks = static_cast<int>(shape.layers),
          .leaves = leaves,
          .ahead = run.slabs > 1,
          .stay = run.staying,
          .tied = shape.tied_head};
}

}  // namespace offstage::model
