#include "launch/shortage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace offstage::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// Two ranks of two threads on four CPUs with all that they need.
NodeFigures good_node() {
  NodeFigures node;
  node.host = "node1";
  node.cpus = 4;
  node.ranks = {{.world_rank = 6,
                 .inherited = {0, 1},
                 .inherited_cores = 2,
                 .cpus = {0, 1},
                 .threads = 2,
                 .numa = 0},
                {.world_rank = 7,
                 .inherited = {2, 3},
                 .inherited_cores = 2,
                 .cpus = {2, 3},
                 .threads = 2,
                 .numa = 1}};
  node.memory = {16 * GiB, true};
  node.memory_left = 12 * GiB;
  node.aio_most = 65536;
  node.aio_used = 1024;
  node.storage_numas = {1};
  node.drives = {{"0000:18:00.0", "nvme0n1", 0}, {"0000:58:00.0", "nvme1n1", 1}};
  return node;
}

Needs modest_needs() {
  return {.host_memory = 10 * GiB,
          .allocation = 8 * GiB,
          .aio_requests = 20,
          .storage_paths = {"/nvme1"}};
}

TEST(Shortages, AreNoneWhereTheNodeGrantsAll) {
  EXPECT_THAT(find_shortages(good_node(), modest_needs()), IsEmpty());
}

TEST(Shortages, WarnOfMoreThreadsThanCpus) {
  auto node = good_node();
  node.ranks[1].cpus = {0, 1};
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, AllOf(HasSubstr("4 threads share 2 cores on node1"),
                                   HasSubstr("run.threads"), HasSubstr("--cpus-per-task")));
  EXPECT_FALSE(found[0].ends_with);
}

TEST(Shortages, WarnOfRanksOnOneCpuOfMany) {
  auto node = good_node();
  for (RankFigures& rank : node.ranks) {
    rank.inherited = rank.cpus = {rank.world_rank, rank.world_rank + 32};  // one core's two threads
    rank.inherited_cores = 1;
    rank.threads = 1;
  }
  node.cpus = 64;
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, AllOf(HasSubstr("ranks 6, 7 may use one core of the 64 CPUs of node1"),
                                   HasSubstr("--bind-to none"), HasSubstr("--cpus-per-task")));
  EXPECT_FALSE(found[0].ends_with);
  node.ranks[1].openmp_binds = true;
  EXPECT_THAT(find_shortages(node, modest_needs()).at(0).text,
              AllOf(HasSubstr("unset OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY"),
                    Not(HasSubstr("mpirun"))));
  for (RankFigures& rank : node.ranks) {
    rank.threads_given = true;
  }
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
  node.cpus = 2;  // one CPU each is all there is
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
}

TEST(Shortages, NameManyRanksInALine) {
  auto node = good_node();
  node.cpus = 64;
  node.ranks.clear();
  for (int rank = 0; rank < 20; ++rank) {
    node.ranks.push_back({.world_rank = rank,
                          .inherited = {rank},
                          .inherited_cores = 1,
                          .cpus = {rank},
                          .threads = 1});
  }
  EXPECT_THAT(find_shortages(node, modest_needs()).at(0).text,
              HasSubstr("ranks 0, 1, 2, 3 and 16 more may use"));
}

TEST(Shortages, EndARunThatPlansMoreMemoryThanItsCgroupGrants) {
  auto needs = modest_needs();
  needs.host_memory = 20 * GiB;
  auto const found = find_shortages(good_node(), needs);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text,
              AllOf(HasSubstr("plans 20.0 GiB of memory on node1"), HasSubstr("limit is 16.0 GiB"),
                    HasSubstr("--mem"), HasSubstr("tiers.host-memory")));
  EXPECT_EQ(found[0].ends_with, ExitCode::usage);
  auto node = good_node();
  node.memory.of_job = false;
  EXPECT_THAT(find_shortages(node, needs)[0].text, HasSubstr("the node has 16.0 GiB"));
}

TEST(Shortages, EndARunWhoseRanksMayNotMapTheirPartOfThePlan) {
  auto node = good_node();
  node.ranks[1].address_space = 3 * GiB;
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, AllOf(HasSubstr("rank 7 on node1 may map 3.00 GiB more (ulimit -v)"),
                                   HasSubstr("takes 4.00 GiB"), HasSubstr("tiers.host-memory")));
  EXPECT_EQ(found[0].ends_with, ExitCode::usage);
  node.ranks[1].address_space = 4 * GiB;
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
}

TEST(Shortages, WarnWhereOthersHoldTheMemory) {
  auto node = good_node();
  node.memory_left = 2 * GiB;
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, AllOf(HasSubstr("take 8.00 GiB"), HasSubstr("2.00 GiB is left")));
  EXPECT_FALSE(found[0].ends_with);
}

TEST(Shortages, EndARunWithoutRoomForItsRequests) {
  auto node = good_node();
  node.aio_used = 65536 - 39;
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text,
              AllOf(HasSubstr("2 ranks on node1 want 40 asynchronous I/O requests"),
                    HasSubstr("fs.aio-max-nr=65536"), HasSubstr("fs.aio-nr=65497"),
                    HasSubstr("leaves 39"), HasSubstr("sysctl fs.aio-max-nr=1048576")));
  EXPECT_EQ(found[0].ends_with, ExitCode::io);
  node.aio_used = 65536 - 40;
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
  node.aio_used = -1;
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
}

TEST(Shortages, WarnOfStorageThatNoRankIsNear) {
  auto node = good_node();
  node.ranks[1].numa = 0;
  auto const found = find_shortages(node, modest_needs());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text,
              AllOf(HasSubstr("tiers.path=/nvme1 lies on a drive of NUMA domain 1 of node1"),
                    HasSubstr("all ranks run on domain 0"), HasSubstr("nearer drives: nvme0n1")));
  EXPECT_FALSE(found[0].ends_with);
  node.storage_numas = {-1};
  EXPECT_THAT(find_shortages(node, modest_needs()), IsEmpty());
}

TEST(Shortages, LookAtEveryStoragePath) {
  auto node = good_node();
  node.ranks[1].numa = 0;
  node.storage_numas = {0, 1, -1};
  auto needs = modest_needs();
  needs.storage_paths = {"/nvme0", "/nvme1", "/pfs"};
  auto const found = find_shortages(node, needs);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, HasSubstr("tiers.path=/nvme1 "));
}

}  // namespace
}  // namespace offstage::launch
