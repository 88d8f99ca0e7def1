#include "update/parameter_target.hpp"

#include "base/error.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

ParameterTargets targets_in(WorkingCopyView const& shard,
                            std::span<state::Subgroup const> subgroups) {
  require(subgroups.empty() || subgroups.back().begin + subgroups.back().size <= elements_of(shard),
          "UpdatePipeline: the working copy is shorter than the shard");
  return [shard](state::Subgroup const& subgroup) {
    return ParameterTarget{part_of(shard, {subgroup.begin, subgroup.size})};
  };
}

}  // namespace offstage::update
