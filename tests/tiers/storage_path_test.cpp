#include "tiers/storage_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/counting_kernel.hpp"
#include "tiers/processes.hpp"

namespace offstage::tiers {
namespace {

using namespace std::chrono_literals;
using aio::Direction;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes block = aio::direct_alignment;

/// Aligned bytes; no page is touched, so a lot of them costs nothing.
class Memory {
 public:
  explicit Memory(Bytes size)
      : data_{static_cast<std::byte*>(std::aligned_alloc(block, static_cast<std::size_t>(size))),
              &std::free},
        size_{static_cast<std::size_t>(size)} {}
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  std::size_t size_;
};

/// Paths whose kernel moves nothing, all in one directory.
class StoragePathTest : public ::testing::Test {
 protected:
  [[nodiscard]] PathSettings settings() const {
    PathSettings result;
    result.directory = scratch.path();
    result.engine = {64 * MiB, 1};
    return result;
  }
  void read(StoragePath& path, int times = 1) {
    for (int i = 0; i < times; ++i) {
      Memory const memory{block};
      path.read(file, memory.bytes(), i * block);
    }
  }
  void write(StoragePath& path, int times = 1) {
    for (int i = 0; i < times; ++i) {
      Memory const memory{block};
      path.write(file, memory.bytes(), i * block);
    }
  }
  /// Two threads that read and two that write, so many times each.
  void hurry(StoragePath& path, int times) {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back("reader", [&] { read(path, times); });
      threads.emplace_back("writer", [&] { write(path, times); });
    }
  }

  ScratchDirectory scratch;
  aio::File file = aio::File::create(scratch / "file");
  aio::TransferCount count{};
  std::shared_ptr<aio::CountingKernel> kernel = std::make_shared<aio::CountingKernel>(count);
  Shared<PathShared> shared;
};

TEST_F(StoragePathTest, BringsBackWhatWasWritten) {
  StoragePath path{settings(), {}, nullptr, nullptr};
  Memory const out{3 * block};
  Memory const in{3 * block};
  for (std::size_t i = 0; i < out.bytes().size(); ++i) {
    out.bytes()[i] = static_cast<std::byte>(i % 251);
  }
  path.write(file, out.bytes(), block);
  path.read(file, in.bytes(), block);
  EXPECT_TRUE(std::ranges::equal(in.bytes(), out.bytes()));
  EXPECT_EQ(file.size(), 4 * block);
}

TEST_F(StoragePathTest, HoldsThePathForOnePieceAtATime) {
  StoragePath path{settings(), {&*shared, nullptr}, kernel, nullptr};
  Memory const memory{2 * path_hold_bytes + block};
  path.write(file, memory.bytes(), 3 * block);
  auto const transfers = kernel->transfers();
  ASSERT_EQ(transfers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    Bytes const begin = static_cast<Bytes>(i) * path_hold_bytes;
    EXPECT_EQ(transfers[i].offset, 3 * block + begin);
    EXPECT_EQ(transfers[i].memory, memory.bytes().data() + begin);
    EXPECT_EQ(transfers[i].length, i < 2 ? path_hold_bytes : block);
  }
  EXPECT_EQ(shared->read_lock.next_ticket, 3U);
  EXPECT_EQ(shared->read_lock.released, 3U);
  EXPECT_EQ(path.traffic().write.transfers, 3);
  EXPECT_EQ(path.traffic().write.bytes, 2 * path_hold_bytes + block);
}

TEST_F(StoragePathTest, NothingToMoveIsNoTransfer) {
  StoragePath path{settings(), {&*shared, nullptr}, kernel, nullptr};
  path.read(file, {}, 0);
  EXPECT_EQ(shared->read_lock.next_ticket, 0U);
  EXPECT_EQ(path.traffic().read.transfers, 0);
  EXPECT_TRUE(kernel->transfers().empty());
}

TEST_F(StoragePathTest, HalfDuplexMovesOneAtATime) {
  StoragePath path{settings(), {}, kernel, nullptr};
  hurry(path, 50);
  EXPECT_EQ(count.most, 1);
  EXPECT_EQ(kernel->contexts(), 1);
}

TEST_F(StoragePathTest, FullDuplexMovesOneEachWay) {
  PathSettings full = settings();
  full.duplex = Duplex::full;
  StoragePath path{full, {&*shared, nullptr}, kernel, nullptr};
  // The first read and the first write wait for each other.
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 2; }); };
  hurry(path, 20);
  EXPECT_EQ(count.most_reads, 1);
  EXPECT_EQ(count.most_writes, 1);
  EXPECT_EQ(shared->read_lock.released, 40U);
  EXPECT_EQ(shared->write_lock.released, 40U);
  EXPECT_EQ(kernel->contexts(), 2);
  EXPECT_TRUE(path.rate().full_duplex);
}

