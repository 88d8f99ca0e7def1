#include "update/trips.hpp"

#include <algorithm>
#include <utility>

#include "base/at_end.hpp"
#include "base/error.hpp"
#include "base/team.hpp"
#include "base/watch.hpp"
#include "platform/trace/trace.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

Trips::Trips(UpdateParts const& parts, UpdateSettings const& settings, state::Readiness& readiness,
             Begin begin, std::unique_ptr<StepGate> gate, std::span<Trip const> order)
    : parts_{parts},
      settings_{settings},
      readiness_{readiness},
      begin_{begin},
      gate_{std::move(gate)},
      waits_for_norm_{waiting_for_norm()},
      team_{team_size()},
      queue_{placed(order), settings.workers, settings.transfers == plan::Transfers::blocking,
             gate_->confirmed() ? plan::TripOrder::any_reach : settings.workers},
      lane_{queue_.cpu_trips()},
      pacer_{settings.host_update_rate} {
  if (parts_.device != nullptr) {
    before_ = parts_.device->stats();
  }
  threads_.reserve(static_cast<std::size_t>(settings_.workers));
  for (int worker = 0; worker < settings_.workers; ++worker) {
    try {
      threads_.emplace_back("update-" + std::to_string(worker), [this, worker] { work(worker); });
    } catch (...) {  // no more threads are to be had: the others end, then the error goes on
      fail(std::current_exception());
    }
  }
  if (begin_ == Begin::under_backward) {
    try {
      server_.emplace("update", [this] { serve_alone(); });
    } catch (...) {
      lane_.refuse(std::current_exception());  // a worker whose gate was open waits there already
      fail(std::current_exception());
      gate_->cancel();
    }
  }
}

// What was sent for a trip that failed may still be on its way to the working copy.
Trips::~Trips() {
  abandon();
  if (parts_.device != nullptr && queue_.failed()) {
    parts_.device->settle();
  }
}

std::vector<bool> Trips::waiting_for_norm() const {
  std::vector<bool> waits(parts_.subgroups.size());
  for (state::Subgroup const& each : parts_.subgroups) {
    bool const has_spare = !is_resident(each.index) && parts_.state.has_spare(each.index);
    waits[static_cast<std::size_t>(each.index)] = !gate_->confirmed() && !has_spare;
  }
  return waits;
}

/// With the place of every trip as it will be: all on the CPU without a device, residents on it.
std::vector<Trip> Trips::placed(std::span<Trip const> order) const {
  std::vector<Trip> trips{order.begin(), order.end()};
  for (Trip& trip : trips) {
    trip.on_device = parts_.device != nullptr && (trip.on_device || is_resident(trip.subgroup));
  }
  return trips;
}

void Trips::work(int worker) noexcept {
  try {
    std::string const row = "worker " + std::to_string(worker);
    while (auto const trip = queue_.take()) {
      AtEnd const ended{[&] { queue_.end(*trip); }};
      state::Subgroup const& its = subgroup(trip->subgroup);
      trip->on_device ? make_on_device(its, row, trip->when) : make_on_cpu(its, row, trip->when);
    }
  } catch (...) {
    fail(std::current_exception());
  }
  std::scoped_lock const lock{mutex_};
  total_ = std::max(total_, watch_.elapsed());
}

void Trips::fail(std::exception_ptr error) noexcept {
  readiness_.fail(error);
  for (auto left = queue_.fail(std::move(error)); left > 0; --left) {
    lane_.leave();
  }
}

void Trips::abandon() noexcept {
  gate_->cancel();
  threads_.clear();
  server_.reset();
}

void Trips::complete(std::int64_t index, double squares) {
  if (!waits_for_norm_[static_cast<std::size_t>(index)]) {
    queue_.bring_forward(index);
  }
  gate_->complete(index, squares);
}

// Backward's order was that of gradients, which are all there now. In it the subgroup that forward
// needs first would be the last, and forward would wait for all that storage is behind with.
void Trips::confirm() {
  queue_.lowest_first();
  gate_->confirm();
}

void Trips::serve_alone() noexcept {
  try {
    set_team_size(team_);
  } catch (...) {
    fail(std::current_exception());
    gate_->cancel();
    set_team_size(1);  // whoever waits for the lane by now must not wait for ever
  }
  lane_.serve();
}

void Trips::serve() {
  lane_.serve();
  if (parts_.device != nullptr) {
    if (!parts_.device->any_own_buffers()) {
      queue_.wait_for_device();
    }
    parts_.device->leave_lent();
  }
}

UpdateStats Trips::finish() {
  threads_.clear();
  server_.reset();
  queue_.rethrow();
  UpdateStats stats{.total = total_,
                    .compute = compute_,
                    .cpu_elements = cpu_elements_,
                    .device_elements = device_elements_,
                    .tried = tried_,
                    .device = {}};
  if (parts_.device != nullptr) {
    stats.device = parts_.device->stats() - before_;
  }
  return stats;
}

// Every trip takes the gradient first, the state second and the target of its parameters third, one
// lease of each, from three pools: whoever has all lacks nothing but the compute lane or the
// streams, which need no lease, so that trips end and leases come free whatever the pools' sizes.
// In this order the gradient is read while the trip waits for a buffer of the state, of which there
// are few.
std::optional<Trips::Leases> Trips::fetch(state::Subgroup const& subgroup, bool resident,
                                          std::string const& row, trace::Clock::time_point dealt) {
  trace::Scope scope{settings_.trace, row, "fetch", subgroup.index};
  scope.since(dealt);
  if (begin_ == Begin::under_backward) {
    return fetch_ahead(subgroup, resident);
  }
  auto const step = gate_->pass(subgroup.index, Stake::final);
  if (!step) {
    return std::nullopt;
  }
  Leases leases;
  leases.step = *step;
  leases.gradient.emplace(parts_.gradient(subgroup));
  if (!resident) {
    leases.state.emplace(parts_.state.fetch(subgroup.index));
  }
  leases.target.emplace(parts_.target(subgroup));
  require_fit(subgroup, leases.gradient->view);
  return leases;
}

