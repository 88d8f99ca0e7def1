#include "train/run/plan_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "base/log.hpp"
#include "config/split_parameters.hpp"
#include "train/forecast/configuration_choice.hpp"
#include "train/forecast/machine_rates.hpp"
#include "train/forecast/step_forecast.hpp"

namespace offstage::train {
namespace {

/// Steps after a start before measured rates are compared with planned ones, and between later
/// looks.
constexpr std::int64_t first_look = 8;
constexpr std::int64_t next_look = 32;
/// Another configuration is worth a new start if steps become shorter by this factor, and the rest
/// of the run shorter by so many times the time of a start.
constexpr double worthwhile_gain = 1.05;
constexpr double worthwhile_starts = 4.0;

}  // namespace

template <class T>
std::vector<std::string> PlanChoice<T>::choose(device::Device& device, state::RankLink& link,
                                               state::ShardMap const& map, Room const& room) {
  measure_missing(config_, comm_, device, link);
  room_ = room;
  Choice choice;
  std::vector<std::string> why;
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      choice = choose_configuration(config_, map, room);
      why = describe(choice, config_, config_.train.global_batch * config_.train.sequence);
    }
  });
  // Clocks and memory of ranks differ, so one rank decides.
  auto const chosen = comm_.broadcast_value(choice.chosen, 0);
  planned_rates_ =
      machine_of(config_, {.map = map, .room = room, .memory = {}, .device = {}}).rates;
  take(config_, chosen);
  mpi::agree(comm_, [&] { config::settle_split_parameters(config_); });
  return why;
}

void go_on_from_newest(config::CheckpointConfig& checkpoint) {
  if (checkpoint.resume != "auto") {
    checkpoint.first_resume = checkpoint.resume;
  }
  checkpoint.resume = "auto";
}

template <class T>
std::optional<config::RunConfig> PlanChoice<T>::look_at_rates(RunProgress const& progress,
                                                              StepRunner<T> const& runner) {
  std::int64_t const steps = progress.steps;
  bool const due = steps == first_look || (steps > first_look && steps % next_look == 0);
  if (!due || progress.step >= config_.train.steps) {
    return std::nullopt;
  }
  auto const now = least_of(runner.rates(), comm_);
  auto what = moved(planned_rates_, now, config_.paths);
  double const clipped = static_cast<double>(progress.clipped) / static_cast<double>(steps);
  if (std::abs(clipped - config_.plan.clip_rate) > 0.1) {
    what.push_back(fmt::format("{:.0f} % of the steps were clipped", 100.0 * clipped));
  }
  if (what.empty()) {
    return std::nullopt;
  }
  config::RunConfig other = given_;
  other.platform = config_.platform;
  other.platform_products = config_.platform_products;
  other.platform_passes = config_.platform_passes;
  for (std::size_t i = 0; i < other.paths.size(); ++i) {
    other.paths[i].read_rate = config_.paths[i].read_rate;
    other.paths[i].write_rate = config_.paths[i].write_rate;
  }
  set_rates(other, now, room_.ranks_per_node);
  other.plan.clip_rate = config_.plan.clip_rate = clipped;
  bool better = false;
  mpi::agree(comm_,
             [&] { better = comm_.rank() == 0 && gains(other, what, progress, runner.map()); });
  planned_rates_ = now;
  if (!comm_.broadcast_value(better, 0)) {
    return std::nullopt;
  }
  go_on_from_newest(other.checkpoint);
  if (other.train.max_time > Seconds{}) {
    other.train.max_time = std::max(Seconds{1.0}, other.train.max_time - cadence_.now());
  }
  return other;
}

template <class T>
bool PlanChoice<T>::gains(config::RunConfig const& config, std::vector<std::string> const& moved,
                          RunProgress const& progress, state::ShardMap const& map) const {
  // Every key is chosen: this gives its own step by the new rates.
  config::RunConfig here = config_;
  here.platform = config.platform;
  here.paths = config.paths;
  keep(here);
  auto const stays = choose_configuration(here, map, room_);
  config::RunConfig there = config;  // which has not yet what attention takes of the device
  there.device.attention_workspace = config_.device.attention_workspace;
  auto const goes = choose_configuration(there, map, room_);
  Seconds const before = stays.step.step;
  Seconds const after = goes.step.step;
  auto const left = static_cast<double>(config_.train.steps - progress.step);
  bool const worth = before > worthwhile_gain * after &&
                     left * (before - after) > worthwhile_starts * progress.start;
  log::dated("plan: {}; {}: a step of {:.3g} s instead of {:.3g} s, {}", fmt::join(moved, ", "),
             describe(goes.chosen, config), after.count(), before.count(),
             worth ? "for which the run saves and starts anew" : "not worth a new start");
  return worth;
}

template <class T>
std::vector<std::string> PlanChoice<T>::advice(RunProgress const& progress,
                                               StepRunner<T> const& runner, Seconds reached) const
    try {
  if (progress.steps < first_look) {
    return {};
  }
  auto const forecast = runner.foresee();
  if (!forecast || !forecast->unknown.empty()) {
    return {};
  }
  config::RunConfig config = config_;
  config.plan.choose = false;
  config.plan.clip_rate =
      static_cast<double>(progress.clipped) / static_cast<double>(progress.steps);
  int const ranks_per_node = runner.room().ranks_per_node;
  set_rates(config, forecast->machine.rates, ranks_per_node);
  config.platform_products = forecast->machine.compute;
  return advise(config,
                {.ranks = comm_.size(),
                 .ranks_per_node = ranks_per_node,
                 .host_memory = runner.room().host_memory},
                reached, !config_.plan.choose);
} catch (std::exception const& error) {  // missing advice does not end a run
  log::warning("no advice on this run: {}", error.what());
  return {};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, PlanChoice)

}  // namespace offstage::train
