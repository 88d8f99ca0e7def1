#include <gtest/gtest.h>

#include "base/error.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/offload/storage_step.hpp"

namespace offstage::train {
namespace {

StorageStep step_of(int rank) {
  double const value = rank + 1;
  tiers::DirectionTraffic const traffic{.bytes = (Bytes{1} << 60) + rank,
                                        .transfers = rank,
                                        .seconds = Seconds{value},
                                        .waited = Seconds{2.0 * value},
                                        .longest_wait = Seconds{value},
                                        .longest_transfer = Seconds{-value}};
  return {.paths = {{.directory = "/a",
                     .transfers_at_once = 2,
                     .traffic = {.read = traffic, .write = {}}},
                    {.directory = "/b",
                     .emulated = true,
                     .traffic = {.read = {}, .write = traffic},
                     .resident_bytes = 10 + rank}},
          .nodes = 1,
          .seconds = Seconds{value},
          .hits = rank,
          .misses = 1,
          .host_bytes = 5,
          .effective_rate = value};
}

TEST(StorageSum, AddsBytesAndSecondsAndTakesTheLongest) {
  auto const comm = mpi::Communicator::world();
  auto const sum = sum_over_ranks(step_of(comm.rank()), comm);
  std::int64_t const ranks = comm.size();
  std::int64_t const numbers = ranks * (ranks - 1) / 2;
  auto const values = static_cast<double>(numbers + ranks);
  ASSERT_EQ(sum.paths.size(), 2U);
  auto const& read = sum.paths[0].traffic.read;
  EXPECT_EQ(read.bytes, ranks * (Bytes{1} << 60) + numbers);
  EXPECT_EQ(read.transfers, numbers);
  EXPECT_EQ(read.seconds.count(), values);
  EXPECT_EQ(read.waited.count(), 2.0 * values);
  EXPECT_EQ(read.longest_wait.count(), static_cast<double>(ranks));
  EXPECT_EQ(sum.paths[0].traffic.write.bytes, 0);
  EXPECT_EQ(sum.paths[0].transfers_at_once, 2);
  EXPECT_EQ(sum.paths[1].directory, "/b");
  EXPECT_TRUE(sum.paths[1].emulated);
  EXPECT_EQ(sum.paths[1].traffic.write.bytes, read.bytes);
  EXPECT_EQ(sum.paths[1].resident_bytes, 10 * ranks + numbers);
  EXPECT_EQ(sum.seconds.count(), static_cast<double>(ranks));
  EXPECT_EQ(sum.hits, numbers);
  EXPECT_EQ(sum.misses, ranks);
  EXPECT_EQ(sum.host_bytes, 5 * ranks);
  EXPECT_EQ(sum.effective_rate, values);
}

TEST(StorageSum, WorksWithoutPaths) {
  auto const comm = mpi::Communicator::world();
  auto const sum = sum_over_ranks({.hits = 3}, comm);
  EXPECT_TRUE(sum.paths.empty());
  EXPECT_EQ(sum.hits, 3 * comm.size());
}

TEST(StorageSum, RefusesRanksOfDifferentPathsOnAllOfThem) {
  auto const comm = mpi::Communicator::world();
  auto mine = step_of(0);
  if (comm.rank() == 0) {
    mine.paths.pop_back();
  }
  if (comm.size() > 1) {
    EXPECT_THROW((void)sum_over_ranks(mine, comm), PreconditionError);
  } else {
    EXPECT_EQ(sum_over_ranks(mine, comm).paths.size(), 1U);
  }
}

}  // namespace
}  // namespace offstage::train
