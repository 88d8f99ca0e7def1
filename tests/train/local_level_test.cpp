#include "train/saves/local_level.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.hpp"
#include "checkpoint/directory.hpp"
#include "platform/aio/file.hpp"
#include "shared_directory.hpp"

namespace offstage::train {
namespace {

using ::testing::HasSubstr;

/// All ranks on one node, with directories of their own.
class LocalLevelOfRanks : public ::testing::Test {
 protected:
  LocalLevelOfRanks() {
    config.run_dir = directory.make("run");
    config.checkpoint.dir = directory.make("checkpoints");
    config.checkpoint.local = directory.make("local");
    config.allow_tmpfs = true;
  }

  /// Returns the names in checkpoint.local, once all ranks have called it.
  [[nodiscard]] std::vector<std::string> left() const {
    comm.barrier();
    return checkpoint::names_of(config.checkpoint.local);
  }
  void expect_refused(ExitCode code, std::string const& words, std::function<void()> const& work) {
    try {
      work();
      ADD_FAILURE() << "no error";
    } catch (mpi::AgreedError const& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  /// Makes the directory of a saved checkpoint.
  void save(std::string const& level, std::string const& step) const {
    if (comm.rank() == 0) {
      std::filesystem::create_directory(level + "/" + step);
      std::ofstream{level + "/" + step + "/" + checkpoint::master_name} << "whole";
    }
    comm.barrier();
  }

  mpi::Communicator comm = mpi::Communicator::world();
  SharedDirectory directory{comm};
  config::RunConfig config;
};

TEST_F(LocalLevelOfRanks, IsADirectoryOfItsOwnThatGoesIfItIsEmpty) {
  {
    LocalLevel const level{config, comm};
    EXPECT_EQ(config.checkpoint.nodes, 1);
    EXPECT_EQ(std::filesystem::path{config.checkpoint.level_1}.parent_path(),
              config.checkpoint.local);
    EXPECT_TRUE(std::filesystem::is_directory(config.checkpoint.level_1));
    comm.barrier();
  }
  EXPECT_TRUE(left().empty());
}

TEST_F(LocalLevelOfRanks, IsTheSameForTheNextStartOnceItIsKept) {
  std::string unkept, kept;
  {
    LocalLevel const level{config, comm};
    unkept = config.checkpoint.level_1;
    comm.barrier();
  }
  comm.barrier();
  {
    LocalLevel level{config, comm};
    kept = config.checkpoint.level_1;
    level.keep(0);
    comm.barrier();
  }
  comm.barrier();
  EXPECT_NE(kept, unkept) << "a start that does not get to its first step changes nothing";
  LocalLevel const level{config, comm};
  EXPECT_EQ(config.checkpoint.level_1, kept);
  comm.barrier();
}

TEST_F(LocalLevelOfRanks, RefusesCopiesOnAPartnerOfOneNode) {
  config.checkpoint.partner = true;
  expect_refused(ExitCode::usage, "checkpoint.partner", [&] {
    LocalLevel const level{config, comm};
  });
  EXPECT_TRUE(left().empty());
}

TEST_F(LocalLevelOfRanks, RefusesADirectoryThatAllNodesHave) {
  config.checkpoint.local = config.checkpoint.dir;
  expect_refused(ExitCode::usage, "checkpoint.dir", [&] { LocalLevel const level{config, comm}; });
}

TEST_F(LocalLevelOfRanks, RefusesADirectoryThatIsNotThere) {
  config.checkpoint.local += "/nowhere";
  expect_refused(ExitCode::io, "no such directory", [&] { LocalLevel const level{config, comm}; });
}

/// Two checkpoints are there at a time, three if the run began at one of them. One that is there
/// already has its room. Other processes use the same disk: parts of what is free lie well apart
/// from the limits.
TEST_F(LocalLevelOfRanks, WantsRoomForTheCheckpointsThatAreThereAtATimeLessOneThatIs) {
  LocalLevel const level{config, comm};
  Bytes const free = comm.broadcast_value(aio::free_bytes(config.checkpoint.level_1), 0);
  auto const part = [&](double of_free) {
    return static_cast<Bytes>(of_free * static_cast<double>(free)) / comm.size();
  };
  auto const refuses = [&](double of_free, bool begins_there) {
    expect_refused(ExitCode::io,
                   "checkpoint.local=", [&] { level.require_space(part(of_free), begins_there); });
  };
  EXPECT_NO_THROW(level.require_space(part(0.4), false));  // two
  refuses(0.6, false);
  EXPECT_NO_THROW(level.require_space(part(0.27), true));  // three
  refuses(0.4, true);
  save(config.checkpoint.level_1, "step-000000001");
  EXPECT_NO_THROW(level.require_space(part(0.8), false));  // one more
  refuses(1.2, false);
  EXPECT_NO_THROW(level.require_space(part(0.4), true));  // two more
  refuses(0.6, true);
  save(config.checkpoint.level_1, "step-000000002");
  refuses(1.2, false);  // of those that are there one stays
  comm.barrier();
}

}  // namespace
}  // namespace offstage::train
