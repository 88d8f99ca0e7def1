#include "train/memory/run_memory.hpp"

#include <algorithm>

#include "platform/memory/process_memory.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/memory_table.hpp"
#include "train/memory/sums.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::train {

Room device_room(config::RunConfig const& config, mpi::Communicator const& comm,
                 state::RankLink const& link, device::Device const& device) {
  bool const limited = config.device.memory > 0 || device.kind() == device::Kind::cuda;
  return {.route = link.route(),
          .rank_link = comm.maximum(link.device_bytes()),
          .device_memory = comm.minimum(limited ? device.capacity() : 0)};
}

RunMemory::RunMemory(config::RunConfig const& config, mpi::Communicator const& comm,
                     state::ShardMap const& map, Room const& room, device::Device const& device)
    : config_{config}, comm_{comm}, map_{map}, device_{device}, room_{room} {
  room_.host_memory =
      config.host_memory > 0
          ? config.host_memory
          : static_cast<Bytes>(auto_host_part * static_cast<double>(free_host_memory()));
}

Bytes RunMemory::free_host_memory() const {
  Bytes free_here{};
  mpi::agree(comm_, [&] { free_here = memory::available_bytes(); });
  return std::max<Bytes>(
      0, comm_.minimum(free_here) +
             room_.ranks_per_node * (gathering_bytes() - comm_.maximum(device_bytes_to_come())));
}

int RunMemory::layer_slots(plan::MemoryPlan const& plan) const {
  if (config_.parameter_home == parameters::Home::device) {
    return 0;
  }
  auto const demand =
      device_demand(config_, map_, state::fullest_rank, room_, plan.subgroup_elements);
  return static_cast<int>(comm_.minimum(std::int64_t{demand.layer_slots}));
}

launch::Needs RunMemory::needs(mpi::Communicator const& node, plan::MemoryPlan const& plan) const {
  launch::Needs needs;
  needs.allocation =
      plan.node_total + room_.ranks_per_node * (device_bytes_to_come() - gathering_bytes());
  needs.host_memory = node.sum(memory::private_bytes()) + needs.allocation;
  needs.aio_requests = aio::EngineSettings{}.queue_depth;  // the checkpoint's
  for (tiers::PathSettings const& path : config_.paths) {
    needs.aio_requests += static_cast<std::int64_t>(path.engines()) * path.engine.queue_depth;
    needs.storage_paths.push_back(path.directory);
  }
  return needs;
}

Bytes RunMemory::gathering_bytes() const {
  return config_.parameter_home == parameters::Home::device
             ? train::gathering_bytes(config_, map_, room_.route)
             : 0;
}

Bytes RunMemory::device_bytes_to_come() const {
  if (device_.kind() != device::Kind::host) {
    return 0;
  }
  return device_demand(config_, map_, state::fullest_rank, room_, config_.subgroup_size).total() -
         device_.used();
}

Bytes RunMemory::room_for_gradients(UpdateShape const& shape) const {
  Bytes const free =
      device_.capacity() - device_.used() - update::HeldGradients::norm_bytes(shape.elements);
  return gradient_room(config_, shape, device_.host_visible(), std::max<Bytes>(0, free));
}

std::vector<std::string> RunMemory::table(plan::MemoryPlan const& plan,
                                          std::int64_t spare_slots) const {
  auto const rows = memory_rows(
      config_, {.plan = plan,
                .device = device_demand(config_, map_, comm_.rank(), room_, plan.subgroup_elements),
                .shard_elements = map_.shard_elements(comm_.rank()),
                .gradient_bytes = extent_sum_bytes(config_),
                .parameter_bytes = config_.numerics.element_bytes(),
                .stored_activations = stored_activations(config_, plan),
                .spare_slots = spare_slots});
  return train::memory_table(
      rows, {.device = room_.device_memory, .host = room_.host_memory / room_.ranks_per_node});
}

}  // namespace offstage::train
