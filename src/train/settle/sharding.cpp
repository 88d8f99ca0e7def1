#include "train/settle/sharding.hpp"

#include <fmt/format.h>

#include <set>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "model/transformer.hpp"
#include "train/memory/sums.hpp"
#include "train/settle/activation_choice.hpp"

namespace offstage::train {
namespace {

using parameters::Sharding;

bool are_gathered(config::RunConfig const& config, int ranks) {
  return ranks > 1 && config.parameter_home == parameters::Home::device;
}

}  // namespace

bool gathers_once(config::RunConfig const& config, int ranks) {
  return are_gathered(config, ranks) && parameters::stay_whole(config.sharding);
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
  std::int64_t const passes = config.train.together > 0 ? 1 : dealt(config, ranks).count();
  return passes * (std::ssize(order.forward) + std::ssize(order.backward));
}

std::string describe_gathers(config::RunConfig const& config, int ranks) {
  std::int64_t const now = gathers_per_step(config, ranks);
  if (now == 0) {
    return "";
  }
  auto other = config;
  bool const once = parameters::stay_whole(config.sharding);
  other.sharding = once ? Sharding::zero3 : Sharding::zero2;
  std::int64_t const then = gathers_per_step(other, ranks);
  return once ? fmt::format(
                    "{} in a step, each layer once, in place of {} "
                    "(parameters.sharding={})",
                    now, then, parameters::name_of(config.sharding))
              : fmt::format("{} in a step, a layer for each use; {} with parameters.sharding=zero2",
                            now, then);
}

bool zero1_keeps_ranks_busy(config::RunConfig const& config, int ranks) {
  auto whole = config;
  whole.sharding = Sharding::zero1;
  auto const blocks = dealt(whole, ranks);
  return blocks.block > 1 &&
         blocks.count() <= update::BlockRounds{blocks.micro_batches, ranks}.count();
}

std::string warning_of_idle_ranks(config::RunConfig const& config, int ranks) {
  auto const blocks = dealt(config, ranks);
  if (blocks.blocks() >= ranks) {
    return "";
  }
  if (!sums_whole_blocks(config)) {
    return fmt::format(
        "a step has {} micro-batch{} for {} ranks: {} of them run{} no forward or backward; raise "
        "train.global-batch to {}",
        blocks.micro_batches, blocks.micro_batches == 1 ? "" : "es", ranks,
        ranks - blocks.micro_batches, ranks - blocks.micro_batches == 1 ? "s" : "",
        ranks * config.train.micro_batch);
  }
  std::int64_t const each = blocks.micro_batches / ranks;
  return fmt::format(
      "parameters.sharding=zero1: the {} micro-batches of a step are {} blocks of {} "
      "(numerics.sum-block), so {} of {} ranks stay idle; {}parameters.sharding=zero2 with the "
      "same block gives the same bits, and no rank is idle for want of a block",
      blocks.micro_batches, blocks.blocks(), blocks.block, ranks - blocks.blocks(), ranks,
      each > 1 ? fmt::format("numerics.sum-block={} has work for all, with other bits; ", each)
               : "");
}

void settle_sharding(config::RunConfig& config, state::ShardMap const& map, Room const& room) {
  if (!config.sharding_is_open) {
    return;
  }
  config.sharding_is_open = false;
  if (room.device_memory == 0 && config.device.kind == config::DeviceKind::cuda) {
    return;
  }
  for (Sharding const sharding : {Sharding::zero1, Sharding::zero2}) {
    auto whole = config;
    whole.sharding = sharding;
    bool const suits = sharding == Sharding::zero2 || zero1_keeps_ranks_busy(config, map.ranks());
    if (suits && gathers_once(whole, map.ranks()) && has_room(whole, map, room)) {
      config.sharding = sharding;
      return;
    }
  }
}

}  // namespace offstage::train
