#include "tiers/storage_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "tiers/storage_path_support.hpp"

namespace offstage::tiers {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  Memory const memory{2 * path_turn_bytes + block};
  path.write(file, memory.bytes(), 3 * block);
  auto const transfers = kernel->transfers();
  ASSERT_EQ(transfers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    Bytes const begin = static_cast<Bytes>(i) * path_turn_bytes;
    EXPECT_EQ(transfers[i].offset, 3 * block + begin);
    EXPECT_EQ(transfers[i].memory, memory.bytes().data() + begin);
    EXPECT_EQ(transfers[i].length, i < 2 ? path_turn_bytes : block);
  }
  EXPECT_EQ(shared->read_lock.next_ticket, 3U);
  EXPECT_EQ(shared->read_lock.released, 3U);
  EXPECT_EQ(path.traffic().write.transfers, 3);
  EXPECT_EQ(path.traffic().write.bytes, 2 * path_turn_bytes + block);
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
  EXPECT_EQ(kernel->contexts(), 2) << "one more for the last requests of a transfer";
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
  EXPECT_EQ(kernel->contexts(), 4);
  EXPECT_TRUE(path.rate().full_duplex);
}

TEST_F(StoragePathTest, LetsAsManyInAsItsProcesses) {
  PathSettings wide = settings();
  wide.processes = 3;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 3; }); };
  hurry(path, 20);
  EXPECT_EQ(count.most, 3);
  EXPECT_EQ(kernel->contexts(), 6);
}

TEST_F(StoragePathTest, ThreadsOfAProcessShareItsHold) {
  PathSettings wide = settings();
  wide.threads = 2;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  // The first two, whoever they are, wait for each other inside one hold.
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 2; }); };
  hurry(path, 20);
  EXPECT_EQ(count.most, 2);
  EXPECT_LT(shared->read_lock.next_ticket, 80U) << "some holds had two transfers";
  EXPECT_EQ(shared->read_lock.released, shared->read_lock.next_ticket);
  EXPECT_EQ(shared->read_lock.left, shared->read_lock.next_ticket);
  EXPECT_EQ(path.traffic().read.transfers + path.traffic().write.transfers, 80);
}

TEST_F(StoragePathTest, PiecesOfThreadsAreTogetherNoMoreThanAHold) {
  PathSettings wide = settings();
  wide.threads = 4;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  Memory const memory{path_turn_bytes};
  path.read(file, memory.bytes(), 0);
  ASSERT_EQ(kernel->transfers().size(), 4U);
  EXPECT_EQ(kernel->transfers()[0].length, path_turn_bytes / 4);
}

/// While another process waits, a hold ends though threads of its process have more to do.
TEST_F(StoragePathTest, AHoldOfManyThreadsEndsWhereAnotherProcessWaits) {
  PathSettings wide = settings();
  wide.threads = 2;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  NodeLock other{shared->read_lock, 1};
  std::atomic<bool> done = false;
  std::vector<NamedThread> greedy;
  for (int t = 0; t < 3; ++t) {
    greedy.emplace_back("greedy", [&] {
      while (!done) {
        read(path);
      }
    });
  }
  wait_until([&] { return count.most == 2; });
  for (int i = 0; i < 20; ++i) {
    other.lock();
    EXPECT_EQ(count.reads, 0);
    other.unlock();
  }
  done = true;
}

TEST_F(StoragePathTest, AHoldTakesNoMoreThanItsThreadsWhileAnotherProcessWaits) {
  PathSettings wide = settings();
  wide.threads = 2;
  wide.engine = {block, 1};
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  NodeLock other{shared->read_lock, 1};
  std::atomic<int> requests = 0;
  // The first requests of two transfers: the hold goes on until the other process waits, and its
  // second transfer for longer than its first.
  kernel->meanwhile = [&](aio::Transfer const&) {
    int const number = ++requests;
    if (number <= 2) {
      wait_until([&] { return shared->read_lock.next_ticket == 2; });
    }
    if (number == 2) {
      std::this_thread::sleep_for(20ms);  // a third would begin meanwhile
    }
  };
  Memory const memory{2 * block};
  std::vector<NamedThread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back("reader", [&] { path.read(file, memory.bytes(), 0); });
  }
  wait_until([&] { return count.most == 2; });
  other.lock();
  EXPECT_EQ(kernel->transfers().size(), 4U) << "two transfers of two requests";
  other.unlock();
}

