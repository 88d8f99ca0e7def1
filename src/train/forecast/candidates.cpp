#include "train/forecast/candidates.hpp"

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

Candidates::Candidates(config::RunConfig const& config, state::ShardMap const& map,
                       Room const& room, bool by_time)
    : config_{config}, map_{map}, room_{room}, by_time_{by_time} {
  config_.settings.clear();
}

bool Candidates::shares() const {
  return by_time_ && leaves_share(config_) && !room_.host_visible();
}

config::RunConfig Candidates::with(Chosen const& chosen) const {
  config::RunConfig config = config_;
  take(config, chosen);
  config.train.together = 0;
  if (chosen.schedule == config::LayerSchedule::vertical) {
    settle_schedule(config, map_, room_);
  }
  config::settle_split_parameters(config);
  settle_waiting(config, map_, room_);
  return config;
}

std::optional<Candidate> Candidates::fit(Chosen const& chosen) {
  if (std::ranges::find(misfits_, chosen) != misfits_.end()) {
    return std::nullopt;
  }
  auto candidate = try_to_fit(chosen);
  if (!candidate) {
    misfits_.push_back(chosen);
  }
  return candidate;
}

std::optional<Candidate> Candidates::try_to_fit(Chosen const& chosen) {
  // Residents that the plan adds make room in host memory, and are no reason that a user can mend.
  bool const is_frugal = !has_residents() || chosen.resident == 0.0;
  try {
    auto const config = with(chosen);
    Candidate candidate{
        .chosen = chosen, .number = ++fitted_, .memory = {}, .device = {}, .bound = {}};
    candidate.memory = host_plan(config, map_, room_);
    candidate.device =
        device_demand(config, map_, state::fullest_rank, room_, candidate.memory.subgroup_elements);
    Bytes const total = candidate.device.total();
    if (room_.device_memory > 0 && total > room_.device_memory) {
      if (is_frugal) {
        least_device_ = std::min(least_device_.value_or(total), total);
      }
      return std::nullopt;
    }
    return candidate;
  } catch (UsageError const& error) {
    if (is_frugal) {
      host_problem_ = error.what();
    }
    return std::nullopt;
  }
}

double Candidates::share_for(config::RunConfig const& config, Candidate const& candidate) const {
  auto shape = update_shape(config, map_, state::fullest_rank, candidate.memory.subgroup_elements,
                            room_.route);
  shape.storage = storage_traffic(config, shape, candidate.memory);
  auto demand = update_demand(config, shape, false);
  demand.held = shape.staying_elements(candidate.device.held);
  auto const machine = machine_of(config, facts(candidate));
  return plan::best_share(demand, machine.rates);
}

double Candidates::most_resident(Candidate const& candidate) const {
  if (!has_residents()) {
    return 0.0;
  }
  // Tensors that wait have the room that residents leave.
  auto config = with(candidate.chosen);
  config.train.staying = {};
  auto const demand =
      device_demand(config, map_, state::fullest_rank, room_, candidate.memory.subgroup_elements);
  Bytes const left = room_.device_memory - (demand.total() - demand.held);
  double const state = config.optimizer.layout().bytes_per_element() *
                       static_cast<double>(map_.shard_elements(state::fullest_rank));
  return std::clamp(in_percents(candidate.chosen.resident + static_cast<double>(left) / state), 0.0,
                    1.0);
}

std::optional<double> Candidates::least_resident(Chosen chosen) const {
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

std::optional<Candidate> Candidates::fit_with_share(Chosen chosen) {
  if (!shares()) {
    return fit(chosen);
  }
  chosen.share = 1.0;  // there are slots
  auto candidate = fit(chosen);
  if (!candidate) {
    chosen.share = 0.0;
    return fit(chosen);
  }
  chosen.share = share_for(with(chosen), *candidate);
  return chosen.share == candidate->chosen.share ? candidate : fit(chosen);
}

Candidate& Candidates::add(Candidate candidate) {
  if (by_time_) {
    candidate.bound = least_step(with(candidate.chosen), facts(candidate));
  }
  return candidates_.emplace_back(std::move(candidate));
}

Candidate* Candidates::find_or_fit(Chosen const& chosen) {
  if (auto const known = std::ranges::find(candidates_, chosen, &Candidate::chosen);
      known != candidates_.end()) {
    return &*known;
  }
  auto candidate = fit(chosen);
  return candidate ? &add(*std::move(candidate)) : nullptr;
}

void Candidates::simulate(std::vector<Candidate*> const& candidates, plan::Detail const& detail) {
  for_each_in_threads(candidates.size(), [&](std::size_t i) {
    Candidate& candidate = *candidates[i];
    candidate.step = foresee_step(with(candidate.chosen), facts(candidate), {.detail = detail});
    candidate.rounds = detail.rounds;
  });
  simulated_ += static_cast<int>(candidates.size());
}

bool Candidates::splits(Candidate const& candidate) const {
  return with(candidate.chosen).optimizer.split_parameter;
}

std::vector<Candidate*> Candidates::by_time() {
  std::vector<Candidate*> simulated;
  for (Candidate& candidate : candidates_) {
    if (candidate.step) {
      simulated.push_back(&candidate);
    }
  }
  std::ranges::stable_sort(simulated, {},
                           [](Candidate const* candidate) { return candidate->step->step; });
  return simulated;
}

void Candidates::require_any() const {
  if (!candidates_.empty()) {
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
