#pragma once

#include <cstdint>
#include <string>

#include "activations/policy.hpp"
#include "config/run_config.hpp"
#include "parameters/home.hpp"

namespace offstage::train {

/// Keys that plan.choose=on decides together. They are plain bytes, so that rank 0 can send them to
/// the others.
struct Chosen {
  parameters::Home home = parameters::Home::device;
  parameters::Sharding sharding = parameters::Sharding::zero3;
  config::LayerSchedule schedule = config::LayerSchedule::horizontal;
  activations::Policy activations{};
  /// Or automatic, with which a run does without overlap if it gains nothing.
  config::Switch overlap = config::Switch::off;
  double share{};
  double resident{};
  std::int64_t subgroup{};  ///< parameters of a subgroup; 0: as configured
  config::Switch split = config::Switch::automatic;

  [[nodiscard]] bool operator==(Chosen const&) const = default;
};

/// Writes the choice to the keys that are left to the plan. Keys that were given stay.
void take(config::RunConfig& config, Chosen const& chosen);

/// The choice in words: "parameters.home=host, train.schedule=vertical, ...". It has only keys that
/// `config` leaves to the plan, and parameters.sharding only if it is not zero3.
[[nodiscard]] std::string describe(Chosen const& chosen, config::RunConfig const& config);

/// Leaves these keys to the plan, as configs/policies/offstage.cfg does, but for those that were
/// given (RunConfig::settings).
void leave_to_plan(config::RunConfig& config);
/// Closes the keys that take() leaves open, with the values with which a run goes.
void keep(config::RunConfig& config);
/// Returns whether this key is left to the plan.
[[nodiscard]] bool leaves_home(config::RunConfig const& config);
[[nodiscard]] bool leaves_sharding(config::RunConfig const& config);
[[nodiscard]] bool leaves_schedule(config::RunConfig const& config);
[[nodiscard]] bool leaves_activations(config::RunConfig const& config);
[[nodiscard]] bool leaves_overlap(config::RunConfig const& config);
[[nodiscard]] bool leaves_share(config::RunConfig const& config);
[[nodiscard]] bool leaves_resident(config::RunConfig const& config);
[[nodiscard]] bool leaves_subgroup(config::RunConfig const& config);
[[nodiscard]] bool leaves_split(config::RunConfig const& config);

/// A value as its key takes it: "host", "zero2", "vertical", "off". Shares have two digits.
[[nodiscard]] std::string text_of(parameters::Home home);
[[nodiscard]] std::string text_of(parameters::Sharding sharding);
[[nodiscard]] std::string text_of(config::LayerSchedule schedule);
[[nodiscard]] std::string text_of(config::Switch value);
[[nodiscard]] std::string text_of(activations::Policy const& policy);
[[nodiscard]] std::string text_of(double share);

}  // namespace offstage::train
