#include "train/forecast/step_forecast.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/dtype.hpp"
#include "config/known_rates.hpp"
#include "model/block.hpp"
#include "model/block_traffic.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "model/transformer.hpp"
#include "model/vertical_plan.hpp"
#include "parameters/home.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_shape.hpp"
#include "train/settle/sharding.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {
namespace {

/// Products of the head: one in forward and two in backward.
constexpr double head_products = 3.0;
/// Largest number of events in a trace: some ten megabytes. It also bounds the time of simulating a
/// long step.
constexpr std::size_t most_events = 100'000;

bool is_host_visible(StepFacts const& facts) {
  return facts.room.host_visible();
}

struct BlockWork {
  plan::LayerWork attention, mlp;
};

/// The number of operations that take as long at the rate of products as `flops` take at the
/// measured rate of a block's pass.
double as_products(config::RunConfig const& config, double flops, double rate) {
  double const products = config::known_compute(config);
  return products > 0.0 && rate > 0.0 ? flops * products / rate : flops;
}

BlockWork block_work(config::RunConfig const& config, model::Dims const& dims,
                     model::BlockFates const& fates) {
  using model::Part;
  auto const& platform = config.platform_passes;
  auto const work_of = [&](model::Passes const& passes) {
    return plan::LayerWork{
        .forward = as_products(config, passes.forward, platform.block_forward),
        .backward = as_products(config, passes.backward, platform.block_backward)};
  };
  auto const passes = model::block_passes(dims);
  BlockWork work{.attention = work_of(passes.attention), .mlp = work_of(passes.mlp)};
  work.mlp.with_before = model::mlp_needs_attention(fates);
  for (Part const part : model::all_parts) {
    if (fates[part] == model::Fate::recompute) {
      auto& layer = work.mlp.with_before || part == Part::up ? work.mlp : work.attention;
      layer.recompute += as_products(config, model::part_flops(dims, part), platform.block_forward);
    }
  }
  return work;
}

model::BlockRing ring_of(config::RunConfig const& config) {
  auto const run = run_shape(config);
  return {static_cast<int>(config.model.layers), run.fates, run.slabs};
}

/// Sets the slots through which layers come to the device. `schedule.home` is set already.
void set_slots(plan::Schedule& schedule, config::RunConfig const& config, StepFacts const& facts) {
  auto const sizes = facts.map.layer_slot_sizes();
  schedule.gathers_once = gathers_once(config, facts.map.ranks());
  bool const in_place =
      schedule.home == plan::ParameterHome::node && facts.device.working_copy == 0;
  int const layers = static_cast<int>(facts.map.layers().size());
  for (int layer = 0; layer < layers && !schedule.gathers_once && !in_place; ++layer) {
    if (sizes.is_large(facts.map.gathered_elements(layer))) {
      schedule.large_layers.push_back(layer);
    }
  }
  if (in_place || schedule.gathers_once) {
    schedule.layer_slots = layers;
  } else if (schedule.home != plan::ParameterHome::device || facts.map.ranks() > 1) {
    schedule.layer_slots = facts.device.layer_slots;
  }
}

/// The tensors of model::VerticalPlan, in bytes.
plan::WaitingWork waiting_work(config::RunConfig const& config) {
  auto const dims = run_dims(config);
  Bytes const element = config.numerics.element_bytes();
  Bytes const tensor = model::tensor_bytes(dims, element);
  Bytes const table = model::table_bytes(dims, element);
  auto const plan = model::vertical_plan(config.model, run_shape(config));
  plan::WaitingWork work{.slabs = plan.slabs(),
                         .table_slabs = plan.table_slabs(),
                         .staying = plan.staying(),
                         .ahead = plan.ahead,
                         .tied = plan.tied};
  if (plan.slabs() < plan.tensors()) {
    work.tensor = static_cast<double>(tensor);
  }
  if (plan.table_slabs() < plan.tables()) {
    work.table = static_cast<double>(table);
    work.table_piece = static_cast<double>(model::VerticalPlan::table_piece(tensor, table));
  }
  return work;
}

}  // namespace

