#pragma once

#include <string>

#include "activations/choice.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/settle/activation_rates.hpp"

namespace offstage::train {

/// Where activations are to fit, with what else is there.
struct ActivationRoom {
  Bytes memory{};  ///< of the device; 0: no limit
  state::Route route = state::Route::in_place;
  Bytes link{};         ///< as of device_demand
  Bytes host_memory{};  ///< of a node; 0: not looked at
  int ranks_per_node = 1;
};

struct ActivationChoice {
  activations::Policy policy{};
  /// For people: by which rates, and what the others would take; empty where no rates were asked.
  std::string why{};
};

/// Whether a run whose `train` is settled has room: on the device of rank `rank`, and in host
/// memory if the room says how much there is.
template <class T>
[[nodiscard]] bool has_room(config::RunConfig const& config, state::ShardMap const& map, int rank,
                            ActivationRoom const& room);

/// Rates that settle_activations lacks: none unless train.activations=auto and `keep` does not fit;
/// those of storage only where something goes there.
template <class T>
[[nodiscard]] WantedRates wanted_rates(config::RunConfig const& config, state::ShardMap const& map,
                                       int rank, ActivationRoom const& room,
                                       ActivationRates const& given);

/// train.activations=auto settled, for rank `rank`: `keep` where the plan fits; else what takes
/// least time by the rule `paper` (activations::paper_choice) of what fits; where a rate that it
/// needs is not known, the first of `recompute` and the inputs alone off the device that fits.
/// Nothing fits: the last, for which the device has the words. What leaves goes to storage as far
/// as host memory has no room, where there are paths; where there are none, no more leaves than it
/// has room for. Any other value stays.
template <class T>
[[nodiscard]] ActivationChoice settle_activations(config::RunConfig const& config,
                                                  state::ShardMap const& map, int rank,
                                                  ActivationRoom const& room,
                                                  ActivationRates const& rates);

}  // namespace offstage::train
