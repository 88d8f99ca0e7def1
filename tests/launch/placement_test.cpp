#include "launch/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.hpp"
#include "launch/deal.hpp"
#include "launch/node_fixture.hpp"

namespace offstage::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Cpus = std::vector<int>;

std::vector<Cpus> cpus_of(std::vector<Placement> const& placements) {
  std::vector<Cpus> cpus;
  for (Placement const& one : placements) {
    cpus.push_back(one.cpus);
  }
  return cpus;
}
std::vector<int> numa_of(std::vector<Placement> const& placements) {
  std::vector<int> numa;
  for (Placement const& one : placements) {
    numa.push_back(one.numa);
  }
  return numa;
}
std::vector<int> gpus_of(std::vector<Placement> const& placements) {
  std::vector<int> gpus;
  for (Placement const& one : placements) {
    gpus.push_back(one.gpu ? one.gpu->ordinal : -1);
  }
  return gpus;
}
std::vector<int> gpu_ranks_of(std::vector<Placement> const& placements) {
  std::vector<int> ranks;
  for (Placement const& one : placements) {
    ranks.push_back(one.gpu_ranks);
  }
  return ranks;
}
std::vector<int> threads_of(std::vector<Placement> const& placements) {
  std::vector<int> threads;
  for (Placement const& one : placements) {
    threads.push_back(one.threads);
  }
  return threads;
}

