#include "train/shared_update.hpp"

#include <algorithm>

#include "base/stopwatch.hpp"

namespace offstage::train {
namespace {

/// The share of a device whose memory is the host's: its kernels would run on the same cores.
SharePolicy policy_for(RunConfig const& config, device::Device const& device) {
  SharePolicy policy = config.share;
  if (device.host_visible() && !policy.device_share) {
    policy.device_share = 0.0;
  }
  return policy;
}

std::unique_ptr<update::DeviceLane> make_lane(update::DeviceLaneSettings settings,
                                              device::Device& device, std::span<std::byte> idle,
                                              trace::Trace* trace) {
  // Slots of its own let an update go on under the next forward; activations' memory does not.
  if (update::DeviceLane::device_bytes(settings) > device.capacity() - device.used()) {
    settings.lent = idle;
  }
  return std::make_unique<update::DeviceLane>(device, settings, trace);
}

plan::UpdateDemand demand_of(RunConfig const& config, UpdateShape const& shape,
                             device::Device const& device) {
  return {.elements = shape.elements,
          .resident = config.share.device_resident,
          .gradient_bytes = shape.gradient_bytes,
          .parameter_bytes = shape.parameter_bytes,
          .chunk = lane_settings(config, shape).chunk,
          .direct_copy = device.host_visible() || config.parameter_home != parameters::Home::device,
          .transfers = config.share.transfers};
}

}  // namespace

bool needs_lane(RunConfig const& config, bool host_visible) {
  bool const parameters_travel = !host_visible && config.parameter_home == parameters::Home::device;
  return parameters_travel || config.share.device_resident > 0.0 ||
         config.share.device_share.value_or(host_visible ? 0.0 : 1.0) > 0.0;
}

update::DeviceLaneSettings lane_settings(RunConfig const& config, UpdateShape const& shape) {
  update::DeviceLaneSettings settings;
  settings.chunk = std::min(config.share.device_chunk, shape.subgroup_elements);
  bool const takes_part =
      config.share.device_share.value_or(1.0) > 0.0 || config.share.device_resident > 0.0;
  settings.slots = takes_part ? settings.slots : 0;  // the cores' parameters have their own
  settings.gradient_bytes = shape.gradient_bytes;
  settings.parameter_bytes = shape.parameter_bytes;
  settings.parameters_on_host = config.parameter_home != parameters::Home::device;
  return settings;
}

SharedUpdate::SharedUpdate(RunConfig const& config, UpdateShape const& shape,
                           device::Device& device, std::span<std::byte> idle,
                           std::vector<state::Subgroup> const& subgroups, Offload& offload,
                           trace::Trace* trace)
    : subgroups_{subgroups},
      offload_{offload},
      readiness_{subgroups},
      share_{policy_for(config, device), demand_of(config, shape, device), config.platform} {
  if (needs_lane(config, device.host_visible())) {
    lane_ = make_lane(lane_settings(config, shape), device, idle, trace);
    spills_ = config.share.transfers == plan::Transfers::overlap;
  }
  update::PipelineSettings settings{.workers = shape.workers,
                                    .device = lane_.get(),
                                    .transfers = config.share.transfers,
                                    .host_update_rate = config.device.emulation.host_update,
                                    .readiness = &readiness_,
                                    .trace = trace};
  if (lane_) {
    settings.resident = [&offload](std::int64_t index) { return offload.resident(index); };
  }
  pipeline_ = std::make_unique<update::UpdatePipeline>(subgroups, offload.state(), settings);
}

std::vector<update::Trip> SharedUpdate::next_trips() {
  auto const order = offload_.next_order();  // of what is not resident
  auto trips = share_.trips(order, subgroups_);
  // Last, so that the link has nothing to bring for them while it takes the others back (DOS section 4.1).
  for (state::Subgroup const& subgroup : subgroups_) {
    if (subgroup.resident) {
      trips.push_back({.subgroup = subgroup.index, .on_device = true});
    }
  }
  return trips;
}

ShareStep SharedUpdate::run(kernels::AdamwStep const& step, update::GradientSource gradient,
                            update::ParameterTargets const& targets) {
  finish();
  ShareStep done{
      .used = lane_ != nullptr, .share = share_.share(), .expected = share_.expected().total};
  auto const trips = next_trips();
  Stopwatch const watch;
  if (spills_) {
    pipeline_->start(step, trips, std::move(gradient), targets);
  } else {
    auto const stats = pipeline_->run(step, trips, gradient, targets);
    if (lane_) {
      share_.learn(stats);
    }
  }
  seconds_ = watch.elapsed();
  return done;
}

void SharedUpdate::finish() {
  auto const stats = pipeline_->finish();
  if (stats.cpu_elements + stats.device_elements > 0) {
    share_.learn(stats);
  }
}

}  // namespace offstage::train
