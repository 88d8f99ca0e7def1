#include "train/offload/offload.hpp"

#include <gtest/gtest.h>

#include "platform/mpi/communicator.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

/// Of a path that reads 600 bytes a second, all ranks on one node.
plan::PathRate rate_of_rank(mpi::Communicator const& comm, config::Switch exclusive) {
  TemporaryDirectory const directory;
  config::RunConfig config;
  config.run_dir = "nowhere";
  config.storage.exclusive = exclusive;
  config.paths = {{.directory = directory.path(),
                   .read_rate = 600,
                   .write_rate = 300,
                   .duplex = tiers::Duplex::full,
                   .engine = {},
                   .emulation = {}}};
  Offload const offload{config, comm, nullptr};
  return offload.rates_of_rank().at(0);
}

TEST(Offload, DividesARateAmongTheRanksWhetherOrNotTheyTakeTurns) {
  auto const comm = mpi::Communicator::world();
  for (auto const exclusive : {config::Switch::on, config::Switch::off}) {
    auto const mine = rate_of_rank(comm, exclusive);
    EXPECT_DOUBLE_EQ(mine.read, 600.0 / comm.size());
    EXPECT_DOUBLE_EQ(mine.write, 300.0 / comm.size());
    EXPECT_TRUE(mine.full_duplex);
  }
}

TEST(Offload, HasNoRatesWithoutPaths) {
  config::RunConfig const config;
  EXPECT_TRUE((Offload{config, mpi::Communicator::self(), nullptr}.rates_of_rank().empty()));
}

}  // namespace
}  // namespace offstage::train
