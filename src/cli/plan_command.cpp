#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/rate.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/plan_answers.hpp"
#include "cli/plan_record.hpp"
#include "platform/memory/process_memory.hpp"
#include "platform/memory/shared_file.hpp"
#include "train/forecast/forecast.hpp"
#include "train/forecast/remedies.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/report/wear.hpp"

namespace offstage::cli {
namespace {

constexpr char const* plan_usage =
    R"(Usage: offstage plan [--config FILE]... [--ranks N] [--ranks-per-node M]
                     [--max model|batch|sequence] [--json] [--section.key=value]...

Predicts a run: whether it fits, how long a step takes, what bounds it, and what would help.
Tells memory per rank and tier, the share of the update that goes to the device, and the split
over storage paths. Nothing is measured, and no GPU, MPI or data is needed.
  --ranks N           ranks of the run [1]
  --ranks-per-node M  ranks of each node [all]
  --max model|batch|sequence  says the most blocks, sequences of a micro-batch or tokens of a
                      sequence that fit
  --json              the answers as a line of JSON

Takes the keys of train; data.train, run.dir and train.steps may be missing. Rates come from
platform.*, from read= and write= of tiers.path, and from device.emulate; offstage probe --output
FILE writes them. A rank is planned to have a GPU of its own unless device.kind=host or
device.emulate says otherwise.
The rows below the first are what a run would do if a file of configs/policies had the last
word. The row offstage keeps all keys that are given.

  offstage plan --config configs/models/dos-20b.cfg --config node.cfg --ranks 4)";

void print_ranks(train::Forecast const& forecast, PlanOptions const& options) {
  print_line("model",
             fmt::format("{} parameters in {} blocks",
                         in_short(static_cast<double>(forecast.parameters)), forecast.layers));
  print_line("ranks", fmt::format("{} on {} node{}, {} parameters each", options.ranks,
                                  forecast.nodes, forecast.nodes == 1 ? "" : "s",
                                  in_short(static_cast<double>(forecast.shard_elements))));
  print_line("a step", forecast.batch);
  print_line("optimizer state", forecast.state);
  if (!forecast.attention.empty()) {
    print_line("attention", forecast.attention);
  }
  print_line("activations", forecast.activations);
  if (!forecast.activations_why.empty()) {
    print_line("  auto", forecast.activations_why);
  }
  if (!forecast.link.empty()) {
    print_line("layers between ranks", forecast.link);
  }
  if (double const rate = options.config.platform_passes.rank_link;
      forecast.nodes > 1 && rate > 0.0) {
    print_line("  rate",
               fmt::format("{} (platform.rank-link), between the {} nodes too; give what a "
                           "rank reaches there, if that is less",
                           format_rate(rate), forecast.nodes));
  }
  if (!forecast.sums.empty()) {
    print_line("  summed", forecast.sums);
  }
  if (!forecast.gathers.empty()) {
    print_line("  gathered", forecast.gathers);
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
    print_line(
        "subgroups",
        fmt::format("{} of {} parameters per rank: {} buffers, {} cached{}", memory.subgroups,
                    in_short(static_cast<double>(memory.subgroup_elements)), memory.buffers,
                    memory.cached,
                    forecast.config.flushes_fp32() ? "; gradients are flushed in FP32"
                    : memory.gradient_buffers > 0  ? "; gradients spill"
                                                   : ""));
  }
  print_line("host memory, per node",
             fmt::format("{} of {}, libraries some {}{}", format_bytes(memory.node_total),
                         format_bytes(forecast.host_limit),
                         format_bytes(options.ranks_per_node * train::usual_library_bytes),
                         options.config.host_memory > 0
                             ? ""
                             : " (90 % of what this machine has free; for another one give "
                               "tiers.host-memory)"));
}

std::string rate_text(double rate) {
  return rate > 0.0 ? format_rate(rate) : std::string{"?"};
}

void print_paths(train::Forecast const& forecast) {
  if (forecast.paths.empty()) {
    print_line("storage", "none; the state lives in host memory");
    return;
  }
  log::write_info("storage, per node");
  char const* const waits = forecast.config.parameter_home == parameters::Home::storage
                                ? "state and parameters"
                                : "state";
  for (train::PathForecast const& path : forecast.paths) {
    auto const part = path.weighed
                          ? fmt::format("{:.1f} % of what waits there, {} of {}",
                                        100.0 * path.weight, format_bytes(path.bytes), waits)
                          : fmt::format("its part of {} depends on rates that are missing", waits);
    print_line(fmt::format("  {} ", path.directory),
               fmt::format("{}; read {}, write {}", part, rate_text(path.rate.read),
                           rate_text(path.rate.write)));
    if (path.written > 0 && forecast.compute_known) {
      print_line("", train::wear_in_words(path.written, forecast.step.step, path.endurance));
    }
  }
}

/// Prints one row of the table. `problem` says why there are no times; empty if there are.
void print_row(std::string const& name, train::Forecast const& forecast,
               std::string const& problem) {
  if (!problem.empty()) {
    log::info("  {:<20}{}", name, problem);
    return;
  }
  auto const& step = forecast.step;
  // Long times have no digits behind the point, so that the columns stay apart.
  auto const text = [](double value, int digits) {
    return fmt::format("{:.{}f}", value, value < 9999.0 ? digits : 0);
  };
  auto const known = [&](double value, int digits) {
    return forecast.compute_known ? text(value, digits) : std::string{"?"};
  };
  log::info(
      "  {:<20}{:>7.3f}{:>9.3f}{:>9}{:>9}{:>9}{:>9}{:>10}  {}", name, forecast.update.share,
      forecast.update.resident, known(step.forward.count(), 3), known(step.backward.count(), 3),
      text(step.update.count(), 3), known(step.step.count(), 3),
      known(static_cast<double>(forecast.tokens) / step.step.count(), 0),
      forecast.compute_known && !step.uses.empty() ? train::use_of(step.uses.front(), forecast)
                                                   : "?");
}

void print_steps(train::Forecast const& forecast, PlanOptions const& options,
                 train::ForecastScope const& scope) {
  auto const& measured = options.config.platform_measured;
  log::info("a step, in seconds, and the resource that is busiest in it{}",
            measured.empty() ? "" : fmt::format("; rates measured {}", measured));
  log::info("  {:<20}{:>7}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}  {}", "", "share", "resident", "forward",
            "backward", "update", "step", "tokens/s", "busiest");
  print_row("this configuration", forecast, forecast.update.problem);
  auto const rows = forecast_rows(options.policies, scope, &forecast);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PolicyRow const& row = options.policies[i];
    bool const is_same =
        !rows[i].problem.empty() || train::have_same_bits(rows[i].forecast, forecast);
    print_row(row.name + (is_same ? "" : ", other bits"), rows[i].forecast, rows[i].problem);
  }
}