TEST_F(StoragePathTest, LetsAsManyInAsItsProcesses) {
  PathSettings wide = settings();
  wide.processes = 3;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 3; }); };
  hurry(path, 20);
  EXPECT_EQ(count.most, 3);
  EXPECT_EQ(kernel->contexts(), 3);
}

TEST_F(StoragePathTest, SumsTheTrafficOfAllThreads) {
  StoragePath path{settings(), {}, kernel, nullptr};
  hurry(path, 25);
  PathTraffic const traffic = path.traffic();
  for (DirectionTraffic const& direction : {traffic.read, traffic.write}) {
    EXPECT_EQ(direction.bytes, 50 * block);
    EXPECT_EQ(direction.transfers, 50);
    EXPECT_GE(direction.seconds, 50 * kernel->duration);
    EXPECT_GE(direction.longest_transfer, kernel->duration);
    EXPECT_LE(direction.longest_transfer, direction.seconds);
    EXPECT_GT(direction.longest_wait, Seconds{0.0});
    EXPECT_LE(direction.longest_wait, direction.waited);
  }
}

TEST_F(StoragePathTest, ServesEveryoneWhileOneComesBackAtOnce) {
  // With an unfair queue the thread that leaves may come in again for ever.
  StoragePath path{settings(), {}, kernel, nullptr};
  std::atomic<bool> done = false;
  NamedThread greedy{"greedy", [&] {
                       while (!done) {
                         read(path);
                       }
                     }};
  write(path, 100);
  done = true;
  greedy.join();
  EXPECT_EQ(path.traffic().write.transfers, 100);
}

TEST_F(StoragePathTest, TimeSpentWaitingForAnotherProcessIsNotTransferTime) {
  StoragePath path{settings(), {&*shared, nullptr}, kernel, nullptr};
  NodeLock other{shared->read_lock, 1};
  other.lock();
  Stopwatch held;
  NamedThread reader{"reader", [&] { read(path); }};
  wait_until([&] { return shared->read_lock.next_ticket == 2; });
  held = {};
  std::this_thread::sleep_for(20ms);
  Seconds const waited = held.elapsed();
  other.unlock();
  reader.join();
  EXPECT_GE(path.traffic().read.waited, waited);
  EXPECT_EQ(path.traffic().read.waited, path.traffic().read.longest_wait);
  EXPECT_EQ(count.most, 1);
}

struct SharedCount {
  PathShared paths[2];
  aio::TransferCount count;
};

/// Four processes, each with a path and two threads; the most transfers that were under way at a time.
int most_in_four_processes(SharedCount& all, PathSettings const& settings, bool exclusive,
                           aio::File const& file) {
  Processes processes;
  for (int p = 0; p < 4; ++p) {
    processes.start([&] {
      auto const kernel = std::make_shared<aio::CountingKernel>(all.count);
      if (!exclusive) {
        kernel->meanwhile = [&](aio::Transfer const&) {
          wait_until([&] { return all.count.most == 4; });
        };
      }
      auto const paths =
          make_paths({{settings}, exclusive, std::as_writable_bytes(std::span{all.paths}), kernel});
      std::vector<NamedThread> threads;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back("reader", [&] {
          Memory const memory{block};
          for (int i = 0; i < 100; ++i) {
            paths->front()->read(file, memory.bytes(), 0);
          }
        });
      }
    });
  }
  processes.join();
  return all.count.most;
}

TEST_F(StoragePathTest, ExclusiveLetsOneProcessOfTheNodeInAtATime) {
  Shared<SharedCount> all;
  EXPECT_EQ(most_in_four_processes(*all, settings(), true, file), 1);
  EXPECT_EQ(all->paths[0].read_lock.released, 800U);
}

TEST_F(StoragePathTest, WithoutExclusiveNoProcessWaitsForAnother) {
  Shared<SharedCount> all;
  EXPECT_EQ(most_in_four_processes(*all, settings(), false, file), 4);
  EXPECT_EQ(all->paths[0].read_lock.next_ticket, 0U);
}

TEST_F(StoragePathTest, AnErrorPassesThroughAndFreesThePath) {
  StoragePath path{settings(), {&*shared, nullptr}, kernel, nullptr};
  kernel->submit_error = -EIO;
  try {
    write(path);
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot write"), HasSubstr(file.path())));
  }
  EXPECT_EQ(shared->read_lock.released, shared->read_lock.next_ticket);
  EXPECT_EQ(path.traffic().write.transfers, 0);
  write(path);
  EXPECT_EQ(path.traffic().write.transfers, 1);
  EXPECT_TRUE(path.writable());
}