plan::Machine machine_of(config::RunConfig const& config, StepFacts const& facts) {
  plan::Machine machine{.compute = config::known_compute(config),
                        .rates = config::known_rates(config),
                        .host_sum = config::known_host_sum(config),
                        .rank_link = config.platform_passes.rank_link};
  if (is_host_visible(facts)) {
    machine.rates.host_to_device = machine.rates.device_to_host = 0.0;
    machine.rates.host_to_device_both = machine.rates.device_to_host_both = 0.0;
  }
  for (tiers::PathSettings const& path : config.paths) {
    machine.rates.paths.push_back({path.read_rate / facts.room.ranks_per_node,
                                   path.write_rate / facts.room.ranks_per_node,
                                   path.duplex == tiers::Duplex::full});
  }
  return machine;
}

plan::Workload workload_of(config::RunConfig const& config, StepFacts const& facts) {
  auto const& map = facts.map;
  auto const dims = run_dims(config);
  auto const ring = ring_of(config);
  bool const vertical = config.train.together > 0;
  plan::Workload work;
  int const layers = static_cast<int>(map.layers().size());
  work.layers_per_block = state::layers_per_block;
  // Whole gradients leave from their sums, which are written again a block later at the earliest.
  work.attention_buffer = facts.device.attention_buffer || sums_whole_blocks(config);
  for (int layer = 0; layer < layers; ++layer) {
    plan::LayerWork each;
    if (auto const block = static_cast<int>(map.layers()[static_cast<std::size_t>(layer)].block);
        block >= 0) {
      auto const of_block =
          block_work(config, dims, vertical ? model::recomputed_block : ring.fates(block));
      each = layer == state::mlp_layer(block) ? of_block.mlp : of_block.attention;
    }
    each.elements = map.layers()[static_cast<std::size_t>(layer)].padded_elements();
    each.begin = map.shard_offset(layer, facts.rank);
    each.count = map.chunks(layer, facts.rank).count * chunk_elements;
    work.layers.push_back(each);
  }
  // The head's backward is done at the end of forward, tile by tile.
  work.layers.back().forward = head_products * 2.0 * static_cast<double>(dims.rows()) *
                               static_cast<double>(dims.V) * static_cast<double>(dims.C);
  if (vertical) {
    work.vertical = waiting_work(config);
  } else {
    for (state::LeavingPart const& part : leaving_parts(config)) {
      work.layers[static_cast<std::size_t>(state::mlp_layer(part.block))].leaving += part.bytes;
    }
  }
  auto const order = model::layer_order(config.model);
  work.forward = order.forward;
  work.backward = order.backward;
  for (auto const& subgroup : state::subgroups_of(map, facts.rank, facts.memory.subgroup_elements,
                                                  resident_elements(config, map, facts.rank))) {
    work.subgroups.push_back({subgroup.begin, subgroup.size, subgroup.resident});
  }
  auto const rounds = dealt(config, map.ranks());
  work.micro_batches = rounds.micro_batches;
  work.rounds = rounds.count();
  work.ranks = rounds.ranks;
  work.nodes = static_cast<int>(ceil_div(rounds.ranks, facts.room.ranks_per_node));
  work.row = rounds.block;
  work.state_bytes = config.optimizer.layout().bytes_per_element();
  work.working_bytes = config.numerics.element_bytes();
  work.splits_parameters = config.optimizer.split_parameter;
  work.gradient_bytes = accumulated_bytes(config);
  work.extent_bytes = extent_sum_bytes(config);
  work.sum_block = sums_whole_blocks(config) ? 0 : sum_block(config);
  return work;
}

