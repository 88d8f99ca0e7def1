#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/store.hpp"
#include "state/initialize.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::train {

/// Makes the first version of every subgroup: zero moments, and the weights of `first_weights`, or
/// the seed's if that is null. `on_subgroup` is told of the weights, or they are `split`, if that
/// is not null. Errors: of the reader and the tiers.
void make_first_state(state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                      StateLayout const& layout, std::uint64_t seed,
                      state::ParameterReader* first_weights, tiers::Tiers& tiers,
                      checkpoint::OnSubgroup const& on_subgroup,
                      checkpoint::SplitParameters const* split = nullptr);

}  // namespace offstage::train
