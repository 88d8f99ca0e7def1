#include "train/memory/memory_demand.hpp"

#include <algorithm>
#include <cmath>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "checkpoint/file_exchange.hpp"
#include "config/known_rates.hpp"
#include "kernels/attention/attention.hpp"
#include "model/block.hpp"
#include "model/head.hpp"
#include "parameters/node_memory.hpp"
#include "parameters/streamed_parameters.hpp"
#include "plan/split.hpp"
#include "state/working_copy.hpp"
#include "tiers/device_tiers.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/sums.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {
namespace {

/// Memory of a rank's libraries once they run: oneDNN's code and scratch, HDF5, MPI's buffers.
/// Measured with two threads: 8 MiB for 3 M parameters, 14 for 88 M.
constexpr Bytes library_bytes = 16 * MiB;
/// oneDNN's scratch per thread, whatever the product's size. Measured: 1.7 MiB at most, in bf16
/// with AVX-512.
constexpr Bytes scratch_bytes = 2 * MiB;
constexpr int threads_measured = 2;
/// Part of library_bytes that the scratch memory of attention had.
constexpr Bytes attention_measured = 4 * MiB;
/// Extents of parameters that updates fill while others are brought to the device: one updated, one
/// flushed.
constexpr int updated_extents = 2;

/// Memory of libraries, which grows with the threads that multiply; that of attention on cores,
/// which grows with the sequence, too; and that of products whose operands cores widen: tiles, and
/// at most twice as much for code of more shapes. Measured: 35 MiB beside the plan for a hidden
/// size of 1,024, 20 for 256. A limit that is small needs it for buffers.
Bytes reserve(config::RunConfig const& config, Room const& room) {
  if (config.device.kind == config::DeviceKind::cuda) {
    return library_bytes;
  }
  auto const dims = run_dims(config);
  Bytes const widened = with_type(config.numerics.dtype, [&]<class T>(T) {
    return std::max(model::head_widened_bytes<T>(dims), model::block_widened_bytes<T>(dims));
  });
  Bytes const attention = with_type(config.numerics.dtype, [&]<class T>(T) {
    return kernels::host::attention_scratch_bytes<T>(dims.attention_shape(), config.threads);
  });
  return library_bytes + scratch_bytes * std::max(0, config.threads - threads_measured) +
         std::min(3 * widened + std::max<Bytes>(0, attention - attention_measured),
                  room.host_memory / room.ranks_per_node / 8);
}

}  // namespace

bool holds_versions(config::RunConfig const& config) {
  return config.checkpoint.is_paced() && config.checkpoint.overlap && !config.paths.empty() &&
         !config.optimizer.split_parameter;
}

bool keeps_versions(config::RunConfig const& config) {
  return config.overlap != config::Switch::off && !config.optimizer.split_parameter;
}

plan::Evict evicted_first(config::RunConfig const& config) {
  return config.overlap == config::Switch::off ? config.storage.evict : plan::Evict::highest;
}

std::int64_t resident_elements(config::RunConfig const& config, state::ShardMap const& map,
                               int rank) {
  return std::llround(config.share.device_resident * static_cast<double>(map.shard_elements(rank)));
}

bool sums_on_device(int ranks, state::Route route) {
  return route == state::Route::direct || (route == state::Route::staged && ranks == 1);
}

UpdateShape update_shape(config::RunConfig const& config, state::ShardMap const& map, int rank,
                         std::int64_t subgroup_elements, state::Route route) {
  std::int64_t const shard = map.shard_elements(rank);
  UpdateShape shape{
      .elements = shard,
      .subgroup_elements = std::min(subgroup_elements, std::max(shard, chunk_elements)),
      .gradient_bytes = gradient_bytes(config),
      .sum_planes = planes_of_sums(config),
      .parameter_bytes = config.numerics.element_bytes(),
      .sums_on_device = sums_on_device(map.ranks(), route)};
  // A vertical schedule completes a block before the next one begins.
  if (config.train.together > 1 && shape.sums_on_device && !sums_whole_blocks(config)) {
    shape.blocks = update::HeldGradients::blocks_of(map, rank);
  }
  return shape;
}

parameters::DepthDemand depth_demand(config::RunConfig const& config, state::ShardMap const& map,
                                     Bytes free) {
  auto const sizes = map.layer_slot_sizes();
  parameters::DepthDemand demand{.free = free,
                                 .layer = sizes.usual * config.numerics.element_bytes(),
                                 .large = sizes.large * config.numerics.element_bytes(),
                                 .link = config::known_rates(config).host_to_device};
  bool known = true;
  for (std::size_t i = 0; i < config.paths.size(); ++i) {
    if (plan::takes_extents(config.storage.split, i)) {
      ++demand.paths;
      known = known && config.paths[i].read_rate > 0.0;
      demand.storage += config.paths[i].read_rate;
    }
  }
  demand.storage = known ? demand.storage : 0.0;
  return demand;
}