plan::Schedule schedule_of(config::RunConfig const& config, StepFacts const& facts) {
  auto const& memory = facts.memory;
  bool const host_visible = is_host_visible(facts);
  bool const stored = !config.paths.empty();
  bool const lane = needs_lane(config, host_visible);
  auto const shape =
      update_shape(config, facts.map, facts.rank, memory.subgroup_elements, facts.room.route);
  auto const chunks = lane_settings(config, shape);
  plan::Schedule schedule;
  schedule.share = facts.share;
  schedule.transfers = config.share.transfers;
  schedule.order = config.storage.order;
  schedule.under_next_forward =
      lane && config.share.transfers == plan::Transfers::overlap && !facts.device.buffers_are_lent;
  schedule.stages = lane && !host_visible && config.parameter_home == parameters::Home::device;
  schedule.chunk = chunks.chunk;
  schedule.chunk_buffers = chunks.buffers;
  schedule.staged_chunks = chunks.parameter_buffers;
  schedule.workers = update_workers(config, memory, host_visible);
  schedule.direct = facts.room.route == state::Route::direct;
  schedule.sums_on_device = shape.sums_on_device;
  schedule.sum_blocks = shape.blocks;
  schedule.held = shape.held_elements(facts.device.held);
  schedule.reserved_in_turn = shape.reserved_in_turn(schedule.held);
  schedule.buffers = stored ? memory.buffers : 0;
  schedule.cached = memory.cached;
  schedule.spares = memory.spares;
  schedule.spare_slots = keeps_versions(config) && stored;
  schedule.evict = evicted_first(config);
  schedule.split = config.storage.split;
  schedule.sharer = {facts.rank % facts.room.ranks_per_node, facts.room.ranks_per_node};
  schedule.gradient_buffers = memory.gradient_buffers;
  schedule.gradients_cached = memory.gradients_cached;
  schedule.flush_fp32 = config.flushes_fp32();
  schedule.home = config.parameter_home;
  set_slots(schedule, config, facts);
  schedule.parameter_buffers = memory.parameter_buffers;
  schedule.parameters_ahead =
      std::clamp(memory.parameter_buffers - 1, 1,
                 parameters::host_extents(depth_demand(config, facts.map, 0)));
  schedule.slabs = std::max(1, ring_of(config).slabs());
  schedule.activations_on_storage = config.train.activations.storage;
  schedule.activations_cached = memory.activations_cached;
  auto const workers = activation_workers(memory.activation_buffers);
  schedule.activation_writers = workers.writers;
  schedule.activation_readers = workers.readers;
  return schedule;
}

plan::Prediction foresee_step(config::RunConfig const& config, StepFacts const& facts,
                              StepSimulation const& by) {
  auto const machine = by.machine != nullptr ? *by.machine : machine_of(config, facts);
  auto const work = workload_of(config, facts);
  auto schedule = schedule_of(config, facts);
  auto plain = plan::simulate(machine, work, schedule, by.detail);
  auto const tell = [&] {
    if (by.events != nullptr) {
      *by.events = plan::simulate_events(machine, work, schedule, most_events);
    }
  };
  bool const gains = !facts.device.buffers_are_lent &&
                     (schedule.spares > 0 || (schedule.spare_slots && schedule.buffers > 0));
  if (config.overlap == config::Switch::off ||
      (config.overlap == config::Switch::automatic && !gains)) {
    tell();
    return plain;
  }
  schedule.overlap = true;
  auto overlapped = plan::simulate(machine, work, schedule, by.detail);
  if (config.plan.clip_rate > 0.0) {
    schedule.redone = true;
    overlapped = plan::mean(overlapped, plan::simulate(machine, work, schedule, by.detail),
                            config.plan.clip_rate);
  }
  bool const chosen = config.overlap == config::Switch::on || overlapped.step < plain.step;
  schedule.overlap = chosen;
  schedule.redone = false;
  tell();
  return chosen ? overlapped : plain;
}

plan::Bound least_step(config::RunConfig const& config, StepFacts const& facts) {
  return plan::least_time(machine_of(config, facts), workload_of(config, facts),
                          schedule_of(config, facts));
}

}  // namespace offstage::train
