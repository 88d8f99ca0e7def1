#include "train/forecast/configuration_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "config/known_rates.hpp"
#include "config/split_parameters.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_demand.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {
namespace {

using activations::Policy;
using parameters::Home;
using parameters::Sharding;
using Rule = Policy::Rule;

/// Detail that is coarse enough for hundreds of simulations in a second or two.
constexpr plan::Detail coarse{.rounds = 3, .rounds_in_layers = 8, .subgroups = 96, .chunks = 384};
constexpr int most_simulated = 60;
/// Numbers of best trials: those around which share and cache are varied, and those that are
/// compared.
constexpr std::size_t varied = 2;
constexpr std::size_t compared = 3;
/// Times that differ by less are equal.
constexpr double equal = 0.01;

/// A configuration that fits.
struct Trial {
  Chosen chosen;
  std::size_t number{};  ///< place in the order of trials: the one that moves least comes first
  plan::MemoryPlan memory;
  DeviceDemand device;
  plan::Bound bound;
  std::optional<plan::Prediction> step{};

  [[nodiscard]] Seconds seconds() const { return step ? step->step : bound.step; }
};

/// The trial that moves least among those that are as quick as the quickest.
Trial& best_of(std::vector<Trial*> const& trials) {
  auto const seconds = [](Trial const* trial) { return trial->step->step; };
  auto const least = std::ranges::min(trials, {}, seconds)->step->step;
  Trial* best = nullptr;
  for (Trial* const trial : trials) {
    bool const near = trial->step->step <= (1.0 + equal) * least;
    if (near && (best == nullptr || trial->number < best->number)) {
      best = trial;
    }
  }
  return *best;
}

class Search {
 public:
  Search(config::RunConfig const& config, state::ShardMap const& map, Room const& room,
         bool by_time)
      : config_{config}, map_{map}, room_{room}, by_time_{by_time} {
    config_.settings.clear();
  }

  [[nodiscard]] Choice run();
  /// The first trial that fits.
  [[nodiscard]] Chosen first();

 private:
  void try_all();
  /// Tries each value of overlap, if it is left to the plan.
  void try_overlaps(Chosen chosen);
  /// Checks that a trial fits. Errors: UsageError: nothing fits.
  void require_any() const;
  void try_with(Chosen chosen);
  void vary(Trial const& around);
  void simulate(Trial& trial, plan::Detail const& detail);
  [[nodiscard]] std::optional<Trial> fit(Chosen const& chosen);
  [[nodiscard]] config::RunConfig with(Chosen const& chosen) const;
  [[nodiscard]] StepFacts facts(Trial const& trial) const {
    return {.map = map_,
            .rank = state::fullest_rank,
            .room = room_,
            .memory = trial.memory,
            .device = trial.device,
            .share = trial.chosen.share};
  }
  /// Returns whether the plan has a share to decide. A device that the host sees has the host's
  /// cores.
  [[nodiscard]] bool shares() const {
    return by_time_ && leaves_share(config_) && !room_.host_visible();
  }
  [[nodiscard]] double share_for(config::RunConfig const& config, Trial const& trial) const;
  [[nodiscard]] double most_resident(Trial const& trial) const;
  [[nodiscard]] std::vector<Policy> policies(config::LayerSchedule schedule) const;
  [[nodiscard]] std::vector<Home> homes() const;
  [[nodiscard]] std::vector<Sharding> shardings(Home home) const;
  [[nodiscard]] std::vector<config::LayerSchedule> schedules() const;
  /// The trials that were simulated, the quickest first.
  [[nodiscard]] std::vector<Trial*> by_time();
  template <class Value>
  void add_other(Choice& choice, char const* key, Value Chosen::*value) const;