void print_share(train::Forecast const& forecast, PlanOptions const& options) {
  bool const given = options.config.share.device_share.has_value();
  if (forecast.update.problem.empty()) {
    print_line("device share", fmt::format("{:.3f} ({})", forecast.update.share,
                                           given ? "update.device-share" : "the least time"));
  }
  if (forecast.stride) {
    double const k = *forecast.stride;
    print_line("equation 1 of DOS",
               std::isfinite(k)
                   ? fmt::format("k = {:.2f} CPU updates per device update, a share of {:.3f}", k,
                                 1.0 / (1.0 + k))
                   : "k is infinite: the CPU keeps up with the link");
  }
}

void print_all(train::Forecast const& forecast, Seconds taken, PlanOptions const& options,
               train::ForecastScope const& scope) {
  print_ranks(forecast, options);
  print_memory(forecast, options);
  print_paths(forecast);
  print_steps(forecast, options, scope);
  for (std::string const& why : forecast.chosen) {
    log::write_info(why);
  }
  if (!forecast.chosen.empty()) {
    log::info("  chosen in {:.2f} s", taken.count());
  }
  print_answers(forecast, "", options, scope);
  print_share(forecast, options);
}

}  // namespace

ExitCode plan_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(plan_usage);
    return ExitCode::done;
  }
  auto const options = parse_plan_options(arguments);
  auto const free = static_cast<double>(memory::available_bytes());
  train::ForecastScope const scope{.ranks = options.ranks,
                                   .ranks_per_node = options.ranks_per_node,
                                   .host_memory = static_cast<Bytes>(train::auto_host_part * free),
                                   .shared_memory = memory::SharedFile::room()};
  if (options.largest != Largest::none) {
    print_largest(options, scope);
    return ExitCode::done;
  }
  std::optional<train::Forecast> found;
  Stopwatch const watch;
  try {
    found = train::forecast(options.config, scope);
  } catch (UsageError const& error) {
    std::string const why = error.what();
    if (options.as_json) {
      log::write_lines(plan_record(found, why, options, scope));
    } else {
      print_answers(found, why, options, scope);
    }
    throw;
  }
  train::Forecast const& forecast = *found;
  Seconds const taken = watch.elapsed();
  if (options.as_json) {
    log::write_lines(plan_record(found, "", options, scope));
  } else {
    print_all(forecast, taken, options, scope);
  }
  if (!forecast.missing.empty()) {
    log::warning(
        "not known: {}; offstage probe --output FILE measures and writes {}, then add "
        "--config FILE",
        fmt::join(forecast.missing, ", "), forecast.missing.size() == 1 ? "it" : "them");
  }
  for (auto const& warning : {forecast.idle_ranks, forecast.node_home}) {
    if (!warning.empty()) {
      log::warning("{}", warning);
    }
  }
  train::require_room(forecast.device, options.config, options.config.device.memory);
  return ExitCode::done;
}

}  // namespace offstage::cli
