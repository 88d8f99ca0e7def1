#pragma once

#include <string>

#include "activations/choice.hpp"
#include "base/dtype.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Rates of a rank while all ranks of its node do the same, and where they come from.
struct ActivationRates {
  activations::Rates rates;
  bool compute_measured = false, link_measured = false, storage_measured = false;
};

/// Rates that a choice needs and nobody gave.
struct WantedRates {
  bool compute = false, link = false, storage = false;
  [[nodiscard]] bool any() const { return compute || link || storage; }
};

/// Rates that device.emulate, platform.* and tiers.path give; 0: not given. Storage is that of all
/// paths that take extents (tiers.split), and counts where each of them is known.
[[nodiscard]] ActivationRates given_rates(config::RunConfig const& config, int ranks_per_node);

/// Measures what is wanted, on all ranks at once: products as wide as a block's on the device, its
/// link in both directions, and the paths that have no rates, one after the other. The least of all
/// ranks counts. Some tenths of a second for each.
/// Paths: their rates are written to `config`, so that nobody measures them again.
/// Memory: what it takes of host and device is given back.
/// Collective over `comm`; `ranks_per_node`: the same on all ranks. Errors: mpi::AgreedError.
void measure_rates(ActivationRates& rates, WantedRates const& wanted, config::RunConfig& config,
                   mpi::Communicator const& comm, int ranks_per_node, device::Device& device);

/// "products 10.0 GFLOP/s (given), link 40.0 MB/s to the device and 40.0 MB/s back (measured)";
/// storage where it is known.
[[nodiscard]] std::string describe(ActivationRates const& rates);

}  // namespace offstage::train
