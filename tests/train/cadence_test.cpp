#include "train/saves/cadence.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

/// Ten steps. run.dir is rank 0's.
class CadenceOfRanks : public ::testing::Test {
 protected:
  CadenceOfRanks() {
    config.run_dir = directory.path().string();
    config.train.steps = 10;
  }

  mpi::Communicator comm = mpi::Communicator::world();
  TemporaryDirectory directory;
  config::RunConfig config;
  StopSignals signals;
};

TEST_F(CadenceOfRanks, GoesOnWhereNothingAsksForAnEnd) {
  Cadence cadence{config, comm, signals};
  EXPECT_EQ(cadence.after(1).stop, Stop::none);
}

TEST_F(CadenceOfRanks, StopsAllByRankZerosFileOnce) {
  Cadence cadence{config, comm, signals};
  if (comm.rank() == 0) {
    directory.write("STOP", "");
  }
  EXPECT_EQ(cadence.after(1).stop, Stop::file);
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "STOP"));
  EXPECT_EQ(cadence.after(2).stop, Stop::none);
}

TEST_F(CadenceOfRanks, LeavesAFileThatComesAfterTheLastStep) {
  Cadence cadence{config, comm, signals};
  directory.write("STOP", "");
  EXPECT_EQ(cadence.after(10).stop, Stop::none);
  EXPECT_TRUE(take_stop_file(config));
  EXPECT_FALSE(take_stop_file(config));
}

TEST_F(CadenceOfRanks, StopsAllByASignalThatOneOfThemGot) {
  Cadence cadence{config, comm, signals};
  if (comm.rank() == comm.size() - 1) {
    std::raise(SIGUSR1);
  }
  EXPECT_EQ(cadence.after(1).stop, Stop::signal);
}

// A suspended job: the two hours are those of another job.
TEST_F(CadenceOfRanks, LeavesOutAStepInWhichTheProcessWasStopped) {
  config.train.max_time = Seconds{3600};
  Cadence cadence{config, comm, signals};
  cadence.step_took(Seconds{1});
  std::raise(SIGCONT);
  cadence.step_took(Seconds{7200});
  cadence.validation_took(Seconds{1});
  EXPECT_EQ(cadence.after(1).stop, Stop::none);
  cadence.save_took({.whole = Seconds{1}, .stood_still = {}});
  cadence.save_took({.whole = Seconds{7200}, .stood_still = {}});
  EXPECT_EQ(cadence.after(2).stop, Stop::none);
}

TEST_F(CadenceOfRanks, HeedsAStepThatWasAsLongByItself) {
  config.train.max_time = Seconds{3600};
  Cadence cadence{config, comm, signals};
  cadence.step_took(Seconds{1});
  cadence.step_took(Seconds{7200});
  EXPECT_EQ(cadence.after(1).stop, Stop::max_time);
}

}  // namespace
}  // namespace offstage::train
