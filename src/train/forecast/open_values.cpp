#include "train/forecast/open_values.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/split_parameters.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {

using activations::Policy;
using parameters::Home;
using parameters::Sharding;

namespace {

/// Smaller subgroups have transfers so short that their beginnings count, which is not simulated.
constexpr std::int64_t least_subgroup = std::int64_t{8} << 20U;

}  // namespace

std::string node_home_shortage(config::RunConfig const& config, state::ShardMap const& map,
                               Room const& room) {
  Bytes const needed = all_elements(map) * config.numerics.element_bytes();
  return room.shared_memory >= needed
             ? std::string{}
             : fmt::format(
                   "it takes {} of memory that the ranks of a node share (/dev/shm), which "
                   "has {}",
                   format_bytes(needed), format_bytes(room.shared_memory));
}

std::string OpenValues::node_shortage() const {
  bool const may = leaves_home(config_) && map_.ranks() > 1;
  if (!may || parameters::stay_whole(config_.sharding)) {
    return {};
  }
  auto const shortage = node_home_shortage(config_, map_, room_);
  return shortage.empty() ? shortage : "parameters.home=node is left out: " + shortage;
}

std::vector<Home> OpenValues::homes() const {
  if (!leaves_home(config_)) {
    return {config_.parameter_home};
  }
  if (parameters::stay_whole(config_.sharding)) {
    return {Home::device};
  }
  std::vector<Home> homes{Home::device, Home::host};
  if (map_.ranks() > 1 && node_shortage().empty()) {
    homes.push_back(Home::node);
  }
  if (!config_.paths.empty()) {
    homes.push_back(Home::storage);
  }
  return homes;
}

std::vector<Sharding> OpenValues::shardings(Home home) const {
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

std::vector<config::LayerSchedule> OpenValues::schedules() const {
  if (!leaves_schedule(config_)) {
    return {config_.train.schedule};
  }
  auto const rounds = dealt(config_, map_.ranks()).count();
  bool const several = rounds > 1 && rounds <= most_together;
  return several ? std::vector{config::LayerSchedule::horizontal, config::LayerSchedule::vertical}
                 : std::vector{config::LayerSchedule::horizontal};
}

std::vector<Policy> OpenValues::policies(config::LayerSchedule schedule) const {
  Policy const inputs{Policy::Rule::swap, 0.0, !config_.paths.empty()};
  Policy const& given = config_.train.activations;
  bool const vertical = schedule == config::LayerSchedule::vertical;
  if (!leaves_activations(config_)) {
    return vertical && !suits_vertical(given) ? std::vector<Policy>{} : std::vector{given};
  }
  std::vector<Policy> all{{Policy::Rule::recompute}};
  if (vertical) {
    all.push_back(inputs);
    return all;
  }
  all.insert(all.begin(), {Policy::Rule::keep});
  auto const add_parts = [&](Policy policy) {
    for (int parts = 1; parts <= activations::product_parts; ++parts) {
      policy.share = share_of_parts(config_, parts);
      all.push_back(policy);
    }
  };
  if (parts_are_open_) {
    add_parts({Policy::Rule::part});
  }
  all.push_back(inputs);
  add_parts(inputs);
  return all;
}

/// Without storage there are second versions with update.overlap=on alone.
std::vector<config::Switch> OpenValues::overlaps() const {
  using config::Switch;
  if (!leaves_overlap(config_)) {
    return {config_.overlap};
  }
  return {Switch::off, config_.paths.empty() ? Switch::on : Switch::automatic};
}

std::vector<Chosen> OpenValues::other_residents(Candidate const& of, Candidates& candidates) const {
  std::vector<Chosen> others;
  if (!candidates.has_residents()) {
    return others;
  }
  double const here = of.chosen.resident;
  double const most = candidates.most_resident(of);
  for (double const to : {0.0, 0.25 * most, 0.5 * most, 0.75 * most, 0.9 * most, most, here - 0.05,
                          here - 0.02, here + 0.02, here + 0.05}) {
    Chosen chosen = of.chosen;
    chosen.resident = std::clamp(in_percents(to), 0.0, most);
    others.push_back(chosen);
    if (auto const candidate =
            candidates.shares() ? candidates.fit_with_share(chosen) : std::nullopt) {
      others.push_back(candidate->chosen);
    }
  }
  return others;
}

std::vector<Chosen> OpenValues::other_shares(Candidate const& of, Candidates& candidates) const {
  std::vector<Chosen> others;
  double const share = of.chosen.share;
  for (double const to : {0.0, 0.5 * share, 0.8 * share, 0.92 * share, 1.08 * share, 1.2 * share,
                          1.35 * share, 1.5 * share, share - 0.1, share + 0.1, 1.0}) {
    if (candidates.shares()) {
      others.push_back(of.chosen);
      others.back().share = std::clamp(to, 0.0, 1.0);
    }
  }
  return others;
}

std::vector<Chosen> OpenValues::other_overlaps(Candidate const& of,
                                               Candidates& /*candidates*/) const {
  std::vector<Chosen> others;
  for (config::Switch const overlap : overlaps()) {
    others.push_back(of.chosen);
    others.back().overlap = overlap;
  }
  return others;
}

std::vector<Chosen> OpenValues::other_policies(Candidate const& of,
                                               Candidates& /*candidates*/) const {
  std::vector<Chosen> others;
  for (Policy const& policy : policies(of.chosen.schedule)) {
    others.push_back(of.chosen);
    others.back().activations = policy;
  }
  Policy const& here = of.chosen.activations;
  bool const has_share = here.rule == Policy::Rule::part || here.rule == Policy::Rule::swap;
  bool const is_open = parts_are_open_ && leaves_activations(config_) &&
                       of.chosen.schedule == config::LayerSchedule::horizontal;
  for (double const by : {-0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2}) {
    double const share = in_percents(here.share + by);
    if (is_open && has_share && share > 0.0 && share < 1.0) {
      others.push_back(of.chosen);
      others.back().activations.share = share;
    }
  }
  return others;
}

std::vector<Chosen> OpenValues::other_homes(Candidate const& of, Candidates& /*candidates*/) const {
  std::vector<Chosen> others;
  for (Home const home : homes()) {
    for (Sharding const sharding : shardings(home)) {
      others.push_back(of.chosen);
      others.back().home = home;
      others.back().sharding = sharding;
    }
  }
  return others;
}

std::vector<Chosen> OpenValues::other_subgroups(Candidate const& of,
                                                Candidates& /*candidates*/) const {
  std::vector<Chosen> others;
  for (std::int64_t const parts : {2, 4, 8}) {
    std::int64_t const size = round_up(of.memory.subgroup_elements / parts, chunk_elements);
    if (leaves_subgroup(config_) && size >= least_subgroup) {
      others.push_back(of.chosen);
      others.back().subgroup = size;
    }
  }
  return others;
}

std::vector<Chosen> OpenValues::other_splits(Candidate const& of, Candidates& candidates) const {
  using config::Switch;
  if (!leaves_split(config_) || config::may_refer_to_extents(config_)) {
    return {};
  }
  Chosen other = of.chosen;
  other.split = candidates.splits(of) ? Switch::off : Switch::on;
  return {other};
}

std::vector<OpenValues::Neighbours> OpenValues::neighbours() {
  return {&OpenValues::other_residents, &OpenValues::other_overlaps, &OpenValues::other_shares,
          &OpenValues::other_policies,  &OpenValues::other_homes,    &OpenValues::other_subgroups,
          &OpenValues::other_splits};
}

}  // namespace offstage::train
