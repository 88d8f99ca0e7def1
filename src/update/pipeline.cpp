#include "update/pipeline.hpp"

#include <utility>

#include "base/error.hpp"
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

UpdateStats UpdatePipeline::run(kernels::AdamwStep const& step, std::span<Trip const> order,
                                GradientSource const& gradient, ParameterTargets const& targets) {
  start(step, order, gradient, targets);
  return finish();
}

void UpdatePipeline::start(kernels::AdamwStep const& step, std::span<Trip const> order,
                           GradientSource gradient, ParameterTargets targets) {
  require(under_way_ == nullptr, "UpdatePipeline: an update is under way; finish it first");
  require_every_index_once(order, subgroups_.size());
  tiers_.begin_pass();
  if (settings_.device != nullptr) {
    settings_.device->use_lent();
  }
  if (settings_.readiness != nullptr) {
    settings_.readiness->begin();
  }
  try {
    under_way_ = std::make_unique<Trips>(subgroups_, tiers_, settings_, step, order,
                                         std::move(gradient), std::move(targets));
  } catch (...) {
    if (settings_.readiness != nullptr) {
      settings_.readiness->fail(std::current_exception());
    }
    throw;
  }
  under_way_->serve();
}

UpdateStats UpdatePipeline::finish() {
  if (under_way_ == nullptr) {
    return {};
  }
  auto const ending = std::move(under_way_);
  return ending->finish();
}

}  // namespace offstage::update
