#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.hpp"
#include "launch/node_fixture.hpp"

namespace offstage::launch {
namespace {

struct Case {
  topology::Topology node;
  std::vector<RankOnNode> ranks;
};

int pick(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution<int>{least, most}(random);
}

std::vector<int> random_mask(std::mt19937& random, int cpus) {
  std::vector<int> mask;
  int const first = pick(random, 0, cpus - 1);
  int const last = pick(random, first, cpus - 1);
  int const step = pick(random, 1, 3);
  for (int cpu = first; cpu <= last; cpu += step) {
    mask.push_back(cpu);
  }
  return mask;
}

/// 1 to 10 ranks with masks of any kind on a node of 4 domains, 16 CPUs and 0 to 6 GPUs anywhere.
Case random_case(std::mt19937& random, topology::Topology const& node) {
  Case made{node, {}};
  int const gpus = pick(random, 0, 6);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    made.node.gpus.push_back(
        {"0000:0" + std::to_string(gpu) + ":00.0", "gpu", pick(random, -1, 3)});
  }
  int const ranks = pick(random, 1, 10);
  auto const common = random_mask(random, 16);
  for (int rank = 0; rank < ranks; ++rank) {
    auto seen = all_gpus(made.node);
    std::shuffle(seen.begin(), seen.end(), random);
    seen.resize(static_cast<std::size_t>(pick(random, 0, gpus)));
    bool const alone = pick(random, 0, 2) == 0;
    made.ranks.push_back({rank, alone ? random_mask(random, 16) : common, seen});
  }
  return made;
}

/// Whether each rank can have a CPU of its own: the textbook matching.
bool cpus_suffice(std::vector<RankOnNode> const& ranks) {
  std::map<int, std::size_t> holder;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::set<int> tried;
    auto const serve = [&](auto const& self, std::size_t one) -> bool {
      for (int const cpu : ranks[one].allowed_cpus) {
        if (tried.insert(cpu).second && (!holder.contains(cpu) || self(self, holder.at(cpu)))) {
          holder[cpu] = one;
          return true;
        }
      }
      return false;
    };
    if (!serve(serve, rank)) {
      return false;
    }
  }
  return true;
}

void expect_sound_cpus(Case const& one, std::vector<Placement> const& placed) {
  std::map<int, int> users;
  for (std::size_t rank = 0; rank < placed.size(); ++rank) {
    ASSERT_FALSE(placed[rank].cpus.empty());
    EXPECT_TRUE(std::ranges::includes(one.ranks[rank].allowed_cpus, placed[rank].cpus));
    EXPECT_GE(placed[rank].threads, 1);
    for (int const cpu : placed[rank].cpus) {
      ++users[cpu];
    }
  }
  if (cpus_suffice(one.ranks)) {
    EXPECT_TRUE(std::ranges::all_of(users, [](auto const& user) { return user.second == 1; }));
  }
}

void expect_sound_gpus(Case const& one, std::vector<Placement> const& placed) {
  std::set<std::string> used;
  for (std::size_t rank = 0; rank < placed.size(); ++rank) {
    EXPECT_EQ(placed[rank].gpu.has_value(), !one.ranks[rank].gpus.empty());
    if (placed[rank].gpu) {
      EXPECT_TRUE(used.insert(placed[rank].gpu->bus).second) << "two ranks on one GPU";
      EXPECT_TRUE(std::ranges::any_of(one.ranks[rank].gpus, [&](auto const& gpu) {
        return gpu.same_as(*placed[rank].gpu) && gpu.ordinal == placed[rank].gpu->ordinal;
      }));
    }
  }
}

TEST(Placement, StaysInsideMasksAndApartWhereMasksAllowForAnyNode) {
  std::mt19937 random{20240607};
  auto const node = synthetic("pack:2 group:2 [numa] core:2 pu:2");
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    Case const one = random_case(random, node);
    expect_sound_cpus(one, place(one.node, one.ranks, {.share_gpu = true}));
    for (int const threads : {0, 2}) {
      try {
        auto const placed = place(one.node, one.ranks, {.threads = threads});
        expect_sound_cpus(one, placed);
        expect_sound_gpus(one, placed);
      } catch (UsageError const&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 5900);
}

}  // namespace
}  // namespace offstage::launch
