#pragma once

#include <cstddef>
#include <variant>

#include "parameters/target.hpp"

namespace offstage::parameters {

/// Targets inside the working copy of a whole shard, in device memory.
[[nodiscard]] inline Targets targets_in(kernels::WorkingCopyView const& shard) {
  return [shard](state::Subgroup const& subgroup) {
    return std::visit(
        [&](auto span) {
          return Target{.view = span.subspan(static_cast<std::size_t>(subgroup.begin),
                                             static_cast<std::size_t>(subgroup.size))};
        },
        shard);
  };
}

}  // namespace offstage::parameters
