#pragma once

#include <string>

#include "activations/choice.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"
#include "train/settle/activation_rates.hpp"

namespace offstage::train {

struct ActivationChoice {
  activations::Policy policy{};
  /// The reason in words: the rates, and the times of the other choices; empty if no rates were
  /// needed.
  std::string why{};
};

/// Returns whether a run whose `train` is settled has room on the device of the fullest rank,
/// beside attention's buffer, and in host memory if the room says how much there is.
[[nodiscard]] bool has_room(config::RunConfig const& config, state::ShardMap const& map,
                            Room const& room);

/// Rates that settle_activations lacks. There are none unless train.activations=auto and `keep`
/// does not fit. Rates of storage are wanted only if activations go there.
[[nodiscard]] WantedRates wanted_rates(config::RunConfig const& config, state::ShardMap const& map,
                                       Room const& room, ActivationRates const& given);

/// Settles train.activations=auto for the fullest rank. The choice is `keep` if the plan fits; else
/// the fastest one that fits by Fuyou's rule (activations::paper_choice). What is computed again is
/// no more than the device's idle memory has no room for. If a rate that the rule needs is not
/// known, it is the first that fits of computing so much again and of only the inputs leaving the
/// device. If nothing fits, it is the last of these, and the device reports the error. Activations
/// that leave go to storage as far as host memory has no room, if there are paths; without paths no
/// more leave than host memory has room for. Any other value of the key stays.
[[nodiscard]] ActivationChoice settle_activations(config::RunConfig const& config,
                                                  state::ShardMap const& map, Room const& room,
                                                  ActivationRates const& rates);

}  // namespace offstage::train
