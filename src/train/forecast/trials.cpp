#include "train/forecast/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "base/error.hpp"
#include "base/in_threads.hpp"
#include "config/split_parameters.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/update_demand.hpp"
#include "train/settle/schedule_choice.hpp"

namespace offstage::train {

double in_percents(double part) {
  return std::floor(100.0 * part) / 100.0;
}

Trials::Trials(config::RunConfig const& config, state::ShardMap const& map, Room const& room,
               bool by_time)
    : config_{config}, map_{map}, room_{room}, by_time_{by_time} {
  config_.settings.clear();
}

bool Trials::shares() const {
  return by_time_ && leaves_share(config_) && !room_.host_visible();
}

config::RunConfig Trials::with(Chosen const& chosen) const {
  config::RunConfig config = config_;
  take(config, chosen);
  config.train.together = 0;
  if (chosen.schedule == config::LayerSchedule::vertical) {
    settle_schedule(config, map_, room_);
  }
  config::settle_split_parameters(config);
  return config;
}

std::optional<Trial> Trials::fit(Chosen const& chosen) {
  if (std::ranges::find(misfits_, chosen) != misfits_.end()) {
    return std::nullopt;
  }
  auto trial = try_to_fit(chosen);
  if (!trial) {
    misfits_.push_back(chosen);
  }
  return trial;
}

std::optional<Trial> Trials::try_to_fit(Chosen const& chosen) {
  // Residents that the plan adds make room in host memory, and are no reason that a user can mend.
  bool const is_frugal = !has_residents() || chosen.resident == 0.0;
  try {
    auto const config = with(chosen);
    Trial trial{.chosen = chosen, .number = ++fitted_, .memory = {}, .device = {}, .bound = {}};
    trial.memory = host_plan(config, map_, room_);
    trial.device =
        device_demand(config, map_, state::fullest_rank, room_, trial.memory.subgroup_elements);
    Bytes const total = trial.device.total();
    if (room_.device_memory > 0 && total > room_.device_memory) {
      if (is_frugal) {
        least_device_ = std::min(least_device_.value_or(total), total);
      }
      return std::nullopt;
    }
    return trial;
  } catch (UsageError const& error) {
    if (is_frugal) {
      host_problem_ = error.what();
    }
    return std::nullopt;
  }
}

double Trials::share_for(config::RunConfig const& config, Trial const& trial) const {
  auto shape = update_shape(config, map_.shard_elements(state::fullest_rank),
                            trial.memory.subgroup_elements);
  shape.storage = storage_traffic(config, shape, trial.memory);
  auto demand = update_demand(config, shape, false);
  demand.held = trial.device.held / shape.held_bytes();
  auto const machine = machine_of(config, facts(trial));
  return plan::best_share(demand, machine.rates);
}

double Trials::most_resident(Trial const& trial) const {
  if (!has_residents()) {
    return 0.0;
  }
  Bytes const left = room_.device_memory - (trial.device.total() - trial.device.held);
  double const state = with(trial.chosen).optimizer.layout().bytes_per_element() *
                       static_cast<double>(map_.shard_elements(state::fullest_rank));
  return std::clamp(in_percents(trial.chosen.resident + static_cast<double>(left) / state), 0.0,
                    1.0);
}

std::optional<double> Trials::least_resident(Chosen chosen) const {
  if (!has_residents()) {
    return std::nullopt;
  }
  auto const suffices = [&](int percents) {
    chosen.resident = percents / 100.0;
    try {
      static_cast<void>(host_plan(with(chosen), map_, room_));
      return true;
    } catch (UsageError const&) {
      return false;
    }
  };
  auto const all = std::views::iota(1, 101);
  auto const least = std::ranges::partition_point(all, [&](int each) { return !suffices(each); });
  return least == all.end() ? std::nullopt : std::optional{*least / 100.0};
}

std::optional<Trial> Trials::fit_with_share(Chosen chosen) {
  if (!shares()) {
    return fit(chosen);
  }
  chosen.share = 1.0;  // there are slots
  auto trial = fit(chosen);
  if (!trial) {
    chosen.share = 0.0;
    return fit(chosen);
  }
  chosen.share = share_for(with(chosen), *trial);
  return chosen.share == trial->chosen.share ? trial : fit(chosen);
}

Trial& Trials::add(Trial trial) {
  if (by_time_) {
    trial.bound = least_step(with(trial.chosen), facts(trial));
  }
  return trials_.emplace_back(std::move(trial));
}

Trial* Trials::find_or_fit(Chosen const& chosen) {
  if (auto const known = std::ranges::find(trials_, chosen, &Trial::chosen);
      known != trials_.end()) {
    return &*known;
  }
  auto trial = fit(chosen);
  return trial ? &add(*std::move(trial)) : nullptr;
}

void Trials::simulate(std::vector<Trial*> const& trials, plan::Detail const& detail) {
  for_each_in_threads(trials.size(), [&](std::size_t i) {
    Trial& trial = *trials[i];
    trial.step = foresee_step(with(trial.chosen), facts(trial), {.detail = detail});
    trial.rounds = detail.rounds;
  });
  simulated_ += static_cast<int>(trials.size());
}

bool Trials::splits(Trial const& trial) const {
  return with(trial.chosen).optimizer.split_parameter;
}

std::vector<Trial*> Trials::by_time() {
  std::vector<Trial*> simulated;
  for (Trial& trial : trials_) {
    if (trial.step) {
      simulated.push_back(&trial);
    }
  }
  std::ranges::stable_sort(simulated, {}, [](Trial const* trial) { return trial->step->step; });
  return simulated;
}

void Trials::require_any() const {
  if (!trials_.empty()) {
    return;
  }
  if (least_device_) {
    throw UsageError{
        fmt::format("device.memory={} is too small: the most frugal configuration takes {}; lower "
                    "train.micro-batch or train.sequence, or use more ranks",
                    format_bytes(room_.device_memory), format_bytes(*least_device_))};
  }
  throw UsageError{host_problem_};
}

}  // namespace offstage::train
