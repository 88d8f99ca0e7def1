#include "train/settle/rank_link_needs.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/dtype.hpp"
#include "state/shard.hpp"
#include "train/memory/device_demand.hpp"
#include "train/settle/schedule_choice.hpp"

namespace offstage::train {
namespace {

using activations::Policy;

/// The policies that train.activations allows. `together` is as TrainConfig's.
std::vector<Policy> policies_of(Policy const& asked, int together) {
  if (asked.rule == Policy::Rule::automatic) {
    return {{Policy::Rule::recompute}, {Policy::Rule::swap, 0.0}};
  }
  bool const inputs_alone = together > 0 && asked.rule == Policy::Rule::swap;
  return {inputs_alone ? Policy{Policy::Rule::swap, 0.0, asked.storage} : asked};
}

/// `config` with those values of keys that plan.choose=on leaves open with which the device's
/// memory is used least.
config::RunConfig frugal(config::RunConfig config) {
  config.device.kind = config::DeviceKind::cuda;
  if (config.plan.choose) {
    config.parameter_home = config.home_is_open ? parameters::Home::host : config.parameter_home;
    config.share.device_share = config.share.device_share.value_or(0.0);
  }
  return config;
}

Bytes least_bytes(config::RunConfig const& given, state::ShardMap const& map, state::Route route) {
  config::RunConfig config = frugal(given);
  Room const no_room{.route = route, .device_memory = 1};  // for uses that can do without it
  Bytes least = std::numeric_limits<Bytes>::max();
  auto const asked = config.train.activations;
  for (int const together : allowed_schedules(config, map.ranks())) {
    config.train.together = together;
    for (Policy const& policy : policies_of(asked, together)) {
      config.train.activations = policy;
      auto const demand =
          device_demand(config, map, state::fullest_rank, no_room, config.subgroup_size);
      least = std::min(least, demand.total());
    }
  }
  return least;
}

}  // namespace

RankLinkNeeds rank_link_needs(config::RunConfig const& config, int ranks) {
  state::ShardMap const map{state::layers_of(config.model), ranks};
  return {.direct = least_bytes(config, map, state::Route::direct),
          .staged = least_bytes(config, map, state::Route::staged)};
}

}  // namespace offstage::train