TEST(Placement, GivesEachOfFourUnboundRanksAGpuAndTheCoresBesideIt) {
  auto const node = topology_in("two_socket_4gpu.xml");
  auto const placed = place(node, alike(4, range(0, 7), all_gpus(node)), {});
  EXPECT_THAT(gpus_of(placed), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numa_of(placed), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(threads_of(placed), ElementsAre(2, 2, 2, 2));
  for (std::size_t rank = 0; rank < placed.size(); ++rank) {
    EXPECT_EQ(placed[rank].cpus.size(), 2U);
    EXPECT_EQ(topology::numa_of_cpu(node, placed[rank].cpus[0]), placed[rank].numa);
  }
}

TEST(Placement, FollowsGpusThatAreNumberedAgainstTheNumaOrder) {
  auto const node = topology_in("gpus_against_numa.xml");
  auto const placed = place(node, alike(4, range(0, 7), all_gpus(node)), {});
  EXPECT_THAT(gpus_of(placed), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numa_of(placed), ElementsAre(1, 1, 0, 0));
  EXPECT_GE(placed[0].cpus[0], 4);
  EXPECT_LT(placed[3].cpus[0], 4);
}

TEST(Placement, SpreadsTwoUnboundRanksOverBothSockets) {
  for (char const* file : {"two_socket_4gpu.xml", "gpus_against_numa.xml"}) {
    auto const node = topology_in(file);
    auto const placed = place(node, alike(2, range(0, 7), all_gpus(node)), {});
    EXPECT_THAT(gpus_of(placed), ElementsAre(0, 2)) << file;
    EXPECT_EQ(placed[0].cpus.size(), 4U);
    EXPECT_EQ(placed[1].cpus.size(), 4U);
    EXPECT_EQ(placed[0].numa, node.gpus[0].numa);
    EXPECT_EQ(placed[1].numa, node.gpus[2].numa);
  }
}

TEST(Placement, LetsOneRankUseTheWholeNodeBesideItsGpu) {
  auto const node = topology_in("gpus_against_numa.xml");
  auto const placed = place(node, alike(1, range(0, 7), all_gpus(node)), {});
  EXPECT_EQ(placed[0].gpu->ordinal, 0);
  EXPECT_EQ(placed[0].cpus, range(0, 7));
  EXPECT_EQ(placed[0].numa, -1) << "its memory is that of both domains, as its cores are";
  EXPECT_EQ(placed[0].threads, 8);
}

TEST(Placement, HasNoMoreThreadsThanAQuotaHasTimeFor) {
  auto const node = topology_in("gpus_against_numa.xml");
  auto const threads = [&](double quota, int ranks, int given) {
    return threads_of(
        place(node, alike(ranks, range(0, 7), {}), {.threads = given, .quota = quota}));
  };
  EXPECT_THAT(threads(3.0, 1, 0), ElementsAre(3));
  EXPECT_THAT(threads(1.5, 1, 0), ElementsAre(2));
  EXPECT_THAT(threads(0.2, 1, 0), ElementsAre(1));
  EXPECT_THAT(threads(4.0, 2, 0), ElementsAre(2, 2));
  EXPECT_THAT(threads(64.0, 2, 0), ElementsAre(4, 4));
  EXPECT_THAT(threads(1.0, 1, 5), ElementsAre(5)) << "run.threads counts";
}

TEST(Placement, KeepsFewThreadsInTheGpusDomain) {
  auto const node = topology_in("gpus_against_numa.xml");
  auto const few = place(node, alike(1, range(0, 7), all_gpus(node)), {.threads = 3});
  EXPECT_EQ(few[0].cpus, range(4, 7));
  EXPECT_EQ(few[0].threads, 3);
  auto const as_many = place(node, alike(1, range(0, 7), all_gpus(node)), {.threads = 4});
  EXPECT_EQ(as_many[0].cpus, range(4, 7));
  auto const many = place(node, alike(1, range(0, 7), all_gpus(node)), {.threads = 5});
  EXPECT_EQ(many[0].cpus, range(0, 7));
}

TEST(Placement, GivesDisjointMasksTheNearestGpus) {
  auto const node = topology_in("gpus_against_numa.xml");
  auto const gpus = all_gpus(node);
  std::vector<RankOnNode> const ranks{
      {0, {0, 1}, gpus}, {1, {2, 3}, gpus}, {2, {4, 5}, gpus}, {3, {6, 7}, gpus}};
  auto const placed = place(node, ranks, {});
  EXPECT_THAT(numa_of(placed), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(gpus_of(placed), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(cpus_of(placed), ElementsAre(Cpus{0, 1}, Cpus{2, 3}, Cpus{4, 5}, Cpus{6, 7}));
}

TEST(Placement, TakesAFarGpuBeforeASecondRankOnANearOne) {
  auto const node = topology_in("two_socket_4gpu.xml");
  auto const gpus = all_gpus(node);
  // The others see the near GPUs alone, so the first must move away.
  std::vector<RankOnNode> const ranks{
      {0, {0}, gpus}, {1, {1}, {gpus[0], gpus[1]}}, {2, {2}, {gpus[0], gpus[1]}}};
  auto const placed = place(node, ranks, {});
  EXPECT_EQ(placed[0].gpu->ordinal, 2);
}

TEST(Placement, TakesTheOneGpuThatEachRankSees) {
  auto const node = topology_in("gpus_against_numa.xml");
  std::vector<RankOnNode> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back({rank, range(0, 7), only_gpu(node, 3 - rank)});
  }
  auto const placed = place(node, ranks, {});
  EXPECT_THAT(gpus_of(placed), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(placed[0].gpu->bus, node.gpus[3].bus);
  EXPECT_EQ(placed[3].gpu->bus, node.gpus[0].bus);
  EXPECT_THAT(numa_of(placed), ElementsAre(0, 0, 1, 1));
}

TEST(Placement, RefusesTwoRanksOnOneGpuByName) {
  auto const node = topology_in("two_socket_4gpu.xml");
  std::vector<RankOnNode> const ranks{{8, range(0, 7), only_gpu(node, 2)},
                                      {9, range(0, 7), only_gpu(node, 1)},
                                      {10, range(0, 7), only_gpu(node, 2)}};
  try {
    static_cast<void>(place(node, ranks, {}));
    FAIL() << "must throw";
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("ranks 8 and 10 would both use GPU 0000:51:00.0"),
                      HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("device.share-gpu=true")));
  }
}

TEST(Placement, TellsSlicesOfOneGpuApart) {
  auto const node = topology_in("two_socket_4gpu.xml");
  std::string const bus = node.gpus[0].bus;
  std::vector<RankOnNode> ranks{{0, range(0, 7), {{0, bus, "MIG 1g", "aa"}}},
                                {1, range(0, 7), {{0, bus, "MIG 1g", "bb"}}}};
  EXPECT_EQ(place(node, ranks, {})[1].gpu->uuid, "bb");
  ranks[1].gpus[0].uuid = "aa";
  EXPECT_THROW(static_cast<void>(place(node, ranks, {})), UsageError);
}

TEST(Placement, RefusesMoreRanksThanGpusUnlessTheyMayShare) {
  auto const node = topology_in("two_socket_4gpu.xml");
  auto const ranks = alike(6, range(0, 7), all_gpus(node));
  EXPECT_THROW(static_cast<void>(place(node, ranks, {})), UsageError);
  auto const placed = place(node, ranks, {.share_gpu = true});
  EXPECT_THAT(gpus_of(placed), ElementsAre(0, 0, 1, 2, 2, 3));
  EXPECT_THAT(gpu_ranks_of(placed), ElementsAre(2, 2, 1, 2, 2, 1));
  auto const twice = place(node, alike(8, range(0, 7), all_gpus(node)), {.share_gpu = true});
  EXPECT_THAT(gpus_of(twice), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(gpu_ranks_of(place(node, alike(1, range(0, 7), {}), {})), ElementsAre(0));
  EXPECT_THAT(numa_of(twice), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

TEST(Placement, TakesGpusOfAFullDomainFromTheOtherOne) {
  auto node = topology_in("two_socket_4gpu.xml");
  for (auto& gpu : node.gpus) {
    gpu.numa = 0;
  }
  auto const placed = place(node, alike(4, range(0, 7), all_gpus(node)), {});
  EXPECT_THAT(numa_of(placed), ElementsAre(0, 0, 1, 1));  // two cores each, none split
}

TEST(Placement, DealsCoresInTurnWithoutGpus) {
  auto const node = synthetic("pack:2 [numa] core:4 pu:1");
  EXPECT_THAT(cpus_of(place(node, alike(4, range(0, 7), {}), {})),
              ElementsAre(Cpus{0, 2}, Cpus{1, 3}, Cpus{4, 6}, Cpus{5, 7}));
  EXPECT_THAT(cpus_of(place(node, alike(3, range(0, 7), {}), {})),
              ElementsAre(Cpus{0, 2}, Cpus{1, 3}, Cpus{4, 5, 6, 7}));
  auto const one = place(node, alike(1, range(0, 7), {}), {});
  EXPECT_EQ(one[0].cpus, range(0, 7));
  EXPECT_EQ(one[0].numa, -1);
}

TEST(Placement, KeepsFewRanksOnSocketsOfSeveralDomains) {
  auto const node = synthetic("pack:2 group:2 [numa] core:2 pu:1");
  ASSERT_EQ(node.numa.size(), 4U);
  EXPECT_THAT(cpus_of(place(node, alike(2, range(0, 7), {}), {})),
              ElementsAre(range(0, 3), range(4, 7)));
}

/// The domains that a rank's CPUs lie in, ascending.
std::set<int> domains_of(topology::Topology const& node, Placement const& placed) {
  std::set<int> domains;
  for (int const cpu : placed.cpus) {
    domains.insert(topology::numa_of_cpu(node, cpu));
  }
  return domains;
}

TEST(Placement, GivesWholeDomainsToFewRanks) {
  auto node = synthetic("pack:2 group:4 [numa] core:6 pu:2");
  ASSERT_EQ(node.numa.size(), 8U);
  int number = 0;
  for (int const numa : {3, 1, 7, 5}) {  // as on a JUWELS Booster node
    node.gpus.push_back({"0000:0" + std::to_string(++number) + ":00.0", "gpu", numa});
  }
  auto const placed = place(node, alike(4, range(0, 95), all_gpus(node)), {});
  EXPECT_THAT(threads_of(placed), ElementsAre(12, 12, 12, 12));
  std::set<int> all;
  for (std::size_t rank = 0; rank < placed.size(); ++rank) {
    auto const domains = domains_of(node, placed[rank]);
    EXPECT_EQ(domains.size(), 2U) << rank;
    EXPECT_TRUE(domains.contains(node.gpus[rank].numa)) << rank;
    EXPECT_EQ(placed[rank].numa, -1) << rank;
    all.insert(domains.begin(), domains.end());
  }
  EXPECT_EQ(all.size(), 8U);
}

TEST(Placement, StaysWithinDomainsForAFifthFewerCores) {
  auto const node = synthetic("pack:1 group:4 [numa] core:16 pu:1");
  auto const seven = place(node, alike(7, range(0, 63), {}), {});  // 9 cores each, evenly
  EXPECT_THAT(threads_of(seven), ElementsAre(8, 8, 8, 8, 8, 8, 16));
  for (Placement const& placed : seven) {
    EXPECT_EQ(domains_of(node, placed).size(), 1U);
    EXPECT_GE(placed.numa, 0);
  }
  auto const three = place(node, alike(3, range(0, 63), {}), {});  // 21 evenly, 16 in domains
  EXPECT_THAT(threads_of(three), ElementsAre(22, 21, 21));
}

TEST(Placement, DealsTwoRanksOnTwoCoresOneEach) {
  auto const node = synthetic("core:2 pu:1");
  auto const placed = place(node, alike(2, {0, 1}, {}), {});
  EXPECT_THAT(cpus_of(placed), ElementsAre(Cpus{0}, Cpus{1}));
  EXPECT_THAT(numa_of(placed), ElementsAre(0, 0));
  EXPECT_THAT(gpus_of(placed), ElementsAre(-1, -1));
}

TEST(Placement, LetsMoreRanksThanCpusShareTheirMask) {
  auto const node = synthetic("core:2 pu:1");
  auto const placed = place(node, alike(4, {0, 1}, {}), {});
  EXPECT_THAT(cpus_of(placed), ElementsAre(Cpus{0, 1}, Cpus{0, 1}, Cpus{0, 1}, Cpus{0, 1}));
  EXPECT_THAT(threads_of(placed), ElementsAre(1, 1, 1, 1));
}

TEST(Placement, SharesOnlyTheMaskThatIsTooSmall) {
  auto const node = synthetic("core:4 pu:1");
  std::vector<RankOnNode> const ranks{{0, {0}, {}}, {1, {0}, {}}, {2, range(0, 3), {}}};
  EXPECT_THAT(cpus_of(place(node, ranks, {})), ElementsAre(Cpus{0}, Cpus{0}, Cpus{1, 2, 3}));
}

TEST(Placement, DividesMasksThatOverlapInPart) {
  auto const node = synthetic("core:6 pu:1");
  std::vector<RankOnNode> const ranks{{0, range(0, 3), {}}, {1, range(2, 5), {}}};
  EXPECT_THAT(cpus_of(place(node, ranks, {})), ElementsAre(Cpus{0, 1, 2}, Cpus{3, 4, 5}));
  std::vector<RankOnNode> const chain{{0, {0, 1}, {}}, {1, {1, 2}, {}}, {2, {0}, {}}};
  EXPECT_THAT(cpus_of(place(node, chain, {})), ElementsAre(Cpus{1}, Cpus{2}, Cpus{0}));
}

TEST(Placement, DealsWholeCoresWhileThereAreEnough) {
  auto const node = synthetic("core:4 pu:2");  // siblings 0 1, 2 3, 4 5, 6 7
  auto const placed = place(node, alike(4, range(0, 7), {}), {});
  EXPECT_THAT(cpus_of(placed), ElementsAre(Cpus{0, 1}, Cpus{2, 3}, Cpus{4, 5}, Cpus{6, 7}));
  EXPECT_THAT(threads_of(placed), ElementsAre(1, 1, 1, 1));
  auto const more = place(node, alike(8, range(0, 7), {}), {});
  for (Placement const& one : more) {
    EXPECT_EQ(one.cpus.size(), 1U);
  }
}

TEST(Placement, LeavesHalvesOfACoreToTheMasksThatNameThem) {
  auto const node = synthetic("core:1 pu:2");
  std::vector<RankOnNode> const ranks{{0, {0}, {}}, {1, {1}, {}}};
  EXPECT_THAT(cpus_of(place(node, ranks, {})), ElementsAre(Cpus{0}, Cpus{1}));
}

TEST(Placement, PlacesOnCpusThatTheTopologyDoesNotKnow) {
  auto const node = synthetic("core:2 pu:1");
  auto const placed = place(node, alike(2, {100, 200}, {}), {});
  EXPECT_THAT(cpus_of(placed), ElementsAre(Cpus{100}, Cpus{200}));
  EXPECT_THAT(numa_of(placed), ElementsAre(-1, -1));
}

TEST(Placement, TellsALostGpuFromTooManyRanks) {
  auto const node = synthetic("core:2 pu:1");
  auto const all_see = [&](std::string const& name, int given, int count = 2) {
    auto ranks = alike(count, {0, 1}, {{0, "0000:17:00.0", name}});
    for (RankOnNode& rank : ranks) {
      rank.given_gpus = given;
    }
    return ranks;
  };
  EXPECT_THAT(
      [&] { static_cast<void>(place(node, all_see("NVIDIA A100", 2), {})); },
      ThrowsMessage<IoError>(HasSubstr("Slurm gave 2 GPUs of their node, and CUDA shows 1")));
  EXPECT_THROW(static_cast<void>(place(node, all_see("NVIDIA A100", 1), {})), UsageError);
  EXPECT_THROW(static_cast<void>(place(node, all_see("NVIDIA A100", 2, 3), {})), UsageError)
      << "three would be too many for both";
  // Slurm counts slices, of which a process sees one.
  EXPECT_THROW(static_cast<void>(place(node, all_see("NVIDIA A100 MIG 1g.5gb", 2), {})),
               UsageError);
}

TEST(Placement, LeavesOutGpusThatCannotComputeIfOthersCan) {
  topology::VisibleGpu const display{0, "0000:01:00.0", "NVIDIA T400", "", 7};
  topology::VisibleGpu const good{1, "0000:02:00.0", "NVIDIA RTX A6000", "", 8};
  topology::VisibleGpu const unknown{2, "0000:03:00.0", "described"};
  auto const names = [](std::vector<topology::VisibleGpu> const& gpus) {
    std::vector<std::string> all;
    for (topology::VisibleGpu const& gpu : gpus) {
      all.push_back(gpu.name);
    }
    return all;
  };
  EXPECT_THAT(names(fit_gpus({display, good})), ElementsAre("NVIDIA RTX A6000"));
  EXPECT_THAT(names(fit_gpus({display, unknown})), ElementsAre("described"));
  EXPECT_THAT(names(fit_gpus({display})), ElementsAre("NVIDIA T400"));  // which is refused by name
}

TEST(Placement, WantsMasksThatHoldACpu) {
  auto const node = synthetic("core:2 pu:1");
  EXPECT_THROW(static_cast<void>(place(node, alike(1, {}, {}), {})), PreconditionError);
  EXPECT_TRUE(place(node, {}, {}).empty());
}

}  // namespace
}  // namespace offstage::launch
