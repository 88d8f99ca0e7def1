#include "train/forecast/configuration_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "config/known_rates.hpp"
#include "train/forecast/open_values.hpp"
#include "train/forecast/trials.hpp"

namespace offstage::train {
namespace {

/// Detail that is coarse enough for hundreds of simulations in a second or two.
constexpr plan::Detail coarse{.rounds = 3, .rounds_in_layers = 8, .subgroups = 96, .chunks = 384};
constexpr plan::Detail exact{};
constexpr int most_simulated = 100;
/// Simulations of one climb, and the number of climbs.
constexpr int most_climbing = 60;
constexpr std::size_t climbs = 2;
/// Numbers of trials that are compared in all detail: the quickest ones, and with others that are
/// near. Then simulations of the last climb.
constexpr std::size_t quickest = 3;
constexpr std::size_t compared = 8;
constexpr double near = 0.05;
constexpr int most_at_last = 24;
/// Times that differ by less are equal.
constexpr double equal = 0.01;
/// A climb goes on where a step becomes shorter by this part.
constexpr double higher = 0.003;

class Search {
 public:
  Search(config::RunConfig const& config, state::ShardMap const& map, Room const& room,
         bool by_time)
      : config_{config},
        values_{config, map, room},
        trials_{config, map, room, by_time},
        by_time_{by_time} {}

  [[nodiscard]] Choice run();
  /// The first trial that fits.
  [[nodiscard]] Chosen first();

 private:
  void try_all();
  /// Tries each value of overlap.
  void try_overlaps(Chosen chosen);
  void try_with(Chosen chosen);
  /// Simulates trials, the one with the lowest bound first, until the others are bound to take
  /// longer. Returns false if there are too many.
  bool simulate_all();
  struct Climb {
    plan::Detail detail;
    int most;  ///< number of simulations
  };
  /// Goes from a trial to a quicker one that differs in one key, again and again.
  void climb(Trial const& from, Climb const& how);
  /// The quickest trials from which to climb, each with another home or schedule.
  [[nodiscard]] std::vector<Trial> begins_of_climbs();
  /// The quickest trials, and the quickest of each home, schedule, policy and overlap as far as
  /// they are near.
  [[nodiscard]] std::vector<Trial*> finalists();
  /// The best of all that were simulated in all detail: the one that moves least among those as
  /// quick as the quickest.
  [[nodiscard]] Trial const& winner();
  template <class Value>
  void add_other(Choice& choice, char const* key, Value Chosen::*value) const;