TEST_F(StoragePathTest, AnEngineThatCannotBeMadeIsAnErrorAtTheStart) {
  kernel->setup_error = -EAGAIN;
  try {
    StoragePath const path{settings(), {&*shared, nullptr}, kernel, nullptr};
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("tiers.path = " + scratch.path()), HasSubstr("fs.aio-max-nr")));
  }
  EXPECT_EQ(shared->left_out, 0U);
}

TEST_F(StoragePathTest, AnEmulatedTransferEndsNoSoonerThanBooked) {
  PathSettings slow = settings();
  slow.emulation = Emulation{1e6, 1e6, 10ms, Duplex::half};
  StoragePath path{slow, {}, kernel, nullptr};
  Stopwatch const watch;
  {
    NamedThread const reader{"reader", [&] { read(path, 2); }};
    write(path, 2);
  }
  // 10 ms and 4 kB at 1 MB/s each, less what an idle path is ahead.
  EXPECT_GE(watch.elapsed(), 4 * 14ms - Throttle::credit);
  EXPECT_EQ(count.most, 1);
}

TEST_F(StoragePathTest, ProcessesShareAnEmulatedPath) {
  PathSettings slow = settings();
  slow.emulation = Emulation{1e6, 1e6, Seconds{0.0}, Duplex::half};
  Stopwatch const watch;
  {
    Processes processes;
    for (int p = 0; p < 3; ++p) {
      processes.start([&] {
        StoragePath path{slow, {nullptr, &*shared}, kernel, nullptr};
        read(path, 5);
      });
    }
  }
  EXPECT_GE(watch.elapsed(), 15 * Seconds{4096e-6} - Throttle::credit);
  EXPECT_EQ(shared->read_lock.next_ticket, 0U);
}

TEST_F(StoragePathTest, SaysOnceThatItIsLeftOut) {
  StoragePath path{settings(), {}, kernel, nullptr};
  EXPECT_TRUE(path.writable());
  ::testing::internal::CaptureStderr();
  path.leave_out("no space");
  path.leave_out("again");
  std::string const said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("tiers.path = " + scratch.path()), HasSubstr("no space")));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
  EXPECT_FALSE(path.writable());
  read(path);  // what lies there is read
}

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

TEST_F(StoragePathTest, ShowsItsTransfersInTheTrace) {
  {
    trace::Trace trace{scratch / "trace.json", 0, "host"};
    StoragePath path{settings(), {}, kernel, &trace};
    read(path);
    write(path);
  }
  std::ifstream stream{scratch / "trace.json"};
  std::string const text{std::istreambuf_iterator<char>{stream}, {}};
  EXPECT_THAT(text, AllOf(HasSubstr("read " + scratch.path()), HasSubstr("write " + scratch.path()),
                          HasSubstr("4096")));
}

class MakePathsTest : public StoragePathTest {
 protected:
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{all->paths}); }
  std::vector<PathSettings> two() { return {settings(), settings()}; }
  Shared<SharedCount> all;
};

TEST_F(MakePathsTest, PathsOnOneDeviceShareTheLockOfTheFirst) {
  auto const paths = make_paths({two(), true, bytes(), kernel});
  ASSERT_EQ(paths->size(), 2U);
  read(*paths->at(0));
  read(*paths->at(1), 2);
  EXPECT_EQ(all->paths[0].read_lock.released, 3U);
  EXPECT_EQ(all->paths[1].read_lock.next_ticket, 0U);
}

TEST_F(MakePathsTest, WithoutSharedMemoryTheyExcludeEachOtherWithinTheProcess) {
  auto const paths = make_paths({two(), true, {}, kernel});
  {
    NamedThread const other{"other", [&] { hurry(*paths->at(1), 25); }};
    hurry(*paths->at(0), 25);
  }
  EXPECT_EQ(count.most, 1);
}

TEST_F(MakePathsTest, WithoutExclusivePathsOnOneDeviceMoveAtTheSameTime) {
  auto const paths = make_paths({two(), false, bytes(), kernel});
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 2; }); };
  NamedThread other{"other", [&] { read(*paths->at(1)); }};
  read(*paths->at(0));
  other.join();
  EXPECT_EQ(all->paths[0].read_lock.next_ticket, 0U);
}

