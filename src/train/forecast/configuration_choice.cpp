#include "train/forecast/configuration_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "config/known_rates.hpp"
#include "train/forecast/candidates.hpp"
#include "train/forecast/open_values.hpp"

namespace offstage::train {
namespace {

/// Detail that is coarse enough for hundreds of simulations in a second or two.
constexpr plan::Detail coarse{.rounds = 3, .rounds_in_layers = 8, .subgroups = 96, .chunks = 384};
constexpr plan::Detail exact{};
constexpr int most_simulated = 100;
/// Simulations of one climb, and the number of climbs.
constexpr int most_climbing = 60;
constexpr std::size_t climbs = 2;
/// Numbers of candidates that are compared in all detail: the quickest ones, and with others that
/// are near. Then simulations of the last climb.
constexpr std::size_t quickest = 3;
constexpr std::size_t compared = 8;
constexpr double near = 0.05;
constexpr int most_at_last = 24;
/// Simulations of candidates that seem quicker than what was found.
constexpr int most_doubted = 96;
/// Times that differ by less are equal.
constexpr double equal = 0.01;
/// A climb goes on where a step becomes shorter by this part.
constexpr double higher = 0.003;

using Rule = activations::Policy::Rule;

class Search {
 public:
  Search(config::RunConfig const& config, state::ShardMap const& map, Room const& room,
         bool by_time)
      : config_{config},
        values_{config, map, room},
        candidates_{config, map, room, by_time},
        by_time_{by_time} {}

  [[nodiscard]] Choice run();
  /// The first candidate that fits.
  [[nodiscard]] Chosen first();

 private:
  /// Tries all policies, or those of one rule.
  void try_all(std::optional<Rule> rule = std::nullopt);
  /// Tries each value of overlap.
  void try_overlaps(Chosen chosen);
  void try_with(Chosen chosen);
  /// Simulates candidates that are not yet, the one with the lowest bound first, until the others
  /// are bound to take longer, or there are too many.
  void simulate_all();
  struct Climb {
    plan::Detail detail;
    int most;  ///< number of simulations
  };
  /// Goes from a candidate to a quicker one that differs in one key, again and again.
  void climb(Candidate const& from, Climb const& how);
  /// Climbs once more with policies of which a part of the activations stays, unless all stay. From
  /// the start on they would make the search worse in all else.
  void climb_with_parts();
  /// Simulates in all detail what seems quicker than the winner, by a bound or a coarse time that
  /// is too short, until nothing does. Returns false if there is too much of it.
  bool try_what_seems_quicker();
  /// The quickest candidates from which to climb, each with another home or schedule.
  [[nodiscard]] std::vector<Candidate> begins_of_climbs();
  /// The quickest candidates, and the quickest of each home, schedule, policy and overlap as far as
  /// they are near.
  [[nodiscard]] std::vector<Candidate*> finalists();
  /// The best of all that were simulated in all detail: the one that moves least among those as
  /// quick as the quickest.
  [[nodiscard]] Candidate const& winner();
  template <class Value>
  void add_other(Choice& choice, char const* key, Value Chosen::*value) const;

