#include "launch/deal.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace offstage::launch {
namespace {

constexpr int nobody = -1;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// What is dealt: CPUs of one core that the same ranks may use, or one of them.
struct Unit {
  std::vector<int> cpus;
  std::vector<int> ranks;  ///< that may use it, as indices into the group
  int numa{-1};
  int holder = nobody;
};

/// Ranks whose masks overlap, directly or through others, and the dealing of their CPUs.
class Group {
 public:
  Group(topology::Topology const& node, std::vector<RankOnNode> const& ranks,
        std::vector<int> const& near, std::vector<int> members);

  /// Gives each rank one unit, then all that is left; false if some rank gets none. Units of shared
  /// masks are not dealt.
  bool deal(bool whole_cores);
  /// Ranks without a unit, and those with the same mask: they use it together.
  void share_masks();
  /// Leaves a rank whose threads fit into its own domain there.
  void narrow(int threads);
  void write(std::vector<std::vector<int>>& parts) const;

 private:
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::vector<int> const& mask(int rank) const {
    return ranks_[at(members_[at(rank)])].allowed_cpus;
  }
  void make_units(bool whole_cores);
  [[nodiscard]] std::optional<int> share_within_domains(int even) const;
  void choose_homes();
  [[nodiscard]] int wanted_home(int rank) const;
  [[nodiscard]] int home_with_room(int wanted, int rank, std::map<int, int> const& reserved) const;
  bool match(int rank, std::vector<bool>& tried);
  void fill();
  [[nodiscard]] int best_free(int rank, bool at_home) const;
  [[nodiscard]] int units_of(int rank, int numa) const;

  topology::Topology const& node_;
  std::vector<RankOnNode> const& ranks_;
  std::vector<int> const& near_;
  std::vector<int> members_;
  std::vector<Unit> units_;                 ///< by domain, then core
  std::vector<std::vector<int>> eligible_;  ///< of each rank, its units
  std::vector<int> share_;                  ///< of each rank, in units
  std::vector<int> home_;                   ///< of each rank, a NUMA domain
  std::vector<bool> shares_mask_;
};

Group::Group(topology::Topology const& node, std::vector<RankOnNode> const& ranks,
             std::vector<int> const& near, std::vector<int> members)
    : node_{node},
      ranks_{ranks},
      near_{near},
      members_{std::move(members)},
      shares_mask_(members_.size(), false) {}

void Group::make_units(bool whole_cores) {
  std::map<int, std::vector<int>> users;  // of each CPU
  for (int rank = 0; rank < size(); ++rank) {
    for (int const cpu : mask(rank)) {
      users[cpu].push_back(rank);
    }
  }
  std::map<int, int> core_of;
  for (std::size_t core = 0; core < node_.cores.size(); ++core) {
    for (int const cpu : node_.cores[core]) {
      core_of[cpu] = static_cast<int>(core);
    }
  }
  // A CPU that the topology does not know is a core of its own, behind the others.
  using Name = std::tuple<int, int, int, std::vector<int>>;  // domain, core, CPU if alone, ranks
  std::map<Name, Unit> named;
  for (auto const& [cpu, ranks] : users) {
    int const numa = topology::numa_of_cpu(node_, cpu);
    auto const known = core_of.find(cpu);
    int const core =
        known != core_of.end() ? known->second : static_cast<int>(node_.cores.size()) + cpu;
    Unit& unit = named[Name{numa, core, whole_cores ? nobody : cpu, ranks}];
    unit.cpus.push_back(cpu);
    unit.ranks = ranks;
    unit.numa = numa;
  }
  units_.clear();
  eligible_.assign(members_.size(), {});
  for (auto& [name, unit] : named) {
    for (int const rank : unit.ranks) {
      eligible_[at(rank)].push_back(static_cast<int>(units_.size()));
    }
    units_.push_back(std::move(unit));
  }
}

/// The GPU's domain, or one in turn: neighbouring ranks of one mask get neighbouring cores.
int Group::wanted_home(int rank) const {
  auto const& units = eligible_[at(rank)];
  int const near = near_[at(members_[at(rank)])];
  if (near >= 0) {
    auto const nearest = std::ranges::min_element(units, {}, [&](int unit) {
      return topology::distance(node_, units_[at(unit)].numa, near);
    });
    return units_[at(*nearest)].numa;
  }
  int before = 0;
  int alike = 0;
  for (int other = 0; other < size(); ++other) {
    if (mask(other) == mask(rank)) {
      before += other < rank ? 1 : 0;
      ++alike;
    }
  }
  auto const position =
      static_cast<std::size_t>(before) * units.size() / static_cast<std::size_t>(alike);
  return units_[at(units[position])].numa;
}

int Group::home_with_room(int wanted, int rank, std::map<int, int> const& reserved) const {
  std::map<int, int> room;
  for (int const unit : eligible_[at(rank)]) {
    ++room[units_[at(unit)].numa];
  }
  int best = wanted;
  auto best_rating = std::pair{4, 0};  // farther than anything
  for (auto const& [numa, units] : room) {
    auto const all = std::ranges::count(units_, numa, &Unit::numa);
    auto const found = reserved.find(numa);
    auto const left = all - (found == reserved.end() ? 0 : found->second);
    auto const rating = std::pair{numa == wanted ? -1 : topology::distance(node_, numa, wanted), 0};
    if (std::min<std::ptrdiff_t>(units, left) >= share_[at(rank)] && rating < best_rating) {
      best = numa;
      best_rating = rating;
    }
  }
  return best;
}

/// The largest share, of which domains hold whole ones for all ranks; nothing if that is none, or
/// more than a fifth below `even`, or if ranks have different masks.
std::optional<int> Group::share_within_domains(int even) const {
  std::map<int, int> room;
  for (Unit const& unit : units_) {
    ++room[unit.numa];
    if (std::ssize(unit.ranks) != size()) {
      return std::nullopt;
    }
  }
  for (int share = even; share > 0 && 5 * share >= 4 * even; --share) {
    int ranks = 0;
    for (auto const& [numa, units] : room) {
      ranks += units / share;
    }
    if (ranks >= size()) {
      return share;
    }
  }
  return std::nullopt;
}

void Group::choose_homes() {
  share_.clear();
  home_.clear();
  std::map<int, int> reserved;
  auto const within = share_within_domains(static_cast<int>(std::ssize(units_)) / size());
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<bool> meets(members_.size(), false);
    for (int const unit : eligible_[at(rank)]) {
      for (int const other : units_[at(unit)].ranks) {
        meets[at(other)] = true;
      }
    }
    auto const sharing = std::ranges::count(meets, true);
    auto const even = std::ssize(eligible_[at(rank)]) / static_cast<std::ptrdiff_t>(sharing);
    share_.push_back(within.value_or(std::max(1, static_cast<int>(even))));
    home_.push_back(home_with_room(wanted_home(rank), rank, reserved));
    reserved[home_.back()] += share_.back();
  }
}

