#pragma once

#include <string>

#include "activations/choice.hpp"
#include "base/dtype.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Rates of a rank while all ranks of its node do the same, and their origin.
struct ActivationRates {
  activations::Rates rates;
  bool compute_measured = false, link_measured = false, storage_measured = false;
};

/// Rates that a choice needs and that were not given.
struct WantedRates {
  bool compute = false, link = false, storage = false;
  [[nodiscard]] bool any() const { return compute || link || storage; }
};

/// Known rates of device and link, and those of tiers.path; 0: not known. The rate of storage is
/// that of all paths that take extents (tiers.split). It counts as known if that of each path is.
[[nodiscard]] ActivationRates given_rates(config::RunConfig const& config, int ranks_per_node);

/// Measures the wanted rates, on all ranks at once: products as wide as a block's on the device,
/// its link in both directions, and the paths that have no rates, one after the other. The least of
/// all ranks counts. Each takes some tenths of a second.
/// Paths: their rates are written to `config`, so that they are not measured again.
/// Memory: host and device memory is given back. Collective over `comm`; `ranks_per_node`: the same
///        on all ranks. Errors: mpi::AgreedError.
void measure_rates(ActivationRates& rates, WantedRates const& wanted, config::RunConfig& config,
                   mpi::Communicator const& comm, int ranks_per_node, device::Device& device);

/// The rates in words: "products 10.0 GFLOP/s (given), link 40.0 MB/s to the device and 40.0 MB/s
/// back (measured)", and storage if its rate is known.
[[nodiscard]] std::string describe(ActivationRates const& rates);

}  // namespace offstage::train