TEST_F(MakePathsTest, APathThatOneProcessLeavesOutIsLeftOutForAllAndSaidOnce) {
  for (bool const exclusive : {true, false}) {
    Shared<PathShared[2]> pair;
    auto const bytes_of_both = std::as_writable_bytes(std::span{*pair});
    auto const mine = make_paths({two(), exclusive, bytes_of_both, kernel});
    auto const others = make_paths({two(), exclusive, bytes_of_both, kernel});
    testing::internal::CaptureStderr();
    others->at(1)->leave_out("no space");
    EXPECT_FALSE(mine->at(1)->writable());
    EXPECT_TRUE(mine->at(0)->writable());
    EXPECT_EQ(others->at(1)->why_left_out(), "no space");
    EXPECT_THAT(mine->at(1)->why_left_out(), HasSubstr("another process"));
    EXPECT_EQ(mine->at(0)->why_left_out(), "");
    mine->at(1)->leave_out("no space here either");
    EXPECT_EQ(mine->at(1)->why_left_out(), "no space here either");
    std::string const said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("is left out"), said.rfind("is left out")) << said;
    EXPECT_THAT(said, HasSubstr("no space"));
  }
}

TEST_F(MakePathsTest, AnEmulatedPathIsADeviceOfItsOwn) {
  auto three = two();
  three.push_back(settings());
  three[1].emulation = three[2].emulation = Emulation{1e9, 1e9, Seconds{0.0}, Duplex::half};
  Shared<PathShared[3]> apart;
  auto const paths = make_paths({three, true, std::as_writable_bytes(std::span{*apart}), kernel});
  for (auto const& path : *paths) {
    read(*path);
  }
  for (PathShared const& path : *apart) {
    EXPECT_EQ(path.read_lock.released, 1U);
  }
  EXPECT_EQ((*apart)[0].throttle.read_busy_until, 0);
  EXPECT_GT((*apart)[1].throttle.read_busy_until, 0);
  EXPECT_GT((*apart)[2].throttle.read_busy_until, (*apart)[1].throttle.read_busy_until);
}

TEST_F(MakePathsTest, NoPathsAreNone) {
  EXPECT_TRUE(make_paths({})->empty());
  EXPECT_EQ(shared_bytes({}), 0);
}

TEST_F(MakePathsTest, AMissingDirectoryIsNamedWithTheKey) {
  PathSettings missing = settings();
  missing.directory = scratch / "gone";
  try {
    (void)make_paths({{settings(), missing}});
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tiers.path = " + missing.directory),
                                    HasSubstr("name a directory that exists")));
  }
}

TEST_F(MakePathsTest, SharedMemoryHasToSufficeAndBeAligned) {
  EXPECT_EQ(shared_bytes(two()), static_cast<Bytes>(sizeof(all->paths)));
  EXPECT_THROW((void)make_paths({two(), true, bytes().first(sizeof(PathShared))}),
               PreconditionError);
  EXPECT_THROW((void)make_paths({{settings()}, true, bytes().subspan(8)}), PreconditionError);
}

/// Of the file that is measured with.
constexpr char const* spill = "offstage-nojob-run-host-1-0";

TEST_F(StoragePathTest, MeasuresItsRatesAndLeavesNothingBehind) {
  PathSettings slow = settings();
  slow.emulation = Emulation{400e6, 200e6, Seconds{0.0}, Duplex::half};
  slow.processes = 2;
  StoragePath path{slow, {}, nullptr, nullptr};
  plan::PathRate const rate = measure_rates(path, spill, {10s, 16 * MiB, path_hold_bytes});
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
  (void)measure_rates(path, spill, {Seconds{0.0}, 2 * path_hold_bytes, path_hold_bytes});
  EXPECT_EQ(path.traffic().write.transfers, 1);
  EXPECT_EQ(path.traffic().read.transfers, 1);
  EXPECT_EQ(path.traffic().read.bytes, path_hold_bytes);
}

TEST_F(StoragePathTest, MeasuringKeepsToItsMemory) {
  PathSettings wide = settings();
  wide.processes = 2;
  StoragePath path{wide, {}, aio::libaio_kernel(), nullptr};
  (void)measure_rates(path, spill, {10s, 4 * MiB, 1 * MiB});
  EXPECT_EQ(path.traffic().write.bytes, 4 * MiB);
  EXPECT_EQ(path.traffic().write.transfers, 8);
}

TEST_F(StoragePathTest, MeasuringFailsWithTheKeyAndTheDirectory) {
  StoragePath path{settings(), {}, kernel, nullptr};
  auto const error = [&] {
    try {
      (void)measure_rates(path, spill, {1s, 4 * MiB, path_hold_bytes});
      return std::string{"no error"};
    } catch (IoError const& caught) {
      return std::string{caught.what()};
    }
  };
  kernel->submit_error = -EIO;
  EXPECT_THAT(error(), AllOf(HasSubstr("tiers.path = " + scratch.path()),
                             HasSubstr("cannot be measured: cannot write")));
  std::filesystem::remove_all(scratch.path());
  EXPECT_THAT(error(),
              AllOf(HasSubstr("tiers.path = " + scratch.path()), HasSubstr("does not exist")));
}

}  // namespace
}  // namespace offstage::tiers
