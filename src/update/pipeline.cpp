#include "update/pipeline.hpp"

#include <algorithm>
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
            "UpdatePipeline: the order names a subgroup that there is not, or one twice");
    seen[static_cast<std::size_t>(trip.subgroup)] = true;
  }
  require(order.size() == count, "UpdatePipeline: the order leaves a subgroup out");
}

}  // namespace

UpdatePipeline::UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                               PipelineSettings settings)
    : subgroups_{subgroups}, tiers_{tiers}, settings_{std::move(settings)} {
  require(settings_.workers >= 1, "UpdatePipeline: at least one worker is needed");
  require(!settings_.resident || settings_.device != nullptr,
          "UpdatePipeline: residents need a device");
}

UpdatePipeline::~UpdatePipeline() = default;

UpdateStats UpdatePipeline::run(kernels::OptimizerStep const& step, std::span<Trip const> order,
                                GradientSource const& gradient,
                                parameters::Targets const& targets) {
  start(step, order, gradient, targets);
  return finish();
}

void UpdatePipeline::begin(std::span<Trip const> order) {
  require(under_way_ == nullptr, "UpdatePipeline: an update is under way; finish it first");
  require_every_index_once(order, subgroups_.size());
  tiers_.begin_pass();
}

void UpdatePipeline::start_trips(Begin when, kernels::OptimizerStep const& step,
                                 std::span<Trip const> order, GradientSource gradient,
                                 parameters::Targets targets) {
  if (settings_.readiness != nullptr) {
    settings_.readiness->begin();
  }
  try {
    under_way_ = std::make_unique<Trips>(subgroups_, tiers_, settings_, when,
                                         std::make_unique<StepGate>(step), order,
                                         std::move(gradient), std::move(targets));
  } catch (...) {
    if (settings_.readiness != nullptr) {
      settings_.readiness->fail(std::current_exception());
    }
    throw;
  }
}

void UpdatePipeline::start(kernels::OptimizerStep const& step, std::span<Trip const> order,
                           GradientSource gradient, parameters::Targets targets) {
  begin(order);
  if (settings_.device != nullptr) {
    settings_.device->use_lent();
  }
  start_trips(Begin::after_backward, step, order, std::move(gradient), std::move(targets));
  under_way_->serve();
}

void UpdatePipeline::start_under_forward(kernels::OptimizerStep const& step,
                                         std::span<Trip const> order, GradientSource gradient,
                                         parameters::Targets targets) {
  begin(order);
  std::vector<Trip> lowest_first{order.begin(), order.end()};
  std::ranges::sort(lowest_first, {}, &Trip::subgroup);
  start_trips(Begin::under_backward, step, lowest_first, std::move(gradient), std::move(targets));
}

void UpdatePipeline::start_ahead(kernels::OptimizerStep const& presumed, double most_squares,
                                 std::span<Trip const> order, GradientSource gradient,
                                 parameters::Targets targets) {
  begin(order);
  if (settings_.device != nullptr) {
    require(settings_.device->settings().slots == 0 || settings_.device->any_own_slots(),
            "UpdatePipeline: under backward activations' memory cannot be lent");
    settings_.device->leave_lent();
  }
  under_way_ = std::make_unique<Trips>(
      subgroups_, tiers_, settings_, Begin::under_backward,
      std::make_unique<StepGate>(std::ssize(subgroups_), presumed, most_squares), order,
      std::move(gradient), std::move(targets));
  ahead_ = true;
}

void UpdatePipeline::complete(std::int64_t subgroup, double squares) {
  require(ahead_, "UpdatePipeline: no update goes on under backward");
  if (settings_.readiness != nullptr) {
    settings_.readiness->expect(subgroup);
  }
  under_way_->complete(subgroup, squares);
}

void UpdatePipeline::confirm() {
  require(ahead_, "UpdatePipeline: no update goes on under backward");
  ahead_ = false;
  was_ahead_ = true;
  under_way_->confirm();
  tiers_.accept_trials();
}

UpdatePipeline::TakenBack UpdatePipeline::take_back() {
  require(ahead_, "UpdatePipeline: no update goes on under backward");
  ahead_ = false;
  under_way_->gate().cancel();
  TakenBack taken{.stats = finish(), .reverted = {}};
  taken.reverted = tiers_.revert_trials();
  return taken;
}

void UpdatePipeline::abandon() noexcept {
  if (under_way_) {
    under_way_->abandon();
  }
}

UpdateStats UpdatePipeline::finish() {
  require(!ahead_, "UpdatePipeline: confirm or take_back comes first");
  if (under_way_ == nullptr) {
    return {};
  }
  auto const ending = std::move(under_way_);
  auto const stats = ending->finish();
  if (std::exchange(was_ahead_, false)) {
    tiers_.accept_trials();  // also of those that began while it was confirmed
  }
  return stats;
}

}  // namespace offstage::update
