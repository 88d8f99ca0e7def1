#include "update/update.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.hpp"
#include "update/step_gate.hpp"
#include "update/trips.hpp"

namespace offstage::update {
namespace {

void require_every_index_once(std::span<Trip const> order, std::size_t count) {
  std::vector<bool> seen(count);
  for (Trip const& trip : order) {
    bool const known = trip.subgroup >= 0 && static_cast<std::size_t>(trip.subgroup) < count;
    require(known && !seen[static_cast<std::size_t>(trip.subgroup)],
            "Update: the order names a subgroup that there is not, or one twice");
    seen[static_cast<std::size_t>(trip.subgroup)] = true;
  }
  require(order.size() == count, "Update: the order leaves a subgroup out");
}

}  // namespace

Update::Update(UpdateParts parts, UpdateSettings const& settings)
    : parts_{std::move(parts)}, settings_{settings}, readiness_{parts_.subgroups} {
  require(settings_.workers >= 1, "Update: at least one worker is needed");
  require(!parts_.resident || parts_.device != nullptr, "Update: residents need a device");
}

Update::~Update() = default;

void Update::plan(std::vector<Trip> trips) {
  require(under_way_ == nullptr, "Update: an update is under way; finish it first");
  require_every_index_once(trips, parts_.subgroups.size());
  trips_ = std::move(trips);
  was_reverted_ = false;
  if (parts_.held != nullptr) {
    hold_gradients();
  }
}

void Update::hold_gradients() {
  std::vector<std::int64_t> wanted;  // residents first: they will be there in every step
  std::vector<std::int64_t> others;
  for (bool const resident : {true, false}) {
    for (Trip const& trip : trips_) {
      bool const is_resident = parts_.subgroups[static_cast<std::size_t>(trip.subgroup)].resident;
      if (trip.on_device && is_resident == resident) {
        wanted.push_back(trip.subgroup);
      }
    }
  }
  for (Trip const& trip : trips_) {
    if (settings_.sums_on_device && !trip.on_device) {
      others.push_back(trip.subgroup);
    }
  }
  if (settings_.sums_on_device) {  // those that cannot stay may have a place in turn
    others.insert(others.end(), wanted.begin(), wanted.end());
  }
  parts_.held->hold(wanted, others);
}

void Update::begin_pass() {
  require(under_way_ == nullptr, "Update: an update is under way; finish it first");
  require(trips_.size() == parts_.subgroups.size(), "Update: plan comes first");
  parts_.state.begin_pass();
}

void Update::start_trips(Begin when, kernels::OptimizerStep const& step,
                         std::span<Trip const> order) {
  readiness_.begin();
  try {
    under_way_ = std::make_unique<Trips>(parts_, settings_, readiness_, when,
                                         std::make_unique<StepGate>(step), order);
  } catch (...) {
    readiness_.fail(std::current_exception());
    throw;
  }
}

UpdateStats Update::run(kernels::OptimizerStep const& step) {
  bool const blocks = settings_.transfers == plan::Transfers::blocking;
  begin_pass();
  auto trips = std::exchange(trips_, {});
  if (std::exchange(was_reverted_, false)) {
    std::ranges::sort(trips, {}, &Trip::subgroup);
    start_trips(Begin::under_backward, step, trips);
    return blocks ? finish() : UpdateStats{};
  }
  if (parts_.device != nullptr) {
    parts_.device->use_lent();
  }
  start_trips(Begin::after_backward, step, trips);
  under_way_->serve();
  return blocks || parts_.device == nullptr ? finish() : UpdateStats{};
}

void Update::begin_early(kernels::OptimizerStep const& presumed, double most_squares) {
  begin_pass();
  if (parts_.device != nullptr) {
    require(parts_.device->settings().buffers == 0 || parts_.device->any_own_buffers(),
            "Update: under backward activations' memory cannot be lent");
    parts_.device->leave_lent();
  }
  under_way_ = std::make_unique<Trips>(
      parts_, settings_, readiness_, Begin::under_backward,
      std::make_unique<StepGate>(std::ssize(parts_.subgroups), presumed, most_squares), trips_);
  early_ = true;
}

void Update::complete(tiers::Key subgroup, double squares) {
  if (early_) {
    readiness_.expect(subgroup);
    under_way_->complete(subgroup, squares);
  }
}

UpdateStats Update::confirm() {
  require(early_, "Update: no update goes on under backward");
  early_ = false;
  was_early_ = true;
  trips_.clear();
  under_way_->confirm();
  parts_.state.accept_trials();
  return settings_.transfers == plan::Transfers::blocking ? finish() : UpdateStats{};
}

Update::Reverted Update::revert() {
  require(early_, "Update: no update goes on under backward");
  early_ = false;
  was_reverted_ = true;
  under_way_->cancel();
  Reverted taken{.stats = finish(), .subgroups = {}};
  taken.subgroups = parts_.state.revert_trials();
  return taken;
}

void Update::abandon() noexcept {
  if (under_way_) {
    under_way_->abandon();
  }
}

UpdateStats Update::finish() {
  require(!early_, "Update: confirm or revert comes first");
  if (under_way_ == nullptr) {
    return {};
  }
  auto const ending = std::move(under_way_);
  auto const stats = ending->finish();
  if (std::exchange(was_early_, false)) {
    parts_.state.accept_trials();  // also of those that began while it was confirmed
  }
  return stats;
}

}  // namespace offstage::update
