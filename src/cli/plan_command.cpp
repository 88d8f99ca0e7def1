#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>

#include "base/log.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "platform/memory/process_memory.hpp"
#include "train/forecast.hpp"
#include "train/memory_demand.hpp"

namespace offstage::cli {
namespace {

constexpr char const* usage_text =
    "Usage: offstage plan [--config FILE]... [--ranks N] [--ranks-per-node M] "
    "[--section.key=value]...\n"
    "\n"
    "Predicts what a run would take and how long its update phases would be, on N ranks (1), M of\n"
    "them on each node (all): memory per rank and tier, the share of the update that goes to the\n"
    "device, the split over storage paths, and the time per update of several policies. Takes the\n"
    "keys of train; data.train, run.dir and train.steps may be missing. No GPU, no MPI, nothing "
    "is\n"
    "measured: rates come from platform.* and from read= and write= of tiers.path, which offstage\n"
    "probe --output FILE writes. Each rank is planned to have a GPU of its own unless\n"
    "device.kind=host or device.emulate says otherwise.\n"
    "\n"
    "  offstage plan --config configs/models/dos-20b.cfg --config node.cfg --ranks 4";

void line(std::string const& name, std::string const& text) {
  log::info("{:<24}{}", name, text);
}

/// "6.74 B", three significant figures.
std::string count(double value) {
  for (auto const& [factor, unit] : {std::pair{1e9, "B"}, std::pair{1e6, "M"}, {1e3, "k"}}) {
    if (value >= factor) {
      double const scaled = value / factor;
      return fmt::format("{:.{}f} {}", scaled, scaled < 9.995 ? 2 : (scaled < 99.95 ? 1 : 0), unit);
    }
  }
  return fmt::format("{:.0f}", value);
}

void print_ranks(train::Forecast const& forecast, PlanOptions const& options) {
  line("model", fmt::format("{} parameters in {} blocks",
                            count(static_cast<double>(forecast.parameters)), forecast.layers));
  line("ranks", fmt::format("{} on {} node{}, {} parameters each", options.ranks, forecast.nodes,
                            forecast.nodes == 1 ? "" : "s",
                            count(static_cast<double>(forecast.shard_elements))));
  line("optimizer state", forecast.state);
  if (!forecast.attention.empty()) {
    line("attention", forecast.attention);
  }
  line("activations", forecast.activations);
  if (!forecast.link.empty()) {
    line("layers between ranks", forecast.link);
  }
}

void print_memory(train::Forecast const& forecast, PlanOptions const& options) {
  auto const& memory = forecast.memory;
  for (std::string const& row :
       train::memory_table(forecast.rows, {.device = options.config.device.memory,
                                          .host = forecast.host_limit / options.ranks_per_node})) {
    log::write_info(row);
  }
  if (!options.config.paths.empty()) {
    line("subgroups",
         fmt::format("{} of {} parameters per rank: {} buffers, {} cached{}", memory.subgroups,
                     count(static_cast<double>(memory.subgroup_elements)), memory.buffers,
                     memory.cached, memory.gradient_buffers > 0 ? "; gradients spill" : ""));
  }
  line("host memory, per node",
       fmt::format("{} of {}{}", format_bytes(memory.node_total), format_bytes(forecast.host_limit),
                   options.config.host_memory > 0
                       ? ""
                       : " (90 % of what this machine has free; for another one give "
                         "tiers.host-memory)"));
}

std::string rate_text(double rate) {
  return rate > 0.0 ? fmt::format("{:.2f} GB/s", rate / 1e9) : std::string{"?"};
}

void print_paths(train::Forecast const& forecast) {
  if (forecast.paths.empty()) {
    line("storage", "none; the state lives in host memory");
    return;
  }
  log::write_info("storage, per node");
  for (train::PathForecast const& path : forecast.paths) {
    line("  " + path.directory,
         fmt::format("{:.1f} % of what waits there, {} of state; read {}, write {}",
                     100.0 * path.weight, format_bytes(path.bytes), rate_text(path.rate.read),
                     rate_text(path.rate.write)));
  }
}

void print_update(std::string const& name, train::UpdateForecast const& policy) {
  if (!policy.problem.empty()) {
    log::info("  {:<20}{}", name, policy.problem);
    return;
  }
  auto const& times = policy.times;
  log::info("  {:<20}{:>7.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}",
            name, policy.share, policy.resident, times.cpu.count(), times.device.count(),
            times.host_to_device.count(), times.device_to_host.count(), times.host_memory.count(),
            times.storage.count(), times.total.count());
}

/// Why there is none, if so, is its problem.
train::UpdateForecast update_of(PolicyRow const& row, train::ForecastScope const& scope) {
  if (!row.config) {
    return {.problem = row.problem};
  }
  try {
    return train::forecast(*row.config, scope).update;
  } catch (UsageError const& error) {
    return {.problem = error.what()};
  }
}

void print_policies(train::Forecast const& forecast, PlanOptions const& options,
                    train::ForecastScope const& scope) {
  auto const& measured = options.config.platform_measured;
  log::info("an update, seconds each resource is busy and in all{}",
            measured.empty() ? "" : fmt::format("; rates measured {}", measured));
  log::info("  {:<20}{:>7}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}", "", "share", "resident", "cpu",
            "device", "to dev.", "to host", "memory", "storage", "total");
  print_update("this configuration", forecast.update);
  for (PolicyRow const& row : options.policies) {
    print_update(row.name, update_of(row, scope));
  }
}

void print_share(train::Forecast const& forecast, PlanOptions const& options) {
  bool const given = options.config.share.device_share.has_value();
  if (forecast.update.problem.empty()) {
    line("device share", fmt::format("{:.3f} ({})", forecast.update.share,
                                     given ? "update.device-share" : "the least time"));
  }
  if (forecast.stride) {
    double const k = *forecast.stride;
    line("equation 1 of DOS",
         std::isfinite(k)
             ? fmt::format("k = {:.2f} CPU updates per device update, a share of {:.3f}", k,
                           1.0 / (1.0 + k))
             : "k is infinite: the CPU keeps up with the link");
  }
}

void require_device_memory(train::Forecast const& forecast, PlanOptions const& options) {
  Bytes const limit = options.config.device.memory;
  if (limit > 0 && forecast.device.total() > limit) {
    Bytes const link = forecast.device.link;
    throw UsageError{fmt::format(
        "device.memory={} is too small: {} are needed; {}lower train.micro-batch, train.sequence, "
        "update.device-resident, update.device-chunk or update.device-gradients, set "
        "train.activations=host or parameters.home=host, or use more ranks",
        format_bytes(limit), format_bytes(forecast.device.total()),
        link > 0 ? fmt::format("raise it, set comm.backend=mpi (NCCL's buffers are {} of "
                               "that), ",
                               format_bytes(link))
                 : "")};
  }
}

}  // namespace

ExitCode plan_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(usage_text);
    return ExitCode::done;
  }
  auto const options = parse_plan_options(arguments);
  auto const free = static_cast<double>(memory::available_bytes());
  train::ForecastScope const scope{
      .ranks = options.ranks,
      .ranks_per_node = options.ranks_per_node,
      .host_memory = static_cast<Bytes>(train::auto_host_share * free)};
  auto const forecast = train::forecast(options.config, scope);
  print_ranks(forecast, options);
  print_memory(forecast, options);
  print_paths(forecast);
  print_policies(forecast, options, scope);
  print_share(forecast, options);
  if (!forecast.missing.empty()) {
    log::warning(
        "not known: {}; offstage probe --output FILE measures and writes {}, then add "
        "--config FILE",
        fmt::join(forecast.missing, ", "), forecast.missing.size() == 1 ? "it" : "them");
  }
  require_device_memory(forecast, options);
  return ExitCode::done;
}

}  // namespace offstage::cli
