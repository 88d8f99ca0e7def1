#include "train/forecast/attention_room.hpp"

#include "base/error.hpp"
#include "train/forecast/configuration_choice.hpp"
#include "train/memory/device_demand.hpp"
#include "train/settle/activation_choice.hpp"
#include "train/settle/activation_rates.hpp"
#include "train/settle/schedule_choice.hpp"

namespace offstage::train {
bool has_attention_room(config::RunConfig config, state::ShardMap const& map, Room const& room,
                        Bytes workspace) {
  try {
    if (config.plan.choose) {
      auto const home = first_that_fits(config, map, room).home;
      config.device.attention_workspace = workspace;
      return first_that_fits(config, map, room).home == home;
    }
    config.device.attention_workspace = workspace;
    settle_schedule(config, map, room);
    config.train.activations =
        settle_activations(config, map, room, given_rates(config, room.ranks_per_node)).policy;
    auto const demand = device_demand(config, map, state::fullest_rank, room, config.subgroup_size);
    return demand.total() <= room.device_memory;
  } catch (UsageError const&) {
    return false;
  }
}

}  // namespace offstage::train
