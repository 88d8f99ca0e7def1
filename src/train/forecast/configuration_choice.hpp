#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "plan/simulation.hpp"
#include "state/shard.hpp"
#include "train/forecast/chosen.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// Another configuration than the chosen one, in words and seconds.
struct Alternative {
  std::string what;
  Seconds step{};
  bool at_least = false;  ///< the time is a bound; the configuration was not simulated
};

struct Choice {
  Chosen chosen;
  plan::Prediction step;
  /// The best configuration with another value of a key, for each such key.
  std::vector<Alternative> others;
  std::string left_out{};  ///< why parameters.home=node was not tried; empty: it was
  int tried = 0, fitting = 0, simulated = 0;
  bool cut_short = false;  ///< some of the others may be quicker: so many are not simulated
};

/// The choice and its reasons, in at most ten lines for the header. `tokens` is a step's.
[[nodiscard]] std::vector<std::string> describe(Choice const& choice,
                                                config::RunConfig const& config,
                                                std::int64_t tokens);

/// Keys of rates that are missing and without which no configuration can be chosen:
/// "platform.products".
[[nodiscard]] std::vector<std::string> rates_missing(config::RunConfig const& config,
                                                     bool host_visible);

/// The configuration of the quickest step among all values of the keys that are left to the plan:
/// parameters.home=auto, parameters.sharding=auto, train.schedule=auto, train.activations=auto,
/// update.overlap=auto, update.device-share=auto, update.device-resident=auto,
/// tiers.split-parameters=auto, and update.subgroup-size if it is not given. Pure; the same numbers
/// give the same choice.
///
/// Search:  first, values of home, sharding, schedule, activations and overlap that fit by the
///          memory plans of a run: without residents or with as few as host memory needs, with as
///          many as the device has room for, and with all. Values whose busiest resource alone
///          takes longer than the best step so far are left out (plan::least_time). The others are
///          simulated coarsely. From the best two of another home or schedule the search goes on
///          to neighbours, which differ in one key; smaller subgroups and split parameters are
///          among them. The best are simulated in all detail, and their best once more among its
///          neighbours. Whatever seems quicker then, by its bound or a coarse time, is simulated in
///          all detail too. Of equals the one that moves least wins.
/// Bounded: by a count of simulations, not by time.
/// Bits:    none of these keys changes any. train.micro-batch does, because products have other
///          shapes, and each micro-batch's gradient is rounded before it is added. So it is never
///          searched.
/// Errors:  UsageError: nothing fits; names the memory that the most frugal one lacks.
[[nodiscard]] Choice choose_configuration(config::RunConfig const& config,
                                          state::ShardMap const& map, Room const& room);
/// The first configuration that fits, chosen without rates: the one that moves least. Errors: as
/// choose_configuration.
[[nodiscard]] Chosen first_that_fits(config::RunConfig const& config, state::ShardMap const& map,
                                     Room const& room);

}  // namespace offstage::train
