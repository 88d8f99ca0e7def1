#pragma once

#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "plan/share.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Rates of the machine that rates_missing names, measured on all ranks at once and written to
/// `config`; the least of all ranks counts. Some tenths of a second for each.
/// Memory: what it takes of host and device is given back.
/// Collective. Errors: mpi::AgreedError.
void measure_missing(config::RunConfig& config, mpi::Communicator const& comm,
                     device::Device& device);

/// The least of all ranks. Collective.
[[nodiscard]] plan::UpdateRates least_of(plan::UpdateRates rates, mpi::Communicator const& comm);

/// Rates that have moved by more than a tenth: "updates on the cores 12 % slower than planned". Rates that
/// one of them does not know have not.
[[nodiscard]] std::vector<std::string> moved(plan::UpdateRates const& planned,
                                             plan::UpdateRates const& now);

/// `config` with rates that a rank has measured, while `ranks_per_node` did the same.
void set_rates(config::RunConfig& config, plan::UpdateRates const& rates, int ranks_per_node);

}  // namespace offstage::train
