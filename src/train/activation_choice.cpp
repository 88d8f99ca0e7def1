#include "train/activation_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "activations/host_activations.hpp"
#include "base/dtype.hpp"
#include "model/dims.hpp"
#include "train/device_demand.hpp"

namespace offstage::train {
namespace {

using activations::Policy;
using Rule = Policy::Rule;

double first_known(double one, double other) {
  return one > 0.0 ? one : other;
}

template <class T>
activations::Rates rates_of(RunConfig const& config, state::ShardMap const& map) {
  auto const& emulation = config.device.emulation;
  auto const& platform = config.platform;
  Bytes all = 0;
  for (state::LayerLayout const& layer : map.layers()) {
    all += layer.padded_elements() * static_cast<Bytes>(sizeof(T));
  }
  bool const streamed = config.parameter_home != parameters::Home::device;
  return {.compute = emulation.compute,
          .host_to_device =
              first_known(emulation.host_to_device,
                          first_known(platform.host_to_device_both, platform.host_to_device)),
          .device_to_host =
              first_known(emulation.device_to_host,
                          first_known(platform.device_to_host_both, platform.device_to_host)),
          .parameters = streamed ? all : 0,
          .gradients = all};
}

}  // namespace

model::Dims run_dims(RunConfig const& config) {
  return model::dims_of(
      config.model,
      {.batch = config.train.micro_batch,
       .sequence = config.train.sequence,
       .attention_workspace = config.device.attention_workspace},
      config.device.kind == DeviceKind::cuda ? device::Kind::cuda : device::Kind::host);
}

template <class T>
model::RunShape run_shape(RunConfig const& config) {
  return {.batch = config.train.micro_batch,
          .sequence = config.train.sequence,
          .attention_workspace = config.device.attention_workspace,
          .fates = activations::block_fates<T>(config.train.activations, run_dims(config),
                                               static_cast<int>(config.model.layers)),
          .slabs = config.share.transfers == plan::Transfers::blocking ? 1 : 2,
          .micro_batches = config.train.together};
}

template <class T>
Bytes activation_bytes(RunConfig const& config) {
  return config.train.activations.storage
             ? 0
             : activations::HostActivations::host_bytes(
                   model::leaving_parts<T>(config.model, run_shape<T>(config)));
}

template <class T>
std::vector<Bytes> activation_extents(RunConfig const& config) {
  return config.train.activations.storage
             ? activations::StoredActivations::extents(
                   model::leaving_parts<T>(config.model, run_shape<T>(config)))
             : std::vector<Bytes>{};
}

template <class T>
Bytes stored_activations(RunConfig const& config, plan::MemoryPlan const& plan) {
  auto const extents = activation_extents<T>(config);
  auto const cached = std::min<std::int64_t>(std::ssize(extents), plan.activations_cached);
  // The first leave, the last stay.
  return std::accumulate(extents.begin(), extents.end() - cached, Bytes{});
}

int wished_activation_buffers(RunConfig const& config) {
  return 2 * (1 + static_cast<int>(config.paths.size()));
}

activations::StoredSettings activation_workers(int buffers) {
  int const readers = std::max(1, buffers / 2);
  return {.writers = std::max(1, buffers - readers), .readers = readers};
}

template <class T>
Policy settle_activations(RunConfig const& config, state::ShardMap const& map, int rank,
                          DeviceRoom const& room) {
  if (config.train.activations.rule != Rule::automatic) {
    return config.train.activations;
  }
  RunConfig tried = config;
  tried.device.memory = room.memory;
  auto const fits = [&](Policy const& policy) {
    tried.train.activations = policy;
    return room.memory == 0 ||
           device_demand<T>(tried, map, rank, room.route, config.subgroup_size, room.link)
                   .total() <= room.memory;
  };
  bool const together = config.train.together > 0;
  if (!together && fits({Rule::keep})) {
    return {Rule::keep};
  }
  // What host memory has no room for may leave it. Where it has room for all, no byte goes to storage and no time is lost.
  bool const storage = !config.paths.empty();
  Policy const inputs{Rule::swap, 0.0, storage};
  auto const rates = rates_of<T>(config, map);
  bool const recomputes = fits({Rule::recompute});
  if (together || !rates.known()) {
    return recomputes ? Policy{Rule::recompute} : inputs;
  }
  auto const dims = run_dims(config);
  auto const blocks = static_cast<int>(config.model.layers);
  auto const paper = activations::paper_choice<T>(rates, dims, blocks);
  Policy const some{Rule::swap, paper.share, storage};
  bool const swaps = fits(some);
  if (recomputes &&
      (!swaps || activations::recompute_seconds(rates, dims, blocks) <= paper.seconds)) {
    return {Rule::recompute};
  }
  return swaps ? some : inputs;
}

#define OFFSTAGE_INSTANTIATE(T)                                                        \
  template model::RunShape run_shape<T>(RunConfig const&);                             \
  template std::vector<Bytes> activation_extents<T>(RunConfig const&);                 \
  template Bytes stored_activations<T>(RunConfig const&, plan::MemoryPlan const&);     \
  template Bytes activation_bytes<T>(RunConfig const&);                                \
  template Policy settle_activations<T>(RunConfig const&, state::ShardMap const&, int, \
                                        DeviceRoom const&);
OFFSTAGE_INSTANTIATE(float)
OFFSTAGE_INSTANTIATE(bfloat16)
OFFSTAGE_INSTANTIATE(float16)
#undef OFFSTAGE_INSTANTIATE

}  // namespace offstage::train
