#include "train/memory/activation_demand.hpp"

#include <algorithm>
#include <numeric>

#include "activations/choice.hpp"
#include "activations/host_activations.hpp"
#include "base/dtype.hpp"
#include "device/device.hpp"
#include "model/vertical_plan.hpp"

namespace offstage::train {

model::Dims run_dims(config::RunConfig const& config) {
  return model::dims_of(
      config.model,
      {.batch = config.train.micro_batch,
       .sequence = config.train.sequence,
       .documents_apart = config.data.documents_apart(),
       .attended = config.data.attended,
       .attention_workspace = config.device.attention_workspace},
      config.device.kind == config::DeviceKind::cuda ? device::Kind::cuda : device::Kind::host);
}

model::RunShape run_shape(config::RunConfig const& config) {
  bool const blocking = config.share.transfers == plan::Transfers::blocking;
  return {.batch = config.train.micro_batch,
          .sequence = config.train.sequence,
          .documents_apart = config.data.documents_apart(),
          .attended = config.data.attended,
          .z_loss = config.train.z_loss,
          .attention_workspace = config.device.attention_workspace,
          .fates = with_type(config.numerics.dtype,
                             [&]<class T>(T) {
                               return activations::block_fates<T>(
                                   config.train.activations, run_dims(config),
                                   static_cast<int>(config.model.layers));
                             }),
          .slabs = blocking ? 1 : 2,
          .serial_copies = blocking,
          .micro_batches = config.train.together,
          .staying = config.train.staying};
}

std::vector<state::LeavingPart> leaving_parts(config::RunConfig const& config) {
  return with_type(config.numerics.dtype, [&]<class T>(T) {
    return model::leaving_parts<T>(config.model, run_shape(config));
  });
}

double staying_part(config::RunConfig const& config) {
  auto const plan = model::vertical_plan(config.model, run_shape(config));
  if (config.train.together == 0 || !plan.leaves) {
    return 0.0;
  }
  return plan.slabs() < plan.tensors() ? static_cast<double>(plan.staying()) / plan.tensors() : 1.0;
}

Bytes activation_bytes(config::RunConfig const& config) {
  return config.train.activations.storage
             ? 0
             : activations::HostActivations::host_bytes(leaving_parts(config));
}

std::vector<Bytes> activation_extents(config::RunConfig const& config) {
  return config.train.activations.storage
             ? activations::StoredActivations::extents(leaving_parts(config))
             : std::vector<Bytes>{};
}

Bytes stored_activations(config::RunConfig const& config, plan::MemoryPlan const& plan) {
  auto const extents = activation_extents(config);
  auto const cached = std::min<std::int64_t>(std::ssize(extents), plan.activations_cached);
  // The first extents leave, and the last stay.
  return std::accumulate(extents.begin(), extents.end() - cached, Bytes{});
}

double share_of_parts(config::RunConfig const& config, int parts) {
  return with_type(config.numerics.dtype, [&]<class T>(T) {
    return activations::share_of_parts<T>(run_dims(config), parts);
  });
}

int wished_activation_buffers(config::RunConfig const& config) {
  return 2 * (1 + static_cast<int>(config.paths.size()));
}

activations::StoredSettings activation_workers(int buffers) {
  int const readers = std::max(1, buffers / 2);
  return {.writers = std::max(1, buffers - readers), .readers = readers};
}

}  // namespace offstage::train
