#include "train/memory/device_demand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "model/block.hpp"
#include "model/vertical_plan.hpp"
#include "model/workspace.hpp"
#include "parameters/streamed_parameters.hpp"
#include "state/working_copy.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_shape.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {
namespace {

constexpr Bytes most_bytes = std::numeric_limits<Bytes>::max();

/// A device without memory. It adds up the bytes for which it was asked, and gives addresses to
/// count with.
class Tally final : public device::Device {
 public:
  [[nodiscard]] device::Kind kind() const noexcept override { return device::Kind::host; }
  [[nodiscard]] std::string name() const override { return "none"; }
  [[nodiscard]] device::Buffer allocate(Bytes size, std::string const& /*purpose*/) override {
    std::byte* const data = next_;
    next_ += round_up(size, page_bytes);
    total_ += size;
    return {*this, data, size};
  }
  void set_aside(Bytes size, std::string const& /*purpose*/) override { total_ += size; }
  [[nodiscard]] std::unique_ptr<device::Stream> make_stream(
      std::string const& /*name*/, device::Priority /*priority*/) override {
    throw PreconditionError{"a tally has no streams"};
  }
  [[nodiscard]] std::unique_ptr<device::Stream> make_calling_stream(
      std::string const& name) override {
    return make_stream(name, device::Priority::usual);
  }
  [[nodiscard]] std::unique_ptr<device::Pinned> pin(std::span<std::byte> /*memory*/) override {
    throw PreconditionError{"a tally has no memory to pin"};
  }
  [[nodiscard]] bool host_visible() const noexcept override { return true; }
  [[nodiscard]] Bytes capacity() const noexcept override { return 0; }
  [[nodiscard]] Bytes used() const noexcept override { return total_; }
  [[nodiscard]] Bytes peak() const noexcept override { return total_; }

 protected:
  void free(std::byte* /*data*/, Bytes /*size*/) noexcept override {}

 private:
  static constexpr Bytes page_bytes = 4 * KiB;
  std::byte* next_ = reinterpret_cast<std::byte*>(page_bytes);
  Bytes total_{};
};

/// Device memory of a model.
struct ModelMemory {
  Bytes bytes{};
  std::span<std::byte> idle;  ///< as Workspace::idle_memory, to count with
};

ModelMemory model_memory(config::RunConfig const& config, state::ShardMap const& map,
                         bool attention_buffer) {
  auto const run = run_shape(config);
  Tally tally;
  return with_type(config.numerics.dtype, [&]<class T>(T) -> ModelMemory {
    model::Workspace<T> const workspace{
        run_dims(config),
        model::workspace_demand(map.layers(), config.model.tied_head, attention_buffer,
                                model::ring_of(config.model, run),
                                model::vertical_plan(config.model, run).demand()),
        tally};
    return {.bytes = tally.used(), .idle = workspace.idle_memory()};
  });
}

/// Device memory of a working copy that lives there. `slots` is as state::WorkingCopy's.
Bytes working_copy_bytes(config::RunConfig const& config, state::ShardMap const& map, int rank,
                         int slots) {
  return with_type(config.numerics.dtype, [&]<class T>(T) {
    return state::WorkingCopy<T>::device_bytes(map, rank, slots);
  });
}

/// Device memory of layers that are brought there, in so many slots.
Bytes streamed_bytes(config::RunConfig const& config, state::ShardMap const& map, int slots) {
  return with_type(config.numerics.dtype, [&]<class T>(T) {
    return parameters::StreamedParameters<T>::device_bytes(map, slots);
  });
}

Bytes resident_bytes(config::RunConfig const& config, state::ShardMap const& map, int rank,
                     std::int64_t subgroup_elements) {
  StateLayout const layout = config.optimizer.layout();
  Bytes bytes = 0;
  for (auto const& subgroup :
       state::subgroups_of(map, rank, subgroup_elements, resident_elements(config, map, rank))) {
    bytes += subgroup.resident ? layout.bytes(subgroup.size) : 0;
  }
  return bytes;
}

/// The same on the fullest rank, with subgroups of any size.
Bytes most_resident_bytes(config::RunConfig const& config, state::ShardMap const& map) {
  std::int64_t const elements = resident_elements(config, map, state::fullest_rank);
  return ceil_div(elements, chunk_elements) * config.optimizer.layout().bytes(chunk_elements);
}

/// Returns whether backward holds attention beside the MLP of any block, as a vertical schedule
/// always does.
bool holds_two_layers(config::RunConfig const& config) {
  auto const run = run_shape(config);
  return run.micro_batches > 0 || std::ranges::any_of(run.fates, model::mlp_needs_attention);
}

/// gathering_layer_slots, with or without attention's buffer.
int slots_beside(bool attention_buffer, config::RunConfig const& config, state::ShardMap const& map,
                 Room const& room) {
  using Copy = state::WorkingCopy<float>;  // for numbers that all types have
  if (map.ranks() > 1 && parameters::stay_whole(config.sharding)) {
    return Copy::all_layers;
  }
  if (map.ranks() == 1 || !holds_two_layers(config)) {
    return Copy::least_slots;
  }
  auto const shape =
      update_shape(config, map, state::fullest_rank, config.subgroup_size, room.route);
  Bytes const all =
      model_memory(config, map, attention_buffer).bytes + room.rank_link +
      working_copy_bytes(config, map, state::fullest_rank, Copy::slots_for_held_blocks) +
      gradient_device_bytes(config, map, state::fullest_rank, room.route) +
      most_resident_bytes(config, map) +
      (needs_lane(config, room.host_visible())
           ? update::DeviceLane::device_bytes(lane_settings(config, shape))
           : 0) +
      given_gradients(config, shape, room.host_visible());
  Bytes const limit = room.device_memory;
  return limit == 0 || all <= limit ? Copy::slots_for_held_blocks : Copy::least_slots;
}

/// device_demand, with or without attention's buffer.
DeviceDemand demand_with(bool attention_buffer, config::RunConfig const& config,
                         state::ShardMap const& map, int rank, Room const& room,
                         std::int64_t subgroup_elements) {
  bool const host_visible = room.host_visible();
  std::int64_t const shard = map.shard_elements(rank);
  auto const model = model_memory(config, map, attention_buffer);
  DeviceDemand demand;
  demand.attention_buffer = attention_buffer;
  demand.rank_link = room.rank_link;
  demand.model = model.bytes;
  demand.gradient = gradient_device_bytes(config, map, rank, room.route);
  demand.resident = resident_bytes(config, map, rank, subgroup_elements);
  Bytes const limit = room.device_memory;
  bool const updates = needs_lane(config, host_visible);
  auto const shape = update_shape(config, map, rank, subgroup_elements, room.route);
  auto lane = lane_settings(config, shape);
  Bytes const given = given_gradients(config, shape, host_visible);
  if (config.parameter_home == parameters::Home::device) {
    demand.layer_slots = slots_beside(attention_buffer, config, map, room);
    demand.working_copy = working_copy_bytes(config, map, rank, demand.layer_slots);
  } else {
    Bytes const beside =
        demand.total() + (updates ? update::DeviceLane::device_bytes(lane) : 0) + given;
    demand.layer_slots =
        layer_slots(config, map, host_visible, (limit > 0 ? limit : most_bytes) - beside);
    demand.working_copy = streamed_bytes(config, map, demand.layer_slots);
  }
  if (updates) {
    demand.chunk_buffers = update::DeviceLane::device_bytes(lane);
    if (limit > 0 && demand.total() + given > limit) {
      lend(lane, model.idle, config);
      demand.chunk_buffers = update::DeviceLane::device_bytes(lane);
      demand.buffers_are_lent = demand.chunk_buffers == 0;
    }
  }
  // The rest of a GPU's memory is unknown if its size is.
  bool const unknown = limit == 0 && config.device.kind == config::DeviceKind::cuda;
  Bytes const norms = update::HeldGradients::norm_bytes(shard);
  Bytes const held = gradient_room(config, shape, host_visible,
                                   unknown     ? 0
                                   : limit > 0 ? std::max<Bytes>(0, limit - demand.total() - norms)
                                               : most_bytes);
  demand.held = held > 0 ? held + norms : 0;
  return demand;
}

/// Returns whether attention's gradient would use a buffer of its own.
bool wants_attention_buffer(config::RunConfig const& config, state::ShardMap const& map,
                            Room const& room) {
  return map.ranks() > 1 && !room.host_visible() && !sums_whole_blocks(config);
}

}  // namespace

