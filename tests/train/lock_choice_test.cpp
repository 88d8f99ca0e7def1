#include "train/offload/lock_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "platform/mpi/shared_window.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LockChoice, TurnsPayUnlessAllAtOnceMoveMore) {
  EXPECT_TRUE(turns_pay(2e9, 1e9));
  EXPECT_TRUE(turns_pay(2e9, 2e9)) << "transfers are shorter";
  EXPECT_FALSE(turns_pay(1.9e9, 2e9));
}

TEST(LockChoice, IsDescribedWithBothFigures) {
  EXPECT_EQ(describe({.exclusive = true, .in_turn = 2.12e9, .at_once = 1.96e9}),
            "processes take turns (2.12 GB/s, 1.96 GB/s all at once)");
  EXPECT_EQ(describe({.exclusive = false, .in_turn = 43e6, .at_once = 2e9}),
            "processes all at once (2.00 GB/s, 43.0 MB/s in turn)");
  EXPECT_EQ(describe({.exclusive = true}), "");
  EXPECT_EQ(describe({.exclusive = true, .problem = "no space"}),
            "processes take turns (not tried: no space)");
}

/// All ranks of one node on paths of one directory, each with a spill name of its own.
class Locks : public ::testing::Test {
 protected:
  Locks() {
    // All ranks see the first one's directory.
    std::string const path = comm.broadcast(comm.rank() == 0 ? own.path() : std::string{}, 0);
    tiers::PathSettings settings;
    settings.directory = path;
    config.paths = {settings, settings};
    config.paths[1].emulation =
        tiers::Emulation{.read_rate = 50e6, .write_rate = 50e6, .sharing = 0.5};
    config.subgroup_size = 4096;
  }
  ~Locks() override { comm.barrier(); }  // before the directory goes

  [[nodiscard]] std::string spill() const { return "locks-" + std::to_string(comm.rank()); }
  [[nodiscard]] std::vector<LockChoice> choose(config::Switch exclusive) {
    config.storage.exclusive = exclusive;
    auto const node = comm.split_by_node();
    mpi::SharedWindow const window{node, tiers::shared_bytes(config.paths)};
    return choose_locks(
        config, comm, node,
        {.spill = spill(), .shared = window.bytes(), .memory = tiers::path_turn_bytes});
  }

  mpi::Communicator comm = mpi::Communicator::world();
  ScratchDirectory own;  ///< where transfers are direct
  config::RunConfig config;
};

TEST_F(Locks, ThatAreGivenAreNotTried) {
  for (auto const exclusive : {config::Switch::on, config::Switch::off}) {
    for (LockChoice const& choice : choose(exclusive)) {
      EXPECT_EQ(choice.exclusive, exclusive == config::Switch::on);
      EXPECT_EQ(choice.in_turn, 0.0);
    }
  }
}

TEST_F(Locks, AreChosenByTheFiguresTheSameOnAllRanksAndNothingIsLeft) {
  auto const choices = choose(config::Switch::automatic);
  ASSERT_EQ(choices.size(), 2U);
  for (LockChoice const& choice : choices) {
    EXPECT_EQ(choice.problem, "");
    if (comm.size() == 1) {
      EXPECT_FALSE(choice.exclusive) << "one process needs no turns";
      EXPECT_EQ(choice.in_turn, 0.0);
      continue;
    }
    EXPECT_GT(choice.in_turn, 0.0);
    EXPECT_GT(choice.at_once, 0.0);
    EXPECT_EQ(choice.exclusive, turns_pay(choice.in_turn, choice.at_once));
    for (double const other : comm.all_gather_value(choice.in_turn)) {
      EXPECT_EQ(other, choice.in_turn);
    }
  }
  comm.barrier();
  EXPECT_TRUE(std::filesystem::is_empty(config.paths.front().directory));
}

TEST_F(Locks, AreNotTriedOnASlowPath) {
  auto& slow = config.paths[1];
  slow.emulation = tiers::Emulation{.read_rate = 24e3, .write_rate = 24e3};
  slow.threads = 4;
  for (bool const given : {false, true}) {
    slow.read_rate = slow.write_rate = given ? 24e3 : 0.0;
    auto const choices = choose(config::Switch::automatic);
    EXPECT_EQ(choices[0].problem, "");
    EXPECT_EQ(choices[1].problem, comm.size() == 1 ? "" : "the path is slow");
    EXPECT_EQ(choices[1].exclusive, comm.size() > 1);
  }
}

TEST_F(Locks, OfOneDeviceAreKeptByOneProcess) {
  config.paths[1].emulation.reset();
  config.paths.push_back(config.paths[0]);
  config.paths[2].emulation = tiers::Emulation{.read_rate = 50e6, .write_rate = 50e6};
  auto const choices = choose(config::Switch::automatic);
  EXPECT_EQ(choices[0].exclusive, choices[1].exclusive);
  if (comm.size() == 1) {
    EXPECT_TRUE(choices[0].exclusive);
    EXPECT_FALSE(choices[2].exclusive) << "its device is its own";
  }
}

TEST_F(Locks, AreKeptWhereTheSystemHasNoRequestsForTheTrial) {
  std::ifstream{"/proc/sys/fs/aio-max-nr"} >> config.paths[0].engine.queue_depth;
  ++config.paths[0].engine.queue_depth;  // refused, so that no other program lacks them meanwhile
  for (LockChoice const& choice : choose(config::Switch::automatic)) {
    EXPECT_EQ(choice.exclusive, comm.size() > 1);
    EXPECT_EQ(choice.problem.empty(), comm.size() == 1);
  }
}

TEST_F(Locks, AreKeptWhereAnyRankCannotTry) {
  if (comm.size() == 1) {
    return;  // nothing is tried
  }
  auto const taken = std::filesystem::path{config.paths.front().directory} / spill();
  if (comm.rank() == 1) {
    std::filesystem::create_directory(taken);
    std::ofstream{taken / "another's"} << "bytes";
  }
  comm.barrier();
  for (LockChoice const& choice : choose(config::Switch::automatic)) {
    EXPECT_TRUE(choice.exclusive);
    EXPECT_EQ(choice.in_turn, 0.0);
    EXPECT_THAT(choice.problem, AllOf(HasSubstr("locks-1"), HasSubstr("tiers.path")));
  }
}

}  // namespace
}  // namespace offstage::train
