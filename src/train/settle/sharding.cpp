#include "train/settle/sharding.hpp"

#include <fmt/format.h>

#include <set>

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "base/units.hpp"
#include "model/transformer.hpp"

namespace offstage::train {
namespace {

using parameters::Sharding;

bool are_gathered(config::RunConfig const& config, int ranks) {
  return ranks > 1 && config.parameter_home == parameters::Home::device;
}

}  // namespace

bool gathers_once(config::RunConfig const& config, int ranks) {
  return are_gathered(config, ranks) && config.sharding == Sharding::zero2;
}

std::int64_t gathers_per_step(config::RunConfig const& config, int ranks) {
  if (!are_gathered(config, ranks)) {
    return 0;
  }
  auto const order = model::layer_order(config.model);
  if (gathers_once(config, ranks)) {
    std::set<int> layers{order.forward.begin(), order.forward.end()};
    layers.insert(order.backward.begin(), order.backward.end());
    return std::ssize(layers);
  }
  std::int64_t const micro_batches = config.train.global_batch / config.train.micro_batch;
  std::int64_t const passes = config.train.together > 0 ? 1 : ceil_div(micro_batches, ranks);
  return passes * (std::ssize(order.forward) + std::ssize(order.backward));
}

std::string describe_gathers(config::RunConfig const& config, int ranks) {
  std::int64_t const now = gathers_per_step(config, ranks);
  if (now == 0) {
    return "";
  }
  auto other = config;
  bool const once = config.sharding == Sharding::zero2;
  other.sharding = once ? Sharding::zero3 : Sharding::zero2;
  std::int64_t const then = gathers_per_step(other, ranks);
  return once ? fmt::format(
                    "{} in a step, each layer once, in place of {} "
                    "(parameters.sharding=zero2)",
                    now, then)
              : fmt::format("{} in a step, a layer for each use; {} with parameters.sharding=zero2",
                            now, then);
}

template <class T>
void settle_sharding(config::RunConfig& config, state::ShardMap const& map,
                     ActivationRoom const& room) {
  if (!config.sharding_is_open) {
    return;
  }
  config.sharding_is_open = false;
  auto whole = config;
  whole.sharding = Sharding::zero2;
  bool const unknown = room.memory == 0 && config.device.kind == config::DeviceKind::cuda;
  if (gathers_once(whole, map.ranks()) && !unknown && has_room<T>(whole, map, 0, room)) {
    config.sharding = Sharding::zero2;
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, settle_sharding)

}  // namespace offstage::train
