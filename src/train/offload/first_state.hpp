#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/run_state.hpp"
#include "checkpoint/split_parameters.hpp"
#include "state/initialize.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::train {

/// Makes the first version of every subgroup: zero moments, and the weights of `first_weights`, or
/// the seed's if that is null. With `split` the weights are split; without it `on_subgroup` gets
/// them.
/// Errors: those of the reader and the tiers.
void make_first_state(state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                      StateLayout const& layout, std::uint64_t seed,
                      state::ParameterReader* first_weights, tiers::Tiers& tiers,
                      checkpoint::OnSubgroup const& on_subgroup,
                      checkpoint::SplitParameters const* split = nullptr);

}  // namespace offstage::train
