#include "train/step/step_update.hpp"

#include <cstddef>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "train/memory/update_demand.hpp"
#include "train/step/step_numbers.hpp"

namespace offstage::train {
namespace {

/// The policy of a run. With update.device-share=auto a device whose memory is the host's takes no
/// share, because its kernels would run on the same cores.
config::SharePolicy policy_for(config::RunConfig const& config, device::Device const& device) {
  config::SharePolicy policy = config.share;
  if (device.host_visible() && !policy.device_share) {
    policy.device_share = 0.0;
  }
  return policy;
}

update::UpdateSettings settings_for(config::RunConfig const& config, UpdateShape const& shape,
                                    trace::Trace* trace) {
  return {.layout = config.optimizer.layout(),
          .workers = shape.workers,
          .transfers = config.share.transfers,
          .sums_on_device = shape.sums_on_device,
          .host_update_rate = config.device.emulation.host_update,
          .trace = trace};
}

}  // namespace

template <class T>
StepUpdate<T>::StepUpdate(config::RunConfig const& config, mpi::Communicator const& comm,
                          UpdateShape const& shape, Parts const& parts, trace::Trace* trace)
    : config_{config},
      comm_{comm},
      parts_{parts},
      overlap_{make_overlap()},
      share_{policy_for(config, parts.device),
             update_demand(config, shape, parts.device.host_visible()), config.platform},
      update_{update_parts(), settings_for(config, shape, trace)} {
  if (parts_.held != nullptr) {
    share_.set_held(parts_.held->staying_elements());
  }
  parts_.gradients.set_receiver(&update_);
  parts_.copy.set_readiness(&update_.readiness());
}

// Trips end leases of gradients and wait for targets of parameters. If backward has failed, they
// may wait for a gradient's buffer that backward has. The copy's threads wait for the update's
// readiness.
template <class T>
StepUpdate<T>::~StepUpdate() {
  parts_.gradients.abandon();
  update_.abandon();
  parts_.copy.stop();
}

template <class T>
update::UpdateParts StepUpdate<T>::update_parts() const {
  update::UpdateParts parts{
      .subgroups = parts_.subgroups,
      .state = parts_.offload.state(),
      .gradient = [&gradients = parts_.gradients](
                      state::Subgroup const& subgroup) { return gradients.fetch(subgroup); },
      .target =
          [&copy = parts_.copy](state::Subgroup const& subgroup) { return copy.target(subgroup); },
      .device = parts_.lane,
      .held = parts_.held};
  if (parts_.lane != nullptr) {
    parts.resident = [&offload = parts_.offload](std::int64_t index) {
      return offload.resident(index);
    };
  }
  return parts;
}

template <class T>
bool StepUpdate<T>::can_begin_early() const noexcept {
  return parts_.lane == nullptr || parts_.lane->settings().buffers == 0 ||
         parts_.lane->any_own_buffers();
}

template <class T>
OverlapChoice StepUpdate<T>::make_overlap() const {
  // A rank whose subgroups all stay in host memory may have no spares, although other ranks gain by
  // theirs.
  bool const gains =
      comm_.maximum(parts_.offload.spares()) > 0 || config_.overlap == config::Switch::on;
  bool const possible = comm_.minimum(can_begin_early() ? 1 : 0) > 0;
  return {config_.overlap, gains && possible};
}

template <class T>
std::vector<update::Trip> StepUpdate<T>::next_trips(bool early) {
  // Order of the subgroups that are not resident: that of the gradients if the update waits for
  // each of them.
  auto const order = early ? parts_.offload.descending_order() : parts_.offload.next_order();
  auto trips = share_.trips(order, parts_.subgroups);
  // Resident subgroups are last, so that the link brings nothing for them while it takes the others
  // back (DOS section 4.1).
  for (state::Subgroup const& subgroup : parts_.subgroups) {
    if (subgroup.resident) {
      trips.push_back({.subgroup = subgroup.index, .on_device = true});
    }
  }
  return trips;
}

template <class T>
void StepUpdate<T>::plan(Stopwatch const& step) {
  finish();  // the update before may still read its gradients
  planned_ = step.elapsed();
  overlap_.update_ended(planned_);
  planned_early_ = comm_.broadcast_value(overlap_.next(), 0);
  share_.set_paths(parts_.offload.rates_of_rank());
  update_.plan(next_trips(planned_early_));
}

template <class T>
void StepUpdate<T>::begin_early(UpdateNumbers const& numbers) {
  require(planned_early_, "StepUpdate: an update that was planned to begin under backward");
  update_.begin_early(step_of(numbers, 1.0),
                      most_squares(config_.optimizer, numbers.gradient_scale));
}

template <class T>
ShareStep StepUpdate<T>::planned() const {
  return {.used = parts_.lane != nullptr,
          .share = share_.share(),
          .expected = share_.expected().total,
          .gradients_held = parts_.held != nullptr ? parts_.held->bytes() : 0};
}

template <class T>
ShareStep StepUpdate<T>::make(UpdateNumbers const& numbers, double clip, bool skipped) {
  bool const early = update_.is_early();
  bool const confirmed = early && !skipped && clip == 1.0;
  std::vector<tiers::Key> reverted;
  if (early && !confirmed) {
    reverted = update_.revert().subgroups;
  }
  ShareStep share;
  if (skipped) {
    rebuild_parameters(reverted);
    update_.readiness().finish();
  } else {
    share = planned();
    if (confirmed) {
      learn(update_.confirm());
    } else {
      parts_.gradients.begin_update();
      learn(update_.run(step_of(numbers, clip)));
    }
    parts_.offload.follow_rates();
  }
  share.overlapped = early;
  share.redone = early && !confirmed;
  return share;
}

template <class T>
void StepUpdate<T>::learn(update::UpdateStats const& stats) {
  if (stats.cpu_elements + stats.device_elements > 0) {
    share_.learn(stats);
  }
}

template <class T>
void StepUpdate<T>::ended(OverlapChoice::Step step) {
  step.seconds -= planned_;
  overlap_.ended(step);
}

template <class T>
void StepUpdate<T>::rebuild_parameters(std::span<tiers::Key const> subgroups) {
  for (tiers::Key const key : subgroups) {
    require(!config_.optimizer.split_parameter, "StepUpdate: split parameters are never on trial");
    state::Subgroup const& subgroup = parts_.subgroups[static_cast<std::size_t>(key)];
    auto const lease = parts_.offload.state().fetch(key);
    auto const* const parameter = reinterpret_cast<float const*>(lease.bytes().data());
    parts_.copy.fill(subgroup, {parameter, static_cast<std::size_t>(subgroup.size)});
  }
}

template <class T>
kernels::OptimizerStep StepUpdate<T>::step_of(UpdateNumbers const& numbers, double clip) const {
  return optimizer_step(config_.optimizer, numbers.learning_rate, numbers.optimizer_step,
                        clip * numbers.gradient_scale, config_.train.seed);
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, StepUpdate)

}  // namespace offstage::train