  config::RunConfig const& config_;
  OpenValues values_;
  Trials trials_;
  bool by_time_;  ///< rates are known; else the first trial that fits is chosen
};

void Search::try_all() {
  for (parameters::Home const home : values_.homes()) {
    for (config::LayerSchedule const schedule : values_.schedules()) {
      for (activations::Policy const& policy : values_.policies(schedule)) {
        for (parameters::Sharding const sharding : values_.shardings(home)) {
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
  for (config::Overlap const overlap : values_.overlaps()) {
    if (by_time_ || trials_.all().empty()) {
      chosen.overlap = overlap;
      try_with(chosen);
    }
  }
}

/// Tries a choice without residents, or with as few as host memory needs, with as many as the
/// device has room for, and with all: then no update needs buffers on the device.
void Search::try_with(Chosen chosen) {
  auto fewest = trials_.fit_with_share(chosen);
  if (auto const least = fewest ? std::nullopt : trials_.least_resident(chosen)) {
    chosen.resident = *least;
    fewest = trials_.fit_with_share(chosen);
  }
  std::vector<double> more;
  if (fewest) {
    more.push_back(trials_.most_resident(trials_.add(*fewest)));
  }
  if (trials_.has_residents()) {
    more.push_back(1.0);
  }
  for (double const resident : more) {
    if (resident > chosen.resident) {
      chosen.resident = resident;
      if (auto trial = trials_.fit_with_share(chosen)) {
        trials_.add(*std::move(trial));
      }
    }
  }
}

void Search::climb(Trial const& from, Climb const& how) {
  Trial best = from;
  int const most = trials_.simulated() + how.most;
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (OpenValues::Neighbours const neighbours : OpenValues::neighbours()) {
      for (Chosen const& chosen : (values_.*neighbours)(best, trials_)) {
        Trial* const found = trials_.simulated() < most ? trials_.find_or_fit(chosen) : nullptr;
        auto const quicker = (1.0 - higher) * best.seconds();
        if (found == nullptr || found->bound.step >= quicker || found->is_simulated(how.detail)) {
          continue;
        }
        trials_.simulate(*found, how.detail);
        if (found->seconds() < quicker) {
          best = *found;
          goes_on = true;
        }
      }
    }
  }
}

std::vector<Trial> Search::begins_of_climbs() {
  std::vector<Trial> begins;
  for (Trial const* const trial : trials_.by_time()) {
    bool const is_alike = std::ranges::any_of(begins, [&](Trial const& other) {
      return other.chosen.home == trial->chosen.home &&
             other.chosen.schedule == trial->chosen.schedule;
    });
    if (!is_alike && begins.size() < climbs) {
      begins.push_back(*trial);
    }
  }
  return begins;
}

std::vector<Trial*> Search::finalists() {
  std::vector<Trial*> finals;
  auto const trials = trials_.by_time();
  for (Trial* const trial : trials) {
    auto const is_alike = [&](Trial const* other) {
      Chosen const& a = other->chosen;
      Chosen const& b = trial->chosen;
      return a.home == b.home && a.schedule == b.schedule && a.activations == b.activations &&
             a.overlap == b.overlap;
    };
    bool const is_near = trial->seconds() <= (1.0 + near) * trials.front()->seconds();
    bool const is_other = std::ranges::none_of(finals, is_alike);
    if (finals.size() < quickest || (finals.size() < compared && is_near && is_other)) {
      finals.push_back(trial);
    }
  }
  return finals;
}

Trial const& Search::winner() {
  auto trials = trials_.by_time();
  std::erase_if(trials, [](Trial const* trial) { return !trial->is_simulated(exact); });
  auto const longest = (1.0 + equal) * trials.front()->seconds();
  std::erase_if(trials, [&](Trial const* trial) { return trial->seconds() > longest; });
  return **std::ranges::min_element(trials, {}, &Trial::number);
}

bool Search::simulate_all() {
  std::vector<Trial*> order;
  for (Trial& trial : trials_.all()) {
    order.push_back(&trial);
  }
  std::ranges::stable_sort(order, {}, [](Trial const* trial) { return trial->bound.step; });
  std::optional<Seconds> least;
  for (Trial* const trial : order) {
    if (least && trial->bound.step >= (1.0 - equal) * *least) {
      return true;
    }
    if (trials_.simulated() >= most_simulated) {
      return false;
    }
    trials_.simulate(*trial, coarse);
    least = std::min(least.value_or(trial->step->step), trial->step->step);
  }
  return true;
}

template <class Value>
void Search::add_other(Choice& choice, char const* key, Value Chosen::*value) const {
  Trial const* other = nullptr;
  for (Trial const& trial : trials_.all()) {
    bool const differs = text_of(trial.chosen.*value) != text_of(choice.chosen.*value);
    if (differs && (other == nullptr || trial.seconds() < other->seconds())) {
      other = &trial;
    }
  }
  if (other != nullptr) {
    choice.others.push_back({key + text_of(other->chosen.*value), other->seconds(), !other->step});
  }
}

Chosen Search::first() {
  try_all();
  trials_.require_any();
  return trials_.all().front().chosen;
}

Choice Search::run() {
  try_all();
  trials_.require_any();
  bool const cut_short = !simulate_all();
  for (Trial const& trial : begins_of_climbs()) {
    climb(trial, {coarse, most_climbing});
  }
  trials_.simulate(finalists(), exact);
  climb(winner(), {exact, most_at_last});
  Trial const& best = winner();
  Choice choice{.chosen = best.chosen,
                .step = *best.step,
                .others = {},
                .left_out = values_.node_shortage(),
                .tried = trials_.tried(),
                .fitting = static_cast<int>(trials_.all().size()),
                .simulated = trials_.simulated(),
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
  if (!choice.left_out.empty()) {
    lines.push_back("  " + choice.left_out);
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