int layer_slots(config::RunConfig const& config, state::ShardMap const& map, bool host_visible,
                Bytes free) {
  using parameters::Home;
  bool const whole = config.parameter_home == Home::node ||
                     (config.parameter_home == Home::host && map.ranks() == 1);
  bool const in_place = whole && host_visible;
  return config.parameter_home == Home::device || in_place
             ? 0
             : parameters::layer_slots(depth_demand(config, map, free));
}

Bytes gathering_bytes(config::RunConfig const& config, state::ShardMap const& map,
                      state::Route route) {
  return with_type(config.numerics.dtype,
                   [&]<class T>(T) { return state::WorkingCopy<T>::host_bytes(map, route); });
}

std::int64_t all_elements(state::ShardMap const& map) {
  std::int64_t elements = 0;
  for (state::LayerLayout const& layer : map.layers()) {
    elements += layer.padded_elements();
  }
  return elements;
}

plan::MemoryDemand memory_demand(config::RunConfig const& config, state::ShardMap const& map,
                                 Room const& room) {
  // No rank has more of any layer, so none needs more. A plan asks for hundreds of demands, with
  // tens of thousands of ranks.
  int const rank = state::fullest_rank;
  std::int64_t const most = map.shard_elements(rank);
  // Elements whose state is not resident.
  std::int64_t const waiting = most - resident_elements(config, map, rank);
  Bytes exchange = gradient_host_bytes(config, map, rank, room.route);
  bool const on_device = config.parameter_home == parameters::Home::device;
  bool const on_node = config.parameter_home == parameters::Home::node;
  if (on_node) {
    exchange += parameters::NodeMemory::page_table_bytes(all_elements(map) + most,
                                                         config.numerics.element_bytes());
  } else {
    exchange += on_device ? gathering_bytes(config, map, room.route)
                          : with_type(config.numerics.dtype, [&]<class T>(T) {
                              return parameters::StreamedParameters<T>::host_bytes(map, room.route);
                            });
  }
  if (most > waiting) {
    exchange += tiers::DeviceTiers::lease_bytes({config.optimizer.layout().bytes(
        round_up(std::min(most - waiting, config.subgroup_size), chunk_elements))});
  }
  if (needs_lane(config, room.host_visible())) {
    exchange += update::DeviceLane::host_bytes(
        lane_settings(config, update_shape(config, map, rank, config.subgroup_size, room.route)),
        room.host_visible());
  }
  if (auto const dims = run_dims(config); dims.kind == device::Kind::host) {
    exchange += with_type(config.numerics.dtype,
                          [&]<class T>(T) { return model::head_sum_bytes<T>(dims); });
  }
  if (config.checkpoint.partner) {
    exchange += checkpoint::FileExchange::host_bytes();
  }
  auto const extents = activation_extents(config);
  return {
      .state = config.optimizer.layout(),
      .shard_elements = most,
      .resident_elements = most - waiting,
      .ranks_per_node = room.ranks_per_node,
      .gradient_bytes_per_element = extent_sum_bytes(config),
      .flush_fp32 = config.flushes_fp32(),
      .exchange_bytes = exchange,
      .activation_bytes = activation_bytes(config),
      .activation_extents = std::ssize(extents),
      .activation_extent = extents.empty() ? 0 : *std::ranges::max_element(extents),
      .activation_buffers = wished_activation_buffers(config),
      .parameter_bytes_per_element = on_device ? 0 : config.numerics.element_bytes(),
      .shared_parameters = on_node ? all_elements(map) : 0,
      .parameters_on_storage = config.parameter_home == parameters::Home::storage,
      .parameter_buffers = parameters::host_extents(depth_demand(config, map, 0)) + updated_extents,
      .reserve_bytes = reserve(config, room),
      .subgroup_elements = config.subgroup_size,
      .subgroup_is_default = config.subgroup_is_default,
      .paths = std::ssize(config.paths),
      .spares =
          keeps_versions(config) && (config.overlap == config::Switch::on || !config.paths.empty()),
      .most_cache = config.storage.most_cache,
      .host_memory = room.host_memory,
      .host_memory_is_found = config.host_memory == 0};
}

plan::MemoryPlan host_plan(config::RunConfig const& config, state::ShardMap const& map,
                           Room const& room) {
  return plan::plan_memory(memory_demand(config, map, room));
}

}  // namespace offstage::train
