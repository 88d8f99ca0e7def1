#include "train/step/shared_update.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "train/memory/update_demand.hpp"

namespace offstage::train {
namespace {

/// The share of a device whose memory is the host's: its kernels would run on the same cores.
config::SharePolicy policy_for(config::RunConfig const& config, device::Device const& device) {
  config::SharePolicy policy = config.share;
  if (device.host_visible() && !policy.device_share) {
    policy.device_share = 0.0;
  }
  return policy;
}

std::unique_ptr<update::DeviceLane> make_lane(update::DeviceLaneSettings settings,
                                              device::Device& device, std::span<std::byte> idle,
                                              trace::Trace* trace, device::MemoryCounter* memory) {
  // Slots of its own let an update go on under the next forward; activations' memory does not. Only the
  // device knows whether there is room for them: other programs may take of the same GPU.
  try {
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  } catch (UsageError const&) {
    settings.lent = idle;
    return std::make_unique<update::DeviceLane>(device, settings, trace, memory);
  }
}

}  // namespace

SharedUpdate::SharedUpdate(config::RunConfig const& config, UpdateShape const& shape,
                           device::Device& device, std::span<std::byte> idle,
                           std::vector<state::Subgroup> const& subgroups, Offload& offload,
                           trace::Trace* trace, device::MemoryCounter* memory)
    : subgroups_{subgroups},
      offload_{offload},
      readiness_{subgroups},
      share_{policy_for(config, device), update_demand(config, shape, device.host_visible()),
             config.platform},
      transfers_{config.share.transfers} {
  if (needs_lane(config, device.host_visible())) {
    lane_ = make_lane(lane_settings(config, shape), device, idle, trace, memory);
    spills_ = config.share.transfers == plan::Transfers::overlap;
  }
  update::PipelineSettings settings{.layout = config.optimizer.layout(),
                                    .workers = shape.workers,
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

bool SharedUpdate::can_begin_ahead() const noexcept {
  return !lane_ || lane_->settings().slots == 0 || lane_->any_own_slots();
}

std::vector<update::Trip> SharedUpdate::next_trips(bool ahead) {
  // Of what is not resident; as gradients come, if they are waited for one by one.
  auto const order = ahead ? offload_.descending_order() : offload_.next_order();
  auto trips = share_.trips(order, subgroups_);
  // Last, so that the link has nothing to bring for them while it takes the others back (DOS section 4.1).
  for (state::Subgroup const& subgroup : subgroups_) {
    if (subgroup.resident) {
      trips.push_back({.subgroup = subgroup.index, .on_device = true});
    }
  }
  return trips;
}

void SharedUpdate::set_held(update::HeldGradients& held, bool sums_on_device) {
  held_ = &held;
  sums_on_device_ = sums_on_device;
  share_.set_held(held.most_elements());
}

void SharedUpdate::plan(bool ahead) {
  share_.set_paths(offload_.rates_of_rank());
  trips_ = next_trips(ahead);
  if (held_ == nullptr) {
    return;
  }
  std::vector<std::int64_t> wanted;  // residents first: they will be there in every step
  std::vector<std::int64_t> others;
  for (bool const resident : {true, false}) {
    for (update::Trip const& trip : trips_) {
      bool const is_resident = subgroups_[static_cast<std::size_t>(trip.subgroup)].resident;
      if (trip.on_device && is_resident == resident) {
        wanted.push_back(trip.subgroup);
      }
    }
  }
  for (update::Trip const& trip : trips_) {
    if (sums_on_device_ && !trip.on_device) {
      others.push_back(trip.subgroup);
    }
  }
  held_->hold(wanted, others);
}

ShareStep SharedUpdate::planned() const {
  require(trips_.size() == subgroups_.size(), "SharedUpdate: an update was planned first");
  return {.used = lane_ != nullptr,
          .share = share_.share(),
          .expected = share_.expected().total,
          .gradients_held = held_ != nullptr ? held_->bytes() : 0};
}

void SharedUpdate::begin_ahead(kernels::OptimizerStep const& presumed, double most_squares,
                               update::GradientSource gradient, parameters::Targets targets) {
  pipeline_->start_ahead(presumed, most_squares, trips_, std::move(gradient), std::move(targets));
}

void SharedUpdate::complete(std::int64_t subgroup, double squares) {
  if (pipeline_->is_ahead()) {
    pipeline_->complete(subgroup, squares);
  }
}

ShareStep SharedUpdate::confirm() {
  ShareStep const done = planned();
  pipeline_->confirm();
  end_if_blocking();
  return done;
}

ShareStep SharedUpdate::redo(kernels::OptimizerStep const& step, update::GradientSource gradient,
                             parameters::Targets targets) {
  ShareStep const done = planned();
  pipeline_->start_under_forward(step, trips_, std::move(gradient), std::move(targets));
  end_if_blocking();
  return done;
}

void SharedUpdate::end_if_blocking() {
  trips_.clear();
  if (transfers_ == plan::Transfers::blocking) {
    finish();
  }
}

std::vector<tiers::Key> SharedUpdate::take_back() {
  return pipeline_->take_back().reverted;
}

void SharedUpdate::abandon() noexcept {
  pipeline_->abandon();
}

ShareStep SharedUpdate::run(kernels::OptimizerStep const& step, update::GradientSource gradient,
                            parameters::Targets const& targets) {
  finish();
  ShareStep const done = planned();
  auto const trips = std::exchange(trips_, {});
  Stopwatch const watch;
  if (spills_) {
    pipeline_->start(step, trips, std::move(gradient), targets);
  } else {
    share_.learn(pipeline_->run(step, trips, gradient, targets));
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
