#pragma once

#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "plan/share.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/rank_link.hpp"

namespace offstage::train {

/// Measures the rates that rates_missing names, and that of `link` if it has several ranks, on all
/// ranks at once, and writes them to `config`. The least of all ranks counts. Each takes some
/// tenths of a second. Host memory stays within a tiers.host-memory that is given; it and device
/// memory are given back. Collective. Errors: mpi::AgreedError.
void measure_missing(config::RunConfig& config, mpi::Communicator const& comm,
                     device::Device& device, state::RankLink& link);

/// The least of all ranks. Collective.
[[nodiscard]] plan::UpdateRates least_of(plan::UpdateRates rates, mpi::Communicator const& comm);

/// Sentences on rates that have changed by more than a tenth: "updates on the cores 12 % slower
/// than planned". Rates that are unknown in one of them are left out. `paths` name those of the
/// rates.
[[nodiscard]] std::vector<std::string> moved(plan::UpdateRates const& planned,
                                             plan::UpdateRates const& now,
                                             std::vector<tiers::PathSettings> const& paths);

/// Writes rates to `config` that a rank has measured while `ranks_per_node` ranks did the same.
void set_rates(config::RunConfig& config, plan::UpdateRates const& rates, int ranks_per_node);

}  // namespace offstage::train