// Whoever waits at the gate has a lease of the state and nothing else, which neither backward nor
// the norm needs; from there on it is as above.
std::optional<Trips::Leases> Trips::fetch_ahead(state::Subgroup const& subgroup, bool resident) {
  if (gate_->cancelled()) {
    return std::nullopt;
  }
  Leases leases;
  bool on_trial = false;
  if (!resident) {
    auto state = gate_->confirmed() ? std::nullopt : parts_.state.fetch_on_trial(subgroup.index);
    on_trial = state.has_value();
    leases.state.emplace(on_trial ? *std::move(state) : parts_.state.fetch(subgroup.index));
  }
  auto const step = gate_->pass(subgroup.index, on_trial ? Stake::trial : Stake::final);
  if (!step) {
    return std::nullopt;
  }
  leases.step = *step;
  leases.gradient.emplace(parts_.gradient(subgroup));
  leases.target.emplace(parts_.target(subgroup));
  require_fit(subgroup, leases.gradient->view);
  std::scoped_lock const lock{mutex_};
  tried_ += on_trial && !gate_->confirmed() ? 1 : 0;
  return leases;
}

void Trips::make_on_cpu(state::Subgroup const& subgroup, std::string const& row,
                        trace::Clock::time_point dealt) {
  std::optional<Leases> leases;
  std::shared_ptr<device::Event> sent;
  {
    AtEnd const no_more{[this] { lane_.leave(); }};
    if (auto fetched = fetch(subgroup, false, row, dealt)) {
      leases.emplace(*std::move(fetched));
    } else {
      return;
    }
    require(leases->gradient->place == GradientPlace::host,
            "Trips: the CPU cannot read a gradient that is held on the device");
    trace::Scope const scope{settings_.trace, row, "update", subgroup.index};
    lane_.run([&] { sent = compute(subgroup, *leases); });
    leases->gradient.reset();
  }
  if (sent) {
    trace::Scope const scope{settings_.trace, row, "send", subgroup.index};
    Waiting const waiting{"new parameters to be sent", subgroup.index};
    sent->wait();
  }
  end(subgroup, *std::move(leases), row);
}

void Trips::make_on_device(state::Subgroup const& subgroup, std::string const& row,
                           trace::Clock::time_point dealt) {
  bool const resident = is_resident(subgroup.index);
  auto leases = fetch(subgroup, resident, row, dealt);
  if (!leases) {
    return;
  }
  {
    trace::Scope const scope{settings_.trace, row, "update", subgroup.index};
    kernels::GradientView const& gradient = leases->gradient->view;
    GradientPlace const place = leases->gradient->place;
    if (resident) {
      parts_.device->update_resident(subgroup, parts_.resident(subgroup.index), gradient,
                                     *leases->target, leases->step, place);
    } else {
      parts_.device->update(subgroup, leases->state->mutable_bytes(), gradient, *leases->target,
                            leases->step, place);
    }
    leases->gradient.reset();
  }
  {
    std::scoped_lock const lock{mutex_};
    device_elements_ += subgroup.size;
  }
  end(subgroup, *std::move(leases), row);
}

void Trips::end(state::Subgroup const& subgroup, Leases leases, std::string const& row) {
  if (leases.target->lease.is_held()) {
    trace::Scope const scope{settings_.trace, row, "flush parameters", subgroup.index};
    leases.target->lease.commit();
  }
  readiness_.done(subgroup.index);
  if (leases.state) {
    trace::Scope const scope{settings_.trace, row, "flush", subgroup.index};
    leases.state->commit();
  }
}

std::shared_ptr<device::Event> Trips::compute(state::Subgroup const& subgroup, Leases& leases) {
  trace::Scope const scope{settings_.trace, "update", "update", subgroup.index};
  StateLayout const& layout = settings_.layout;
  StateViews const views = state_views(layout, leases.state->mutable_bytes(), subgroup.size);
  kernels::GradientView const& gradient = leases.gradient->view;
  parameters::Target const& target = *leases.target;
  bool const staged = target.on_device && parts_.device != nullptr && parts_.device->stages();
  require(!staged || !splits_parameter(layout),
          "Trips: the working copy, which has the upper halves of parameters, is beyond a link");
  if (!staged) {
    compute_part({subgroup, {0, subgroup.size}, layout, views, gradient, target.view}, leases.step);
    return {};
  }
  DeviceLane& device = *parts_.device;
  std::shared_ptr<device::Event> sent;
  std::int64_t const chunk = device.settings().chunk;
  for (std::int64_t begin = 0; begin < subgroup.size; begin += chunk) {
    Range const range{begin, std::min(chunk, subgroup.size - begin)};
    auto const staging = device.staging(target.view, begin, range.count);
    compute_part(
        {subgroup, range, layout, part_of(layout, views, begin), part_of(gradient, range), staging},
        leases.step);
    sent = device.send();
    if (settings_.transfers == plan::Transfers::blocking) {
      sent->wait();
    }
  }
  return sent;
}

void Trips::compute_part(StepPart const& part, kernels::OptimizerStep const& step) {
  Stopwatch const kernel;
  pacer_.run(static_cast<double>(part.range.count), [&] { step_on_host(part, step); });
  compute_ += kernel.elapsed();
  cpu_elements_ += part.range.count;
}

}  // namespace offstage::update