/// The next transfer begins when the last requests of the one before are under way, and not sooner.
TEST_F(StoragePathTest, IsHandedOnBeforeTheLastRequestsHaveEnded) {
  PathSettings two = settings();
  two.engine = {block, 1};
  StoragePath path{two, {&*shared, nullptr}, kernel, nullptr};
  std::atomic<int> requests = 0;
  // The second request of the first transfer waits for the first of the second.
  kernel->meanwhile = [&](aio::Transfer const&) {
    if (++requests == 2) {
      wait_until([&] { return count.most == 2; });
    }
  };
  Memory const memory{2 * block};
  auto const move = [&] { path.read(file, memory.bytes(), 0); };
  NamedThread first{"first", move};
  NamedThread second{"second", move};
  first.join();
  second.join();
  EXPECT_EQ(count.most, 2);
  EXPECT_EQ(kernel->transfers().size(), 4U);
  EXPECT_EQ(path.traffic().read.transfers, 2);
  EXPECT_EQ(shared->read_lock.left, shared->read_lock.next_ticket);
}

TEST_F(StoragePathTest, AnEmulatedPathIsHeldToTheEnd) {
  PathSettings slow = settings();
  slow.engine = {block, 1};
  slow.emulation = Emulation{1e9, 1e9, Seconds{0.0}, Duplex::half};
  StoragePath path{slow, {&*shared, nullptr}, kernel, nullptr};
  Memory const memory{8 * block};
  {
    NamedThread const other{"other", [&] { path.read(file, memory.bytes(), 0); }};
    path.write(file, memory.bytes(), 0);
  }
  EXPECT_EQ(count.most, 1);
}

TEST_F(StoragePathTest, WhoLetsOthersPassBeginsOnceNoneWaitsNorIsUnderWay) {
  PathSettings wide = settings();
  wide.processes = 2;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  StoragePath of_another_process{wide, {&*shared, nullptr}, kernel, nullptr};
  // The two that are in a hurry end together: between them there would be a place for the third.
  kernel->meanwhile = [this](aio::Transfer const& transfer) {
    if (transfer.offset != 7 * block) {
      wait_until([&] { return count.most == 2; });
    }
  };
  auto const read_one = [&](StoragePath& by, Bytes offset, LetsPass const& lets_pass) {
    Memory const memory{block};
    by.read(file, memory.bytes(), offset, lets_pass);
  };
  NamedThread first{"first", [&] { read_one(of_another_process, 0, {}); }};
  wait_until([&] { return kernel->transfers().size() == 1; });
  std::atomic<int> asked = 0;
  NamedThread patient{"patient", [&] { read_one(path, 7 * block, [&] { return ++asked > 0; }); }};
  wait_until([&] { return asked > 0; });
  read_one(path, block, {});
  first.join();
  patient.join();
  auto const transfers = kernel->transfers();
  ASSERT_EQ(transfers.size(), 3U);
  EXPECT_EQ(transfers[1].offset, block);
  EXPECT_EQ(transfers[2].offset, 7 * block);
  EXPECT_EQ(path.traffic().read.bytes, block) << "without what let others pass";
}

TEST_F(StoragePathTest, WhoLetsOthersPassNoMoreWaitsItsTurn) {
  PathSettings wide = settings();
  wide.processes = 2;
  StoragePath path{wide, {&*shared, nullptr}, kernel, nullptr};
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 2; }); };
  NamedThread first{"first", [&] { read(path); }};
  wait_until([&] { return kernel->transfers().size() == 1; });
  int asked = 0;
  Memory const memory{block};
  path.read(file, memory.bytes(), block, [&] { return ++asked < 3; });
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(count.most, 2);
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

/// Four processes, each with a path and two threads; the most transfers that were under way at a
/// time.
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
      auto const paths = make_paths(
          {{settings}, {exclusive}, std::as_writable_bytes(std::span{all.paths}), kernel});
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
  kernel->submit_error = -ENODATA;
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

}  // namespace
}  // namespace offstage::tiers
