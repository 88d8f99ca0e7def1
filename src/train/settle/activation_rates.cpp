#include "train/settle/activation_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/rate.hpp"
#include "config/known_rates.hpp"
#include "plan/split.hpp"
#include "probe/measure.hpp"
#include "train/offload/offload.hpp"
#include "train/offload/storage.hpp"

namespace offstage::train {
namespace {

/// Rates of the paths that take extents.
plan::PathRate storage_of(config::RunConfig const& config, int ranks_per_node) {
  plan::PathRate all{.full_duplex = true};
  for (std::size_t i = 0; i < config.paths.size(); ++i) {
    tiers::PathSettings const& path = config.paths[i];
    if (!plan::takes_extents(config.storage.split, i)) {
      continue;
    }
    if (!path.rates_known()) {
      return {};
    }
    all.read += path.read_rate / ranks_per_node;
    all.write += path.write_rate / ranks_per_node;
    all.full_duplex = all.full_duplex && path.duplex == tiers::Duplex::full;
  }
  return all;
}

/// A rate in three significant figures: "40.0 M".
std::string scaled(double rate) {
  constexpr std::array<std::string_view, 5> prefixes{"", "k", "M", "G", "T"};
  std::size_t prefix = 0;
  for (; rate >= 999.5 && prefix + 1 < prefixes.size(); ++prefix) {
    rate /= 1000.0;
  }
  int const decimals = rate < 9.995 ? 2 : (rate < 99.95 ? 1 : 0);
  return fmt::format("{:.{}f} {}", rate, decimals, prefixes[prefix]);
}

char const* origin(bool measured) {
  return measured ? "measured" : "given";
}

}  // namespace

ActivationRates given_rates(config::RunConfig const& config, int ranks_per_node) {
  auto const known = config::known_rates(config);
  return {.rates = {.compute = config::known_compute(config),
                    .host_to_device = first_known(known.host_to_device_both, known.host_to_device),
                    .device_to_host = first_known(known.device_to_host_both, known.device_to_host),
                    .storage = storage_of(config, ranks_per_node)}};
}

void measure_rates(ActivationRates& rates, WantedRates const& wanted, config::RunConfig& config,
                   mpi::Communicator const& comm, int ranks_per_node, device::Device& device) {
  auto& known = rates.rates;
  if (wanted.compute) {
    double here = 0.0;
    mpi::agree(comm, [&] {
      here = probe::measure_product(device, config.numerics.dtype,
                                    {.rows = config.train.micro_batch * config.train.sequence,
                                     .in = config.model.hidden,
                                     .out = config.model.ffn_hidden},
                                    probe::for_plans);
    });
    known.compute = comm.minimum(here);
    rates.compute_measured = true;
  }
  if (wanted.link) {
    probe::LinkRates here;
    mpi::agree(comm, [&] { here = probe::measure_link_both(device, probe::for_plans); });
    known.host_to_device = comm.minimum(here.to_device_both);
    known.device_to_host = comm.minimum(here.to_host_both);
    rates.link_measured = true;
  }
  if (wanted.storage) {
    mpi::agree(comm, [&] { require_storage(config); });
    measure_paths(config, comm);
    known.storage = storage_of(config, ranks_per_node);
    rates.storage_measured = true;
  }
}

std::string describe(ActivationRates const& rates) {
  auto const& known = rates.rates;
  std::string text = fmt::format(
      "products {}FLOP/s ({}), link {}B/s to the device and {}B/s back ({})", scaled(known.compute),
      origin(rates.compute_measured), scaled(known.host_to_device), scaled(known.device_to_host),
      origin(rates.link_measured));
  if (known.storage.read > 0.0) {
    text += fmt::format(", storage {}B/s read and {}B/s written ({})", scaled(known.storage.read),
                        scaled(known.storage.write), origin(rates.storage_measured));
  }
  return text;
}

}  // namespace offstage::train