bool attention_buffer(config::RunConfig const& config, state::ShardMap const& map,
                      Room const& room) {
  if (!wants_attention_buffer(config, map, room) || room.device_memory == 0) {
    return wants_attention_buffer(config, map, room);
  }
  return demand_with(true, config, map, state::fullest_rank, room, config.subgroup_size).total() <=
         room.device_memory;
}

int gathering_layer_slots(config::RunConfig const& config, state::ShardMap const& map,
                          Room const& room) {
  return slots_beside(attention_buffer(config, map, room), config, map, room);
}

DeviceDemand device_demand(config::RunConfig const& config, state::ShardMap const& map, int rank,
                           Room const& room, std::int64_t subgroup_elements) {
  bool const has_buffer = attention_buffer(config, map, room);
  auto demand = demand_with(has_buffer, config, map, rank, room, subgroup_elements);
  demand.lacks_attention_buffer = !has_buffer && wants_attention_buffer(config, map, room);
  return demand;
}

void require_room(DeviceDemand const& demand, config::RunConfig const& config, Bytes limit) {
  using Rule = activations::Policy::Rule;
  Bytes const needed = demand.total();
  if (limit == 0 || needed <= limit) {
    return;
  }
  bool const is_given = config.device.memory > 0 && limit >= config.device.memory;
  bool const whole = parameters::stay_whole(config.sharding);
  std::string words = is_given ? "raise it, lower train.sequence" : "lower train.sequence";
  auto const add = [&words](bool helps, std::string const& text) { words += helps ? text : ""; };
  add(config.train.micro_batch > 1, ", train.micro-batch");
  add(demand.resident > 0, ", update.device-resident");
  add(demand.chunk_buffers > 0, ", update.device-chunk");
  add(demand.held > 0, ", update.device-gradients");
  add(demand.chunk_buffers > 0 && config.overlap == config::Switch::on,
      ", set update.overlap=auto");
  add(demand.rank_link > 0, fmt::format(", set comm.backend=mpi (NCCL's buffers are {} of that)",
                                        format_bytes(demand.rank_link)));
  add(config.train.activations.rule != Rule::automatic, ", set train.activations=auto");
  add(whole, ", set parameters.sharding=zero3");
  add(config.parameter_home == parameters::Home::device && !whole, ", set parameters.home=host");
  add(config.parameter_home == parameters::Home::device, ", or use more ranks");
  throw UsageError{fmt::format(
      "{} is too small: {} are needed, {} more; {}",
      is_given ? fmt::format("device.memory={}", format_bytes(limit))
               : fmt::format("what is free of the device's memory, {},", format_bytes(limit)),
      format_bytes(needed), format_bytes(needed - limit), words)};
}

}  // namespace offstage::train
