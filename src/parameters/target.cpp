#include "parameters/target.hpp"

#include <cstddef>
#include <iterator>
#include <variant>

#include "base/error.hpp"

namespace offstage::parameters {

Targets targets_in(kernels::WorkingCopyView const& shard,
                   std::span<state::Subgroup const> subgroups) {
  auto const elements = std::visit([](auto span) { return std::ssize(span); }, shard);
  require(subgroups.empty() || subgroups.back().begin + subgroups.back().size <= elements,
          "targets_in: the working copy is shorter than the shard");
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