  config::RunConfig const& config_;
  OpenValues values_;
  Candidates candidates_;
  bool by_time_;  ///< rates are known; else the first candidate that fits is chosen
};

void Search::try_all(std::optional<Rule> rule) {
  for (parameters::Home const home : values_.homes()) {
    for (config::LayerSchedule const schedule : values_.schedules()) {
      for (activations::Policy const& policy : values_.policies(schedule)) {
        if (rule && policy.rule != *rule) {
          continue;
        }
        for (parameters::Sharding const sharding : values_.shardings(home)) {
          try_overlaps(
              {.home = home,
               .sharding = sharding,
               .schedule = schedule,
               .activations = policy,
               .share = config_.share.device_share.value_or(0.0),
               .resident = leaves_resident(config_) ? 0.0 : config_.share.device_resident});
        }
      }
    }
  }
}

void Search::try_overlaps(Chosen chosen) {
  for (config::Switch const overlap : values_.overlaps()) {
    if (by_time_ || candidates_.all().empty()) {
      chosen.overlap = overlap;
      try_with(chosen);
    }
  }
}

/// Tries a choice without residents, or with as few as host memory needs, with as many as the
/// device has room for, and with all: then no update needs buffers on the device.
void Search::try_with(Chosen chosen) {
  auto fewest = candidates_.fit_with_share(chosen);
  if (auto const least = fewest ? std::nullopt : candidates_.least_resident(chosen)) {
    chosen.resident = *least;
    fewest = candidates_.fit_with_share(chosen);
  }
  std::vector<double> more;
  if (fewest) {
    more.push_back(candidates_.most_resident(candidates_.add(*fewest)));
  }
  if (candidates_.has_residents()) {
    more.push_back(1.0);
  }
  for (double const resident : more) {
    if (resident > chosen.resident) {
      chosen.resident = resident;
      if (auto candidate = candidates_.fit_with_share(chosen)) {
        candidates_.add(*std::move(candidate));
      }
    }
  }
}

void Search::climb(Candidate const& from, Climb const& how) {
  Candidate best = from;
  int const most = candidates_.simulated() + how.most;
  bool improves = true;
  while (improves) {
    improves = false;
    for (OpenValues::Neighbours const neighbours : OpenValues::neighbours()) {
      for (Chosen const& chosen : (values_.*neighbours)(best, candidates_)) {
        Candidate* const found =
            candidates_.simulated() < most ? candidates_.find_or_fit(chosen) : nullptr;
        auto const quicker = (1.0 - higher) * best.seconds();
        if (found == nullptr || found->bound.step >= quicker || found->is_simulated(how.detail)) {
          continue;
        }
        candidates_.simulate(*found, how.detail);
        if (found->seconds() < quicker) {
          best = *found;
          improves = true;
        }
      }
    }
  }
}

std::vector<Candidate> Search::begins_of_climbs() {
  std::vector<Candidate> begins;
  for (Candidate const* const candidate : candidates_.by_time()) {
    bool const is_alike = std::ranges::any_of(begins, [&](Candidate const& other) {
      return other.chosen.home == candidate->chosen.home &&
             other.chosen.schedule == candidate->chosen.schedule;
    });
    if (!is_alike && begins.size() < climbs) {
      begins.push_back(*candidate);
    }
  }
  return begins;
}

std::vector<Candidate*> Search::finalists() {
  std::vector<Candidate*> finals;
  auto const candidates = candidates_.by_time();
  for (Candidate* const candidate : candidates) {
    auto const is_alike = [&](Candidate const* other) {
      Chosen const& a = other->chosen;
      Chosen const& b = candidate->chosen;
      return a.home == b.home && a.schedule == b.schedule && a.activations == b.activations &&
             a.overlap == b.overlap;
    };
    bool const is_near = candidate->seconds() <= (1.0 + near) * candidates.front()->seconds();
    bool const is_other = std::ranges::none_of(finals, is_alike);
    if (finals.size() < quickest || (finals.size() < compared && is_near && is_other)) {
      finals.push_back(candidate);
    }
  }
  return finals;
}

Candidate const& Search::winner() {
  auto candidates = candidates_.by_time();
  std::erase_if(candidates,
                [](Candidate const* candidate) { return !candidate->is_simulated(exact); });
  auto const longest = (1.0 + equal) * candidates.front()->seconds();
  std::erase_if(candidates,
                [&](Candidate const* candidate) { return candidate->seconds() > longest; });
  return **std::ranges::min_element(candidates, {}, &Candidate::number);
}

void Search::simulate_all() {
  std::vector<Candidate*> order;
  for (Candidate& candidate : candidates_.all()) {
    order.push_back(&candidate);
  }
  std::ranges::stable_sort(order, {},
                           [](Candidate const* candidate) { return candidate->bound.step; });
  std::optional<Seconds> least;
  int const most = candidates_.simulated() + most_simulated;
  for (Candidate* const candidate : order) {
    bool const takes_longer = least && candidate->bound.step >= (1.0 - equal) * *least;
    if (takes_longer || candidates_.simulated() >= most) {
      return;
    }
    if (!candidate->step) {
      candidates_.simulate(*candidate, coarse);
    }
    least = std::min(least.value_or(candidate->step->step), candidate->step->step);
  }
}

void Search::climb_with_parts() {
  if (winner().chosen.activations.rule == Rule::keep) {
    return;
  }
  values_.open_parts();
  try_all(Rule::part);
  simulate_all();
  std::vector<Candidate> begins{winner()};
  auto const quickest_first = candidates_.by_time();
  for (Rule const rule : {Rule::part, Rule::recompute}) {
    auto const found =
        std::ranges::find_if(quickest_first, [rule](Candidate const* const candidate) {
          return candidate->chosen.activations.rule == rule;
        });
    if (found != quickest_first.end()) {
      begins.push_back(**found);
    }
  }
  for (Candidate const& candidate : begins) {
    climb(candidate, {coarse, most_climbing});
  }
  candidates_.simulate(finalists(), exact);
}

bool Search::try_what_seems_quicker() {
  for (int tries = 0; tries < most_doubted; ++tries) {
    Candidate* best = nullptr;
    for (Candidate& each : candidates_.all()) {
      if (!each.is_simulated(exact) && (best == nullptr || each.seconds() < best->seconds())) {
        best = &each;
      }
    }
    if (best == nullptr || best->seconds() >= (1.0 - equal) * winner().seconds()) {
      return true;
    }
    candidates_.simulate(*best, best->step ? exact : coarse);
  }
  return false;
}

template <class Value>
void Search::add_other(Choice& choice, char const* key, Value Chosen::*value) const {
  Candidate const* other = nullptr;
  for (Candidate const& candidate : candidates_.all()) {
    bool const differs = text_of(candidate.chosen.*value) != text_of(choice.chosen.*value);
    if (differs && (other == nullptr || candidate.seconds() < other->seconds())) {
      other = &candidate;
    }
  }
  if (other != nullptr) {
    choice.others.push_back({key + text_of(other->chosen.*value), other->seconds(), !other->step});
  }
}

Chosen Search::first() {
  try_all();
  candidates_.require_any();
  return candidates_.all().front().chosen;
}

Choice Search::run() {
  try_all();
  candidates_.require_any();
  simulate_all();
  for (Candidate const& candidate : begins_of_climbs()) {
    climb(candidate, {coarse, most_climbing});
  }
  candidates_.simulate(finalists(), exact);
  climb(winner(), {exact, most_at_last});
  climb_with_parts();
  climb(winner(), {exact, 2 * most_at_last});
  bool const is_complete = try_what_seems_quicker();
  Candidate const& best = winner();
  Choice choice{.chosen = best.chosen,
                .step = *best.step,
                .others = {},
                .left_out = values_.node_shortage(),
                .tried = candidates_.tried(),
                .fitting = static_cast<int>(candidates_.all().size()),
                .simulated = candidates_.simulated(),
                .cut_short = !is_complete};
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