  config::RunConfig config_;
  state::ShardMap const& map_;
  Room const& room_;
  bool by_time_;  ///< rates are known; else the first trial that fits is chosen
  std::vector<Trial> trials_;
  int tried_ = 0, simulated_ = 0;
  std::optional<Bytes> least_device_;  ///< least need of the trials that did not fit
  std::string host_problem_;
};

config::RunConfig Search::with(Chosen const& chosen) const {
  config::RunConfig config = config_;
  take(config, chosen);
  config.train.together = 0;
  if (chosen.schedule == config::LayerSchedule::vertical) {
    settle_schedule(config, map_, room_);
  }
  config::settle_split_parameters(config);
  return config;
}

std::optional<Trial> Search::fit(Chosen const& chosen) {
  ++tried_;
  try {
    auto const config = with(chosen);
    Trial trial{.chosen = chosen,
                .number = static_cast<std::size_t>(tried_),
                .memory = {},
                .device = {},
                .bound = {}};
    trial.memory = host_plan(config, map_, room_);
    trial.device =
        device_demand(config, map_, state::fullest_rank, room_, trial.memory.subgroup_elements);
    Bytes const total = trial.device.total();
    if (room_.device_memory > 0 && total > room_.device_memory) {
      least_device_ = std::min(least_device_.value_or(total), total);
      return std::nullopt;
    }
    return trial;
  } catch (UsageError const& error) {
    host_problem_ = error.what();
    return std::nullopt;
  }
}

double Search::share_for(config::RunConfig const& config, Trial const& trial) const {
  auto shape = update_shape(config, map_.shard_elements(state::fullest_rank),
                            trial.memory.subgroup_elements);
  shape.storage = storage_traffic(config, shape, trial.memory);
  auto demand = update_demand(config, shape, false);
  demand.held = trial.device.held / shape.held_bytes();
  auto const machine = machine_of(config, facts(trial));
  return plan::best_share(demand, machine.rates);
}

/// The largest part of residents for which device memory has room, if gradients give way.
double Search::most_resident(Trial const& trial) const {
  if (!leaves_resident(config_) || room_.device_memory == 0) {
    return 0.0;
  }
  Bytes const left = room_.device_memory - (trial.device.total() - trial.device.held);
  double const state = with(trial.chosen).optimizer.layout().bytes_per_element() *
                       static_cast<double>(map_.shard_elements(state::fullest_rank));
  // Whole percents, so that a reader can repeat the plan.
  return std::clamp(std::floor(100.0 * static_cast<double>(left) / state) / 100.0, 0.0, 1.0);
}

std::vector<Home> Search::homes() const {
  if (!leaves_home(config_)) {
    return {config_.parameter_home};
  }
  if (parameters::stay_whole(config_.sharding)) {
    return {Home::device};
  }
  std::vector<Home> homes{Home::device, Home::host};
  if (map_.ranks() > 1 &&
      room_.shared_memory >= all_elements(map_) * config_.numerics.element_bytes()) {
    homes.push_back(Home::node);
  }
  if (!config_.paths.empty()) {
    homes.push_back(Home::storage);
  }
  return homes;
}

std::vector<Sharding> Search::shardings(Home home) const {
  if (!leaves_sharding(config_)) {
    return {config_.sharding};
  }
  bool const gathers = home == Home::device && map_.ranks() > 1;
  if (!gathers) {
    return {Sharding::zero3};
  }
  if (zero1_keeps_ranks_busy(config_, map_.ranks())) {
    return {Sharding::zero1, Sharding::zero2, Sharding::zero3};
  }
  return {Sharding::zero2, Sharding::zero3};
}

std::vector<config::LayerSchedule> Search::schedules() const {
  if (!leaves_schedule(config_)) {
    return {config_.train.schedule};
  }
  auto const rounds = dealt(config_, map_.ranks()).count();
  bool const several = rounds > 1 && rounds <= most_together;
  return several ? std::vector{config::LayerSchedule::horizontal, config::LayerSchedule::vertical}
                 : std::vector{config::LayerSchedule::horizontal};
}

std::vector<Policy> Search::policies(config::LayerSchedule schedule) const {
  Policy const inputs{Rule::swap, 0.0, !config_.paths.empty()};
  Policy const& given = config_.train.activations;
  bool const vertical = schedule == config::LayerSchedule::vertical;
  if (!leaves_activations(config_)) {
    return vertical && !suits_vertical(given) ? std::vector<Policy>{} : std::vector{given};
  }
  std::vector<Policy> all{{Rule::recompute}, inputs};
  if (!vertical) {
    all.insert(all.begin(), {Rule::keep});
    for (int parts = 1; parts <= activations::product_parts; ++parts) {
      all.push_back(inputs);
      all.back().share = share_of_parts(config_, parts);
    }
  }
  return all;
}

void Search::try_all() {
  for (Home const home : homes()) {
    for (config::LayerSchedule const schedule : schedules()) {
      for (Policy const& policy : policies(schedule)) {
        for (Sharding const sharding : shardings(home)) {
          try_overlaps({.home = home,
                        .sharding = sharding,
                        .schedule = schedule,
                        .activations = policy,
                        .share = config_.share.device_share.value_or(0.0),
                        .resident = leaves_resident(config_) ? 0.0 : config_.share.device_resident,
                        .cache = config_.storage.most_cache});
        }
      }
    }
  }
}

void Search::try_overlaps(Chosen chosen) {
  for (config::Overlap const overlap : {config::Overlap::off, config::Overlap::automatic}) {
    if (!by_time_ && !trials_.empty()) {
      return;
    }
    if (leaves_overlap(config_) || overlap == config::Overlap::off) {
      chosen.overlap = leaves_overlap(config_) ? overlap : config_.overlap;
      try_with(chosen);
    }
  }
}

/// Tries a choice with the share that a model of the update takes for the best, and with residents
/// if there is room.
void Search::try_with(Chosen chosen) {
  auto add = [&](std::optional<Trial> trial) {
    if (trial) {
      if (by_time_) {
        trial->bound = least_step(with(trial->chosen), facts(*trial));
      }
      trials_.push_back(*std::move(trial));
    }
  };
  auto const with_share = [&](Chosen const& of) {
    auto open = of;
    if (!shares()) {
      return fit(open);
    }
    open.share = 1.0;  // there are slots
    auto trial = fit(open);
    if (!trial) {
      open.share = 0.0;
      return fit(open);
    }
    open.share = share_for(with(open), *trial);
    return open.share == trial->chosen.share ? trial : fit(open);
  };
  auto const plain = with_share(chosen);
  add(plain);
  if (double const resident = plain ? most_resident(*plain) : 0.0; resident > 0.0) {
    chosen.resident = resident;
    add(with_share(chosen));
  }
}

void Search::simulate(Trial& trial, plan::Detail const& detail) {
  ++simulated_;
  trial.step = foresee_step(with(trial.chosen), facts(trial), {.detail = detail});
}

std::vector<Trial*> Search::by_time() {
  std::vector<Trial*> simulated;
  for (Trial& trial : trials_) {
    if (trial.step) {
      simulated.push_back(&trial);
    }
  }
  std::ranges::stable_sort(simulated, {}, [](Trial const* trial) { return trial->step->step; });
  return simulated;
}

void Search::vary(Trial const& around) {
  std::vector<Chosen> variants;
  auto const add = [&](auto Chosen::*value, auto to) {
    Chosen chosen = around.chosen;
    if (chosen.*value != to) {
      chosen.*value = to;
      variants.push_back(chosen);
    }
  };
  if (shares()) {
    double const share = around.chosen.share;
    for (double const to : {0.0, 0.5 * share, 0.8 * share, 1.2 * share, 1.5 * share}) {
      add(&Chosen::share, std::min(1.0, to));
    }
  }
  if (around.chosen.resident > 0.0 && leaves_resident(config_)) {
    add(&Chosen::resident, std::floor(50.0 * around.chosen.resident) / 100.0);
  }
  if (config_.storage.most_cache < 0 && around.memory.cached > 0 && !config_.paths.empty()) {
    // A cache of 0 gives second versions on storage, for updates under backward, if all first
    // versions are in memory.
    add(&Chosen::cache, Bytes{0});
  }
  for (Chosen const& chosen : variants) {
    if (auto trial = fit(chosen)) {
      trial->bound = least_step(with(chosen), facts(*trial));
      simulate(*trial, coarse);
      trials_.push_back(*std::move(trial));
    }
  }
}

template <class Value>
void Search::add_other(Choice& choice, char const* key, Value Chosen::*value) const {
  Trial const* other = nullptr;
  for (Trial const& trial : trials_) {
    bool const differs = text_of(trial.chosen.*value) != text_of(choice.chosen.*value);
    if (differs && (other == nullptr || trial.seconds() < other->seconds())) {
      other = &trial;
    }
  }
  if (other != nullptr) {
    choice.others.push_back({key + text_of(other->chosen.*value), other->seconds(), !other->step});
  }
}

void Search::require_any() const {
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

Chosen Search::first() {
  try_all();
  require_any();
  return trials_.front().chosen;
}

Choice Search::run() {
  try_all();
  require_any();
  std::vector<Trial*> order;
  for (Trial& trial : trials_) {
    order.push_back(&trial);
  }
  std::ranges::stable_sort(order, {}, [](Trial const* trial) { return trial->bound.step; });
  std::optional<Seconds> least;
  bool cut_short = false;
  for (Trial* const trial : order) {
    bool const late = least && trial->bound.step >= (1.0 - equal) * *least;
    cut_short = !late && simulated_ >= most_simulated;
    if (late || cut_short) {
      break;
    }
    simulate(*trial, coarse);
    least = std::min(least.value_or(trial->step->step), trial->step->step);
  }
  std::vector<Trial> quickest;
  for (Trial const* const trial : by_time()) {
    if (quickest.size() < varied) {
      quickest.push_back(*trial);
    }
  }
  for (Trial const& trial : quickest) {
    vary(trial);
  }
  auto finals = by_time();
  Trial& favourite = best_of(finals);
  finals.resize(std::min(finals.size(), compared));
  if (std::ranges::find(finals, &favourite) == finals.end()) {
    finals.push_back(&favourite);
  }
  for (Trial* const trial : finals) {
    simulate(*trial, {});
  }
  Trial const& chosen = best_of(finals);
  Choice choice{.chosen = chosen.chosen,
                .step = *chosen.step,
                .others = {},
                .tried = tried_,
                .fitting = static_cast<int>(trials_.size()),
                .simulated = simulated_,
                .cut_short = cut_short};
  add_other(choice, "parameters.home=", &Chosen::home);
  add_other(choice, "parameters.sharding=", &Chosen::sharding);
  add_other(choice, "train.schedule=", &Chosen::schedule);
  add_other(choice, "train.activations=", &Chosen::activations);
  add_other(choice, "update.overlap=", &Chosen::overlap);
  add_other(choice, "update.device-resident=", &Chosen::resident);
  return choice;
}

}  // namespace

std::vector<std::string> describe(Choice const& choice, config::RunConfig const& config,
                                  std::int64_t tokens) {
  std::vector<std::string> busy;
  for (plan::ResourceUse const& use : choice.step.uses) {
    if (busy.size() < 3) {
      busy.push_back(fmt::format("{} {:.0f} %", name_of(use.resource, config.paths),
                                 100.0 * use.busy / choice.step.step));
    }
  }
  double const seconds = choice.step.step.count();
  std::vector<std::string> lines{
      fmt::format("plan.choose=on: {}", describe(choice.chosen, config)),
      fmt::format("  a step of {:.3g} s, {:.3g} tokens/s; busy: {}", seconds,
                  static_cast<double>(tokens) / seconds, fmt::join(busy, ", ")),
      fmt::format("  of {} configurations {} fit; {} were simulated, the others are {}",
                  choice.tried, choice.fitting, choice.simulated,
                  choice.cut_short ? "left out, as there are so many" : "bound to take longer")};
  for (Alternative const& other : choice.others) {
    lines.push_back(fmt::format("  with {} {}{:.3g} s", other.what,
                                other.at_least ? "at least " : "", other.step.count()));
  }
  return lines;
}

std::vector<std::string> rates_missing(config::RunConfig const& config, bool host_visible) {
  std::vector<std::string> missing;
  auto const need = [&](char const* key, double rate) {
    if (rate <= 0.0) {
      missing.emplace_back(key);
    }
  };
  auto const rates = config::known_rates(config);
  need("platform.cpu-update", rates.cpu_update);
  need("platform.products", config::known_compute(config));
  if (!host_visible) {
    need("platform.device-update", rates.device_update);
    need("platform.host-to-device", rates.host_to_device);
    need("platform.device-to-host", rates.device_to_host);
  }
  for (tiers::PathSettings const& path : config.paths) {
    if (!path.rates_known()) {
      missing.push_back(fmt::format("read= and write= of tiers.path={}", path.directory));
    }
  }
  return missing;
}

Choice choose_configuration(config::RunConfig const& config, state::ShardMap const& map,
                            Room const& room) {
  return Search{config, map, room, true}.run();
}

Chosen first_that_fits(config::RunConfig const& config, state::ShardMap const& map,
                       Room const& room) {
  return Search{config, map, room, false}.first();
}

}  // namespace offstage::train
