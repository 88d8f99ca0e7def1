#include "train/step/step_parts.hpp"

#include <fmt/format.h>

#include <utility>

#include "activations/host_activations.hpp"
#include "activations/stored_activations.hpp"
#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/process_memory.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_demand.hpp"
#include "train/offload/make_parameters.hpp"
#include "train/step/make_lane.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/gradients/block_gradients.hpp"

namespace offstage::train {

template <class T>
StepParts<T>::StepParts(config::RunConfig const& its_config, mpi::Communicator const& its_comm,
                        std::unique_ptr<device::Device> its_device,
                        std::unique_ptr<state::RankLink> its_link, OnPlan const& on_plan,
                        cudnn::Attention* attention)
    : config{its_config},
      comm{its_comm},
      device{std::move(its_device)},
      stream{device->make_calling_stream("compute")},
      link{std::move(its_link)},
      map{state::layers_of(config.model), comm.size()},
      resident_before{memory::resident_bytes()} {
  auto node = comm.split_by_node();
  nodes = static_cast<int>(comm.sum(node.rank() == 0 ? 1 : 0));
  auto room = device_room(config, comm, *link, *device);
  room.ranks_per_node = node.size();
  mpi::agree(comm, [&] { make_model(attention, room); });
  run_memory.emplace(config, comm, map, room, *device);
  mpi::agree(comm, [&] { make_memory_plan(); });
  layer_slots = run_memory->layer_slots(memory);
  on_plan(run_memory->needs(node, memory));
  subgroups = state::subgroups_of(map, comm.rank(), memory.subgroup_elements,
                                  resident_elements(config, map, comm.rank()));
  // First, so that a lack of shared memory is told before tiers take theirs.
  if (config.parameter_home == parameters::Home::node) {
    node_memory = std::make_unique<parameters::NodeMemory>(map, comm, std::move(node),
                                                           static_cast<Bytes>(sizeof(T)));
  }
  // The memory for what is not yet made is free.
  offload = std::make_unique<Offload>(
      config, comm, trace.get(),
      memory.state + memory.gradients + (node_memory ? 0 : memory.parameters) + memory.activations);
  bool const stored = config.parameter_home == parameters::Home::storage;
  offload->allocate(subgroups, memory, extent_sum_bytes(config), *device,
                    stored ? static_cast<Bytes>(sizeof(T)) : 0, activation_extents(config));
  UpdateShape shape;
  mpi::agree(comm, [&] {
    make_activations();
    make_copy();
    make_gradients();
    shape = make_update_memory();
  });
  update.emplace(config, comm, shape,
                 typename StepUpdate<T>::Parts{.device = *device,
                                               .subgroups = subgroups,
                                               .offload = *offload,
                                               .gradients = *gradients,
                                               .copy = *copy,
                                               .lane = lane.get(),
                                               .held = held.get()},
                 trace.get());
}

template <class T>
StepParts<T>::~StepParts() {
  link->end();  // no stream waits for another rank any more
  try {
    stream->synchronize();  // work that a failed step left there uses memory of all members
  } catch (...) {           // the thread that waited for it has reported the error
  }
}

// A working copy on the device comes before the model, because they take device memory in this
// order.
template <class T>
void StepParts<T>::make_model(cudnn::Attention* attention, Room const& room) {
  trace = make_trace("trace");
  if (trace) {
    communication.emplace(*trace);
  }
  if (config.parameter_home == parameters::Home::device) {
    copy = std::make_unique<parameters::DeviceParameters<T>>(
        map, *link, *device, *stream, gathering_layer_slots(config, map, room), trace.get());
  }
  auto shape = run_shape(config);
  shape.attention = attention;
  shape.attention_buffer = attention_buffer(config, map, room);
  model = std::make_unique<model::Transformer<T>>(config.model, shape, *device, *stream);
}

template <class T>
void StepParts<T>::make_memory_plan() {
  memory = host_plan(config, map, run_memory->room());
  if (!trace) {
    return;
  }
  auto const demand = device_plan();
  device_memory = std::make_unique<device::MemoryCounter>(*trace);
  device_memory->keep(device::MemoryCounter::User::parameters, demand.working_copy);
  device_memory->keep(device::MemoryCounter::User::resident_state, demand.resident);
}

template <class T>
void StepParts<T>::make_activations() {
  auto const leaving = leaving_parts(config);
  if (leaving.empty()) {
    return;
  }
  if (config.train.activations.storage) {
    auto store_workers = activation_workers(memory.activation_buffers);
    store_workers.on_demand = config.train.together > 0;
    activations = std::make_unique<activations::StoredActivations>(leaving, offload->activations(),
                                                                   *device, store_workers);
  } else {
    activations = std::make_unique<activations::HostActivations>(leaving, *device, trace.get());
  }
  model->set_store(*activations);
}

template <class T>
void StepParts<T>::make_copy() {
  if (copy) {
    return;
  }
  copy = make_parameters<T>(config, {.map = map,
                                     .link = *link,
                                     .device = *device,
                                     .stream = *stream,
                                     .subgroups = subgroups,
                                     .offload = *offload,
                                     .node_memory = node_memory.get(),
                                     .slots = layer_slots,
                                     .buffers = memory.parameter_buffers,
                                     .trace = trace.get()});
}

template <class T>
void StepParts<T>::make_gradients() {
  update::GradientSettings settings = offload->take_gradients(accumulates_fp32(config));
  settings.trace = trace.get();
  settings.memory = device_memory.get();
  settings.layer_sums = config.train.together > 1;
  settings.host_sum_rate = config.device.emulation.host_sum;
  if (sums_whole_blocks(config)) {
    gradients = update::make_block_gradients<T>(map, *link, *device, *stream, subgroups,
                                                std::move(settings), sum_block(config));
    return;
  }
  settings.blocks = {sum_block(config)};
  gradients = std::make_unique<update::GradientAccumulator<T>>(map, *link, *device, *stream,
                                                               subgroups, std::move(settings));
}

template <class T>
UpdateShape StepParts<T>::shape_of_updates() const {
  auto shape = update_shape(config, map, comm.rank(), memory.subgroup_elements, link->route());
  shape.workers = workers();
  shape.storage = storage_traffic(config, shape, memory);
  return shape;
}

// Gradients are held in the device memory that the lane has left.
template <class T>
UpdateShape StepParts<T>::make_update_memory() {
  auto const shape = shape_of_updates();
  lane = make_lane(config, shape, *device, model->idle_memory(), trace.get(), device_memory.get());
  if (Bytes const room = run_memory->room_for_gradients(shape); room > 0) {
    held = std::make_unique<update::HeldGradients>(
        *device, room, shape.gradient_bytes, subgroups, device_memory.get(),
        shape.sums_on_device ? shape.sum_planes : 1,
        update::SumsInTurn{shape.blocks, shape.reserved_in_turn(room / shape.held_bytes())});
    gradients->set_held(held.get());
  }
  return shape;
}

template <class T>
std::unique_ptr<trace::Trace> StepParts<T>::make_trace(char const* what) const {
  if (!config.trace) {
    return nullptr;
  }
  return std::make_unique<trace::Trace>(
      fmt::format("{}/{}-{}.json", config.run_dir, what, comm.rank()), comm.rank(),
      cpu::host_name(), trace::Trace::default_bytes, trace::Trace::Begin::later);
}

template <class T>
DeviceDemand StepParts<T>::device_plan() const {
  return device_demand(config, map, comm.rank(), run_memory->room(), memory.subgroup_elements);
}

template <class T>
int StepParts<T>::workers() const {
  return update_workers(config, memory, device->host_visible());
}

OFFSTAGE_INSTANTIATE_STRUCT(OFFSTAGE_RUN_TYPES, StepParts)

}  // namespace offstage::train
