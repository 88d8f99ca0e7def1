#include <gmock/gmock.h>

#include "train/run/slow_nodes.hpp"

namespace offstage::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Each rank is a node.
config::RunConfig config_of(mpi::Communicator const& comm) {
  config::RunConfig config;
  config.train.micro_batch = 1;
  config.train.global_batch = comm.size();
  config.node = "node" + std::to_string(comm.rank());
  return config;
}

TEST(SlowNodesOfRanks, AreNamedOnceAndAtTheEnd) {
  auto const comm = mpi::Communicator::world();
  auto const config = config_of(comm);
  SlowNodes slow{config, comm};
  bool const is_slow = comm.rank() == comm.size() - 1;
  std::vector<std::string> said;
  for (int step = 0; step < 100; ++step) {
    // The first step does not count, and a slow beginning is no slow run.
    for (auto& sentence : slow.step_done(Seconds{step == 0 || is_slow ? 2.0 : 1.0})) {
      said.push_back(std::move(sentence));
    }
  }
  if (comm.size() == 1) {
    EXPECT_THAT(said, IsEmpty());
    EXPECT_THAT(slow.conclude(), IsEmpty());
    return;
  }
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr("node" + std::to_string(comm.size() - 1) + " is slow"));
  EXPECT_EQ(slow.conclude(), said);
}

TEST(SlowNodesOfRanks, AreNotThoseWithOneMicroBatchMore) {
  auto const comm = mpi::Communicator::world();
  config::RunConfig config = config_of(comm);
  config.train.global_batch = comm.size() + 1;  // rank 0 has two, but in a job of one
  SlowNodes slow{config, comm};
  for (int step = 0; step < 40; ++step) {
    EXPECT_THAT(slow.step_done(Seconds{comm.rank() == 0 ? 2.0 : 1.0}), IsEmpty());
  }
  EXPECT_THAT(slow.conclude(), IsEmpty());
}

TEST(SlowNodesOfRanks, AreNotThoseWithOneBlockMore) {
  auto const comm = mpi::Communicator::world();
  config::RunConfig config = config_of(comm);
  SlowNodes slow{config, comm};
  // Settled after it was made.
  config.sharding = parameters::Sharding::zero1;
  config.numerics.sum_block = 4;
  config.train.global_batch = 4 * comm.size() + 4;  // rank 0 has two blocks, the others have one
  for (int step = 0; step < 40; ++step) {
    EXPECT_THAT(slow.step_done(Seconds{comm.rank() == 0 ? 2.0 : 1.0}), IsEmpty());
  }
  EXPECT_THAT(slow.conclude(), IsEmpty());
}

}  // namespace
}  // namespace offstage::train
