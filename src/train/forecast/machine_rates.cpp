#include "train/forecast/machine_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/rate.hpp"
#include "base/units.hpp"
#include "config/known_rates.hpp"
#include "plan/resource.hpp"
#include "probe/measure.hpp"
#include "train/offload/offload.hpp"
#include "train/offload/storage.hpp"

namespace offstage::train {
namespace {

/// Difference of a rate from what was planned that is worth a line.
constexpr double tenth = 0.1;

}  // namespace

void measure_missing(config::RunConfig& config, mpi::Communicator const& comm,
                     device::Device& device, state::RankLink& link) {
  auto const measure = [&](double& rate, auto const& how) {
    double here = 0.0;
    mpi::agree(comm, [&] { here = how(); });
    rate = comm.minimum(here);
  };
  auto const known = config::known_rates(config);
  auto& rates = config.platform;
  auto const effort =
      config.host_memory > 0
          ? probe::within(probe::for_plans, config.host_memory / comm.split_by_node().size())
          : probe::for_plans;
  if (known.cpu_update <= 0.0) {
    measure(rates.cpu_update, [&] {
      return probe::measure_cpu_update(config.numerics.dtype, config.device.emulation, effort);
    });
  }
  if (config::known_compute(config) <= 0.0) {
    measure(config.platform_products, [&] {
      return probe::measure_product(device, config.numerics.dtype,
                                    {.rows = config.train.micro_batch * config.train.sequence,
                                     .in = config.model.hidden,
                                     .out = config.model.ffn_hidden},
                                    effort);
    });
  }
  if (!device.host_visible() && known.device_update <= 0.0) {
    measure(rates.device_update,
            [&] { return probe::measure_device_update(device, config.numerics.dtype, effort); });
  }
  if (!device.host_visible() && (known.host_to_device <= 0.0 || known.device_to_host <= 0.0)) {
    probe::LinkRates found;
    mpi::agree(comm, [&] { found = probe::measure_link(device, effort); });
    rates.host_to_device = comm.minimum(found.to_device);
    rates.device_to_host = comm.minimum(found.to_host);
    rates.host_to_device_both = comm.minimum(found.to_device_both);
    rates.device_to_host_both = comm.minimum(found.to_host_both);
  }
  if (link.size() > 1 && config.platform_passes.rank_link <= 0.0) {
    config.platform_passes.rank_link = probe::measure_rank_link(device, link, effort);
  }
  bool const stored = !std::ranges::all_of(config.paths, &tiers::PathSettings::rates_known);
  if (stored) {
    mpi::agree(comm, [&] { require_storage(config); });
    measure_paths(config, comm);
  }
}

plan::UpdateRates least_of(plan::UpdateRates rates, mpi::Communicator const& comm) {
  for (double* rate :
       {&rates.cpu_update, &rates.device_update, &rates.host_to_device, &rates.device_to_host,
        &rates.host_to_device_both, &rates.device_to_host_both}) {
    *rate = comm.minimum(*rate);
  }
  for (plan::PathRate& path : rates.paths) {
    path.read = comm.minimum(path.read);
    path.write = comm.minimum(path.write);
  }
  return rates;
}

std::vector<std::string> moved(plan::UpdateRates const& planned, plan::UpdateRates const& now,
                               std::vector<tiers::PathSettings> const& paths) {
  using Kind = plan::Resource::Kind;
  std::vector<std::string> all;
  auto const compare = [&](plan::Resource const& resource, double before, double after) {
    if (before > 0.0 && after > 0.0 && std::abs(after / before - 1.0) > tenth) {
      all.push_back(fmt::format("{} {:.0f} % {} than planned", name_of(resource, paths),
                                100.0 * std::abs(after / before - 1.0),
                                after < before ? "slower" : "faster"));
    }
  };
  compare({Kind::cpu_update}, planned.cpu_update, now.cpu_update);
  compare({Kind::device_update}, planned.device_update, now.device_update);
  // Updates use both directions.
  compare({Kind::to_device}, first_known(planned.host_to_device_both, planned.host_to_device),
          first_known(now.host_to_device_both, now.host_to_device));
  compare({Kind::to_host}, first_known(planned.device_to_host_both, planned.device_to_host),
          first_known(now.device_to_host_both, now.device_to_host));
  for (std::size_t i = 0; i < std::min(planned.paths.size(), now.paths.size()); ++i) {
    compare({Kind::path_reads, i}, planned.paths[i].read, now.paths[i].read);
    compare({Kind::path_writes, i}, planned.paths[i].write, now.paths[i].write);
  }
  return all;
}

void set_rates(config::RunConfig& config, plan::UpdateRates const& rates, int ranks_per_node) {
  auto const set = [](double& to, double rate) { to = rate > 0.0 ? rate : to; };
  set(config.platform.cpu_update, rates.cpu_update);
  set(config.platform.device_update, rates.device_update);
  set(config.platform.host_to_device, rates.host_to_device);
  set(config.platform.device_to_host, rates.device_to_host);
  set(config.platform.host_to_device_both, rates.host_to_device_both);
  set(config.platform.device_to_host_both, rates.device_to_host_both);
  for (std::size_t i = 0; i < std::min(config.paths.size(), rates.paths.size()); ++i) {
    set(config.paths[i].read_rate, ranks_per_node * rates.paths[i].read);
    set(config.paths[i].write_rate, ranks_per_node * rates.paths[i].write);
  }
}

}  // namespace offstage::train
