// Under mpirun: ranks of one node, with masks that each rank narrows before it takes its place.
#include "launch/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "launch/node_fixture.hpp"
#include "platform/cpu/affinity.hpp"

namespace offstage::launch {
namespace {

using testing::HasSubstr;

/// Runs `work`, and gives this thread back the CPUs that it had.
template <class Work>
void apart(Work const& work) {
  cpu_set_t inherited;
  ASSERT_EQ(sched_getaffinity(0, sizeof inherited, &inherited), 0);
  work();
  ASSERT_EQ(sched_setaffinity(0, sizeof inherited, &inherited), 0);
}

TEST(TakePlace, BindsEachRankInsideTheInheritedMask) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const inherited = cpu::allowed_cpus();
    auto const place = take_place(comm, {});
    EXPECT_EQ(place.inherited, inherited);
    EXPECT_TRUE(place.bound);
    EXPECT_EQ(cpu::allowed_cpus(), place.placement.cpus);
    EXPECT_TRUE(std::ranges::includes(inherited, place.placement.cpus));
    EXPECT_EQ(place.local_ranks, comm.size());
    EXPECT_EQ(place.local_rank, comm.rank());
    EXPECT_EQ(place.host, cpu::host_name());
    EXPECT_GE(place.threads, 1);

    auto const firsts = comm.all_gather_value(place.placement.cpus.front());
    auto const masks = comm.all_gather_value(place.placement.cpus.size());
    bool const apart_enough = inherited.size() >= static_cast<std::size_t>(comm.size());
    if (apart_enough && masks.front() == 1) {
      EXPECT_EQ(std::set<int>(firsts.begin(), firsts.end()).size(), firsts.size());
    }
  });
}

TEST(TakePlace, StaysOnTheOneCpuThatItMayUse) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    int const only = cpu::allowed_cpus().back();
    ASSERT_TRUE(topology::bind_thread({only}));
    auto const place = take_place(comm, {});
    EXPECT_EQ(place.placement.cpus, std::vector<int>{only});
    EXPECT_EQ(cpu::allowed_cpus(), std::vector<int>{only});
    EXPECT_EQ(place.threads, 1);
  });
}

TEST(TakePlace, RunsAsManyThreadsAsAskedFor) {
  apart([] {
    auto const place = take_place(mpi::Communicator::world(), {.threads = 3});
    EXPECT_EQ(place.threads, 3);
    EXPECT_TRUE(place.threads_given);
  });
}

TEST(TakePlace, RehearsesAnotherNodeWithoutBinding) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const inherited = cpu::allowed_cpus();
    setenv("HWLOC_XMLFILE", OFFSTAGE_TOPOLOGIES "/gpus_against_numa.xml", 1);
    auto const place = take_place(comm, {});
    unsetenv("HWLOC_XMLFILE");
    EXPECT_FALSE(place.bound);
    EXPECT_EQ(cpu::allowed_cpus(), inherited);
    EXPECT_LE(place.threads, static_cast<int>(inherited.size()));
    ASSERT_TRUE(place.placement.gpu);
    int const number = comm.size() == 2 ? 2 * comm.rank() : comm.rank();
    EXPECT_EQ(place.placement.gpu->ordinal, number);
    int const numa = number < 2 ? 1 : 0;
    EXPECT_EQ(place.placement.numa, comm.size() == 1 ? -1 : numa);  // one rank has both domains
  });
}

TEST(TakePlace, LeavesAPolicyForMemoryAsItWas) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const set = [](int mode, unsigned long nodes) {
      ASSERT_EQ(syscall(SYS_set_mempolicy, mode, nodes == 0 ? nullptr : &nodes, 64), 0);
    };
    set(MPOL_DEFAULT, 0);
    EXPECT_FALSE(take_place(comm, {}).memory_given);
    set(MPOL_INTERLEAVE, 1);  // as numactl --interleave=0
    EXPECT_TRUE(take_place(comm, {}).memory_given);
    int mode{};
    ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0), 0);
    EXPECT_EQ(mode, MPOL_INTERLEAVE);
    set(MPOL_DEFAULT, 0);
  });
}

TEST(TakePlace, RefusesTwoRanksOnOneGpuOnAllRanks) {
  auto const comm = mpi::Communicator::world();
  auto const rehearse = [&](bool share) {
    setenv("HWLOC_XMLFILE", OFFSTAGE_TOPOLOGIES "/one_gpu.xml", 1);
    auto const place = take_place(comm, {.share_gpu = share});
    unsetenv("HWLOC_XMLFILE");
    return place;
  };
  apart([&] { EXPECT_TRUE(rehearse(true).placement.gpu); });
  apart([&] {
    if (comm.size() == 1) {
      EXPECT_TRUE(rehearse(false).placement.gpu);
      return;
    }
    try {
      static_cast<void>(rehearse(false));
      ADD_FAILURE() << "must throw";
    } catch (mpi::AgreedError const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 1 would both use GPU 0000:11:00.0"));
    }
    unsetenv("HWLOC_XMLFILE");
  });
}

TEST(Shortages, AreGatheredFromAllRanksOfTheNode) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const place = take_place(comm, {.threads = 100});
    Needs needs;
    needs.host_memory = Bytes{1} << 55;
    auto const found = shortages(comm.split_by_node(), place, needs);
    ASSERT_GE(found.size(), 2U);
    EXPECT_THAT(found[0].text, HasSubstr(std::to_string(100 * comm.size()) + " threads share"));
    EXPECT_THAT(found[1].text, HasSubstr("the run plans 32.0 PiB"));
    EXPECT_EQ(found[1].ends_with, ExitCode::usage);
  });
}

// Tasks of one node may have cgroups and grants of their own.
TEST(Shortages, GoByTheTaskThatMayTakeTheLeastMemory) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const place = take_place(comm, {});
    Needs needs;
    needs.host_memory = 2 * GiB;
    bool const last = comm.rank() + 1 == comm.size();
    if (last) {
      setenv("SLURM_MEM_PER_NODE", "1024", 1);  // MiB
    }
    auto const found = shortages(comm.split_by_node(), place, needs);
    if (last) {
      unsetenv("SLURM_MEM_PER_NODE");
    }
    EXPECT_TRUE(std::ranges::any_of(found,
                                    [](Shortage const& each) {
                                      return each.text.find("the job's limit is 1.00 GiB") !=
                                             std::string::npos;
                                    }))
        << "on rank " << comm.rank();
  });
}

TEST(Shortages, AreNoneForARunThatNeedsNothing) {
  apart([] {
    auto const comm = mpi::Communicator::world();
    auto const place = take_place(comm, {});
    Needs needs;
    needs.storage_paths = {"/"};
    auto const found = shortages(comm.split_by_node(), place, needs);
    if (static_cast<int>(place.inherited.size()) >= comm.size()) {
      EXPECT_TRUE(found.empty()) << found.front().text;
    }
  });
}

}  // namespace
}  // namespace offstage::launch
