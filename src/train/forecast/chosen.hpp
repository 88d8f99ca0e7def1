#pragma once

#include <string>

#include "activations/policy.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "parameters/home.hpp"

namespace offstage::train {

/// Keys that plan.choose=on decides together. Plain bytes: rank 0 can tell the others.
struct Chosen {
  parameters::Home home = parameters::Home::device;
  parameters::Sharding sharding = parameters::Sharding::zero3;
  config::LayerSchedule schedule = config::LayerSchedule::horizontal;
  activations::Policy activations{};
  config::Overlap overlap =
      config::Overlap::off;  ///< or automatic, which a run leaves where it gains nothing
  double share{};
  double resident{};
  Bytes cache = -1;
};

/// Writes what was chosen to the keys that are left to the plan; those that were given stay.
void take(config::RunConfig& config, Chosen const& chosen);

/// "parameters.home=host, train.schedule=vertical, ..."; keys that `config` leaves to the plan alone,
/// parameters.sharding where it is not zero3.
[[nodiscard]] std::string describe(Chosen const& chosen, config::RunConfig const& config);

/// Whether a key of them is left to the plan.
[[nodiscard]] bool leaves_home(config::RunConfig const& config);
[[nodiscard]] bool leaves_sharding(config::RunConfig const& config);
[[nodiscard]] bool leaves_schedule(config::RunConfig const& config);
[[nodiscard]] bool leaves_activations(config::RunConfig const& config);
[[nodiscard]] bool leaves_overlap(config::RunConfig const& config);
[[nodiscard]] bool leaves_share(config::RunConfig const& config);
[[nodiscard]] bool leaves_resident(config::RunConfig const& config);

/// A value as its key takes it: "host", "zero2", "vertical", "off". Shares with two digits.
[[nodiscard]] std::string text_of(parameters::Home home);
[[nodiscard]] std::string text_of(parameters::Sharding sharding);
[[nodiscard]] std::string text_of(config::LayerSchedule schedule);
[[nodiscard]] std::string text_of(config::Overlap overlap);
[[nodiscard]] std::string text_of(activations::Policy const& policy);
[[nodiscard]] std::string text_of(double share);

}  // namespace offstage::train
