#include "train/settle/schedule_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "model/vertical_plan.hpp"
#include "plan/places_in_turn.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_shape.hpp"
#include "train/settle/sharding.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {
namespace {

using Rule = activations::Policy::Rule;

/// `config` with a vertical schedule.
config::RunConfig vertical(config::RunConfig config, state::ShardMap const& map, Room const& room) {
  config.train.together = static_cast<int>(dealt(config, map.ranks()).count());
  config.train.activations = settle_activations(config, map, room, {}).policy;
  if (config.train.activations.rule == Rule::swap) {
    config.train.activations.share = 0.0;  // blocks' inputs alone
  }
  return config;
}

/// Device memory for the sums of one block, and for norms, if blocks have it in turn.
Bytes sums_in_turn(config::RunConfig const& config, UpdateShape const& shape, bool host_visible) {
  Bytes const block = plan::largest_block(shape.blocks, shape.elements) * shape.held_bytes();
  Bytes const sums = gradient_room(config, shape, host_visible, block);
  return sums > 0 ? sums + update::HeldGradients::norm_bytes(shape.elements) : 0;
}

}  // namespace

bool suits_vertical(activations::Policy const& policy) {
  return policy.rule != Rule::keep && policy.rule != Rule::part &&
         (policy.rule != Rule::swap || policy.share == 0.0 || policy.share == 1.0);
}

ScheduleBytes schedule_bytes(config::RunConfig const& config, state::ShardMap const& map) {
  constexpr int passes = 2;  // forward and backward
  constexpr int moves = 5;   // an input leaves once and comes twice, a gradient leaves and comes
  auto const micro_batches = static_cast<Bytes>(config.train.together);
  auto const dims = run_dims(config);
  Bytes parameters = 0;
  for (state::LayerLayout const& layer : map.layers()) {
    parameters += layer.padded_elements() * config.numerics.element_bytes();
  }
  ScheduleBytes bytes{.horizontal = micro_batches * passes * parameters,
                      .vertical = passes * parameters};
  if (config.train.activations.rule == Rule::swap) {
    Bytes const element = config.numerics.element_bytes();
    Bytes const tensor = model::tensor_bytes(dims, element);
    Bytes const table = config.model.tied_head ? model::table_bytes(dims, element) : 0;
    bytes.vertical += micro_batches * (moves * (config.model.layers + 1) * tensor + passes * table);
  }
  return bytes;
}

std::vector<int> allowed_schedules(config::RunConfig const& config, int ranks) {
  std::int64_t const all = dealt(config, ranks).count();
  int const together = static_cast<int>(std::min(all, most_together));
  switch (config.train.schedule) {
    case config::LayerSchedule::vertical:
      return {together};
    case config::LayerSchedule::automatic:
      if (config.parameter_home != parameters::Home::device && all <= most_together &&
          suits_vertical(config.train.activations)) {
        return {0, together};
      }
      break;
    case config::LayerSchedule::horizontal:
      break;
  }
  return {0};
}

void settle_schedule(config::RunConfig& config, state::ShardMap const& map, Room const& room) {
  config.train.together = 0;
  config.train.staying = {};
  std::int64_t const together = dealt(config, map.ranks()).count();
  if (config.train.schedule == config::LayerSchedule::vertical && together > most_together) {
    throw UsageError{fmt::format(
        "train.global-batch={} is {} micro-batches of a rank, but train.schedule=vertical takes "
        "{} at most; raise train.micro-batch={} or use train.schedule=horizontal",
        config.train.global_batch, together, most_together, config.train.micro_batch)};
  }
  auto const allowed = allowed_schedules(config, map.ranks());
  if (allowed.back() == 0) {
    return;
  }
  auto const tried = vertical(config, map, room);
  auto const moves_less = [&] {
    auto const bytes = schedule_bytes(tried, map);
    return bytes.vertical < bytes.horizontal;
  };
  if (allowed.size() == 1 || (moves_less() && has_room(tried, map, room))) {
    config.train = tried.train;
  }
}

void settle_waiting(config::RunConfig& config, state::ShardMap const& map, Room const& room) {
  config.train.staying = {};
  auto const plan = model::vertical_plan(config.model, run_shape(config));
  if (config.train.together == 0 || !plan.leaves || room.device_memory == 0) {
    return;
  }
  Bytes const element = config.numerics.element_bytes();
  Bytes const slab = model::Slab::aligned(model::tensor_bytes(run_dims(config), element));
  auto const shape =
      update_shape(config, map, state::fullest_rank, config.subgroup_size, room.route);
  auto const demand = device_demand(config, map, state::fullest_rank, room, config.subgroup_size);
  Bytes const given = given_gradients(config, shape, room.host_visible());
  Bytes free = room.device_memory - (demand.total() - demand.held) - given;
  auto const take = [&](Bytes each, std::int64_t most) {
    auto const count = std::clamp<std::int64_t>(free / each, 0, most);
    free -= count * each;
    return static_cast<int>(count);
  };
  auto& staying = config.train.staying;
  staying.tensors = take(slab, plan.micro_batches);
  free -= std::max<Bytes>(0, sums_in_turn(config, shape, room.host_visible()) - given);
  if (int const more = plan.tables() - plan.table_slabs(); more > 0) {
    Bytes const table = map.layers().front().padded_elements() * element;
    staying.tables = take(more * model::Slab::aligned(table), 1) > 0;
  }
  staying.tensors += take(slab, plan.tensors() - plan.micro_batches);
}

std::string settle_for_all(config::RunConfig& config, state::ShardMap const& map,
                           mpi::Communicator const& comm, Room const& room,
                           device::Device& device) {
  auto rates = given_rates(config, room.ranks_per_node);
  WantedRates wanted;
  mpi::agree(comm, [&] {
    settle_schedule(config, map, room);
    wanted = wanted_rates(config, map, room, rates);
  });
  config.train.together = comm.broadcast_value(config.train.together, 0);
  config.train.activations = comm.broadcast_value(config.train.activations, 0);
  wanted = comm.broadcast_value(wanted, 0);
  if (wanted.any()) {
    measure_rates(rates, wanted, config, comm, room.ranks_per_node, device);
    if (rates.compute_measured) {
      config.platform_products = rates.rates.compute;
    }
  }
  ActivationChoice choice;
  mpi::agree(comm, [&] { choice = settle_activations(config, map, room, rates); });
  config.train.activations = comm.broadcast_value(choice.policy, 0);
  mpi::agree(comm, [&] { settle_sharding(config, map, room); });
  config.sharding = comm.broadcast_value(config.sharding, 0);
  mpi::agree(comm, [&] { settle_waiting(config, map, room); });
  config.train.staying = comm.broadcast_value(config.train.staying, 0);
  return comm.broadcast(std::move(choice.why), 0);
}

}  // namespace offstage::train
