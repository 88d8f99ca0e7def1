// What a path's rates are: measured at the start, and following its transfers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>

#include "base/error.hpp"
#include "platform/faulty_kernel.hpp"
#include "tiers/storage_path_support.hpp"

namespace offstage::tiers {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(StoragePathTest, RatesFollowTheTransfersByHalf) {
  PathSettings given = settings();
  given.read_rate = 5e9;
  given.processes = 2;
  StoragePath path{given, {}, kernel, nullptr};
  EXPECT_EQ(path.rate().read, 5e9);
  EXPECT_EQ(path.rate().write, 0.0);
  Memory const memory{8 * MiB};
  path.read(file, memory.bytes(), 0);
  path.write(file, memory.bytes(), 0);
  path.follow_rates();
  auto const found = [](DirectionTraffic const& traffic) {
    return 2 * static_cast<double>(traffic.bytes) / traffic.seconds.count();
  };
  EXPECT_DOUBLE_EQ(path.rate().read, 0.5 * 5e9 + 0.5 * found(path.traffic().read));
  EXPECT_DOUBLE_EQ(path.rate().write, found(path.traffic().write));  // nothing was known before
}

TEST_F(StoragePathTest, RatesAreTheNodesWhetherOrNotProcessesTakeTurns) {
  PathShared of_node{};
  for (bool const turns : {true, false}) {
    StoragePath::Sharing const sharing{turns ? &of_node : nullptr, &of_node, 3};
    StoragePath path{settings(), sharing, kernel, nullptr};
    Memory const memory{8 * MiB};
    path.read(file, memory.bytes(), 0);
    path.follow_rates();
    DirectionTraffic const reads = path.traffic().read;
    double const own =
        path.settings().transfers() * static_cast<double>(reads.bytes) / reads.seconds.count();
    EXPECT_DOUBLE_EQ(path.rate().read, turns ? own : 3 * own);
  }
}

TEST_F(StoragePathTest, LittleTrafficMovesTheRatesWhenItHasAddedUp) {
  StoragePath path{settings(), {}, kernel, nullptr};
  path.set_rates(3e9, 2e9);
  path.follow_rates();
  Memory const memory{8 * MiB - block};
  path.read(file, memory.bytes(), 0);
  path.follow_rates();
  EXPECT_EQ(path.rate().read, 3e9);
  EXPECT_EQ(path.rate().write, 2e9);
  path.read(file, memory.bytes().first(block), 0);
  path.follow_rates();
  EXPECT_NE(path.rate().read, 3e9);
  EXPECT_EQ(path.rate().write, 2e9);
}

TEST_F(StoragePathTest, SettingTheRatesForgetsTheTrafficSoFar) {
  StoragePath path{settings(), {}, kernel, nullptr};
  Memory const memory{16 * MiB};
  path.read(file, memory.bytes(), 0);
  path.set_rates(3e9, 2e9);
  path.follow_rates();
  EXPECT_EQ(path.rate().read, 3e9);
  EXPECT_EQ(path.traffic().read.bytes, 16 * MiB);
}

/// Of the file that is measured with.
constexpr char const* spill = "offstage-nojob-run-host-1-0";

TEST_F(StoragePathTest, MeasuresItsRatesAndLeavesNothingBehind) {
  PathSettings slow = settings();
  slow.emulation = Emulation{400e6, 200e6, Seconds{0.0}, Duplex::half};
  slow.processes = 2;
  StoragePath path{slow, {}, nullptr, nullptr};
  plan::PathRate const rate = measure_rates(path, spill, {10s, 16 * MiB, path_turn_bytes});
  // Two transfers of 8 MiB each way, each as long as it alone or longer, less the credit.
  auto const most = [](double emulated) {
    double const part = 8 * MiB;
    return 2 * part / (part / emulated - Seconds{Throttle::credit}.count());
  };
  EXPECT_GT(rate.read, 0.0);
  EXPECT_LE(rate.read, most(400e6));
  EXPECT_GT(rate.write, 0.0);
  EXPECT_LE(rate.write, most(200e6));
  EXPECT_EQ(path.traffic().read.bytes, 16 * MiB);
  EXPECT_EQ(path.traffic().write.bytes, 16 * MiB);
  EXPECT_EQ(path.rate().read, 0.0);
  std::filesystem::directory_iterator const left{scratch.path()};
  EXPECT_EQ(std::distance(left, {}), 1);  // `file`
}

TEST_F(StoragePathTest, MeasuringEndsWithTheTime) {
  StoragePath path{settings(), {}, kernel, nullptr};
  (void)measure_rates(path, spill, {Seconds{0.0}, 2 * path_turn_bytes, path_turn_bytes});
  EXPECT_EQ(path.traffic().write.transfers, 1);
  EXPECT_EQ(path.traffic().read.transfers, 1);
  EXPECT_EQ(path.traffic().read.bytes, path_turn_bytes);
}

TEST_F(StoragePathTest, MeasuringKeepsToItsMemory) {
  PathSettings wide = settings();
  wide.processes = 2;
  StoragePath path{wide, {}, aio::libaio_kernel(), nullptr};
  (void)measure_rates(path, spill, {10s, 4 * MiB, 1 * MiB});
  EXPECT_EQ(path.traffic().write.bytes, 4 * MiB);
  EXPECT_EQ(path.traffic().write.transfers, 8);
}

TEST_F(StoragePathTest, MeasuringFindsWhatComesBackOtherwiseThanItWasWritten) {
  auto const faulty = std::make_shared<aio::FaultyKernel>();
  faulty->on_complete = [](aio::Transfer const& transfer, aio::Completion const&) {
    if (transfer.direction == aio::Direction::read && transfer.offset == MiB) {
      transfer.memory[block] ^= std::byte{1};
    }
  };
  StoragePath path{settings(), {}, faulty, nullptr};
  EXPECT_THAT(
      [&] {
        (void)measure_rates(path, spill, {10s, 4 * MiB, MiB});
      },
      ThrowsMessage<IoError>(HasSubstr(fmt::format("read at byte {} is", MiB + block))));
}

TEST_F(StoragePathTest, MeasuringFailsWithTheKeyAndTheDirectory) {
  StoragePath path{settings(), {}, kernel, nullptr};
  auto const error = [&] {
    try {
      (void)measure_rates(path, spill, {1s, 4 * MiB, path_turn_bytes});
      return std::string{"no error"};
    } catch (IoError const& caught) {
      return std::string{caught.what()};
    }
  };
  kernel->submit_error = -ENODATA;
  EXPECT_THAT(error(), AllOf(HasSubstr("tiers.path = " + scratch.path()),
                             HasSubstr("cannot be measured: cannot write")));
  std::filesystem::remove_all(scratch.path());
  EXPECT_THAT(error(),
              AllOf(HasSubstr("tiers.path = " + scratch.path()), HasSubstr("does not exist")));
}

}  // namespace
}  // namespace offstage::tiers