/// The best unit that nobody holds, or nobody's: near the rank's home, in a domain where it holds
/// some already or else nobody does, of use to few others, low.
int Group::best_free(int rank, bool at_home) const {
  int best = nobody;
  constexpr int mine = 0;
  constexpr int of_nobody = 1;
  constexpr int of_others = 2;
  std::map<int, int> taken;  // each domain
  for (Unit const& unit : units_) {
    auto const& [numa, whose] = *taken.try_emplace(unit.numa, of_nobody).first;
    if (unit.holder == rank) {
      taken[numa] = mine;
    } else if (unit.holder != nobody && whose != mine) {
      taken[numa] = of_others;
    }
  }
  auto const rating = [&](int unit) {
    int const numa = units_[at(unit)].numa;
    int const far = numa == home_[at(rank)] ? -1 : topology::distance(node_, numa, home_[at(rank)]);
    return std::tuple{far, taken.at(numa), units_[at(unit)].ranks.size(), unit};
  };
  for (int const unit : eligible_[at(rank)]) {
    if (units_[at(unit)].holder != nobody ||
        (at_home && units_[at(unit)].numa != home_[at(rank)])) {
      continue;
    }
    if (best == nobody || rating(unit) < rating(best)) {
      best = unit;
    }
  }
  return best;
}

/// One unit for `rank`, moving others to another one where that is the only way.
bool Group::match(int rank, std::vector<bool>& tried) {
  if (int const free = best_free(rank, false); free != nobody) {
    units_[at(free)].holder = rank;
    return true;
  }
  for (int const unit : eligible_[at(rank)]) {
    if (!tried[at(unit)] && !shares_mask_[at(units_[at(unit)].holder)]) {
      tried[at(unit)] = true;
      if (match(units_[at(unit)].holder, tried)) {
        units_[at(unit)].holder = rank;
        return true;
      }
    }
  }
  return false;
}

int Group::units_of(int rank, int numa) const {
  return static_cast<int>(std::ranges::count_if(
      units_, [&](Unit const& unit) { return unit.holder == rank && unit.numa == numa; }));
}

/// Deals what is left, one unit at a time to the rank with the fewest. Beyond its share a rank that
/// has a domain to itself stays there.
void Group::fill() {
  std::vector<int> held(members_.size(), 0);
  std::vector<bool> abroad(members_.size(), false);
  for (Unit const& unit : units_) {
    if (unit.holder != nobody) {
      ++held[at(unit.holder)];
      abroad[at(unit.holder)] = abroad[at(unit.holder)] || unit.numa != home_[at(unit.holder)];
    }
  }
  std::vector<bool> done = shares_mask_;
  while (true) {
    int next = nobody;
    for (int rank = 0; rank < size(); ++rank) {
      if (!done[at(rank)] && (next == nobody || held[at(rank)] < held[at(next)])) {
        next = rank;
      }
    }
    if (next == nobody) {
      return;
    }
    bool const stays = held[at(next)] >= share_[at(next)] && !abroad[at(next)];
    int const unit = best_free(next, stays);
    if (unit == nobody) {
      done[at(next)] = true;
      continue;
    }
    units_[at(unit)].holder = next;
    ++held[at(next)];
    abroad[at(next)] = abroad[at(next)] || units_[at(unit)].numa != home_[at(next)];
  }
}

bool Group::deal(bool whole_cores) {
  make_units(whole_cores);
  choose_homes();
  for (Unit& unit : units_) {
    auto const sharer =
        std::ranges::find_if(unit.ranks, [&](int rank) { return shares_mask_[at(rank)]; });
    unit.holder = sharer != unit.ranks.end() ? *sharer : nobody;
  }
  bool served = true;
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<bool> tried(units_.size(), false);
    if (!shares_mask_[at(rank)]) {
      served = match(rank, tried) && served;
    }
  }
  if (served) {
    fill();
  }
  return served;
}

void Group::share_masks() {
  for (int rank = 0; rank < size(); ++rank) {
    if (std::ranges::count(units_, rank, &Unit::holder) > 0) {
      continue;
    }
    for (int other = 0; other < size(); ++other) {
      shares_mask_[at(other)] = shares_mask_[at(other)] || mask(other) == mask(rank);
    }
  }
}

void Group::narrow(int threads) {
  for (int rank = 0; rank < size() && threads > 0; ++rank) {
    if (shares_mask_[at(rank)] || units_of(rank, home_[at(rank)]) < threads) {
      continue;
    }
    for (Unit& unit : units_) {
      if (unit.holder == rank && unit.numa != home_[at(rank)]) {
        unit.holder = nobody;
      }
    }
  }
}

void Group::write(std::vector<std::vector<int>>& parts) const {
  for (int rank = 0; rank < size(); ++rank) {
    auto& part = parts[at(members_[at(rank)])];
    if (shares_mask_[at(rank)]) {
      part = mask(rank);
      continue;
    }
    for (Unit const& unit : units_) {
      if (unit.holder == rank) {
        part.insert(part.end(), unit.cpus.begin(), unit.cpus.end());
      }
    }
    std::ranges::sort(part);
  }
}

/// Ranks whose masks overlap, directly or through others, in order of their first.
std::vector<std::vector<int>> groups_of(std::vector<RankOnNode> const& ranks) {
  std::vector<int> label(ranks.size());
  std::map<int, int> first_user;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    label[rank] = static_cast<int>(rank);
    for (int const cpu : ranks[rank].allowed_cpus) {
      auto const [user, is_first] = first_user.try_emplace(cpu, static_cast<int>(rank));
      int const from = std::max(label[rank], label[at(user->second)]);
      int const to = std::min(label[rank], label[at(user->second)]);
      if (from != to) {
        std::ranges::replace(label, from, to);
      }
    }
  }
  std::map<int, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    groups[label[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> list;
  list.reserve(groups.size());
  for (auto& [first, members] : groups) {
    list.push_back(std::move(members));
  }
  return list;
}

}  // namespace

std::vector<std::vector<int>> deal_cpus(topology::Topology const& node,
                                        std::vector<RankOnNode> const& ranks,
                                        std::vector<int> const& near, int threads) {
  std::vector<std::vector<int>> parts(ranks.size());
  for (std::vector<int> const& members : groups_of(ranks)) {
    Group group{node, ranks, near, members};
    bool served = group.deal(true) || group.deal(false);
    while (!served) {
      group.share_masks();  // of at least one rank more
      served = group.deal(false);
    }
    group.narrow(threads);
    group.write(parts);
  }
  return parts;
}

}  // namespace offstage::launch
