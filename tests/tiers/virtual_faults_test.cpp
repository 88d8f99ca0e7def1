// Storage that fails under the virtual tier.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <map>

#include "base/thread.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using aio::Completion;
using aio::Direction;
using aio::Transfer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr Bytes extent_bytes = 256 * KiB;

class VirtualFaults : public ::testing::Test, public VirtualFixture {
 protected:
  /// Every write to these paths fails from now on.
  void fail_writes(std::vector<std::size_t> const& broken, int error = EIO) {
    kernel->on_complete = [this, broken, error](Transfer const& transfer, Completion& completion) {
      if (transfer.direction == Direction::write &&
          std::ranges::count(broken, path_of(transfer)) > 0) {
        completion.result = -error;
      }
    };
  }

  /// What was written last at each place.
  void watch_writes() {
    kernel->on_submit = [this](Transfer& transfer) {
      if (transfer.direction == Direction::write) {
        written[{transfer.descriptor, transfer.offset}] = transfer.length;
      }
      return 0;
    };
  }
  /// Inverts one bit of the file itself.
  static void flip_bit(int descriptor, Bytes offset) {
    std::string const path = "/proc/self/fd/" + std::to_string(descriptor);
    int const file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(file, 0);
    char byte{};
    ASSERT_EQ(pread(file, &byte, 1, offset), 1);
    byte = static_cast<char>(byte ^ 16);
    ASSERT_EQ(pwrite(file, &byte, 1, offset), 1);
    ASSERT_EQ(fdatasync(file), 0);
    close(file);
  }
  void flip_every_extent() {
    Bytes within = 0;
    for (auto const& [place, length] : written) {
      flip_bit(place.first, place.second + within);
      within = (within + 1237) % length;
    }
  }

  std::map<std::pair<int, Bytes>, Bytes> written;
};

/// Files cannot grow beyond `bytes` while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(Bytes bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit changed = before_;
    changed.rlim_cur = static_cast<rlim_t>(bytes);
    setrlimit(RLIMIT_FSIZE, &changed);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(FileSizeLimit const&) = delete;
  FileSizeLimit& operator=(FileSizeLimit const&) = delete;

 private:
  rlimit before_{};
};

TEST_F(VirtualFaults, APathThatFailsWritingIsLeftOutAndNothingIsLost) {
  constexpr Key n = 20;
  for (std::int64_t const cached : {0, 3}) {
    paths.clear();
    add_paths(2);
    settings.cached = cached;
    kernel->on_complete = nullptr;
    auto const tiers = make_filled(n);
    ASSERT_TRUE(pass(*tiers, descending(n), 0));
    ASSERT_GT(tiers->residence().paths.at(1), 0);
    tiers->begin_pass();
    CaptureStderr();
    for (Key key = 0; key < n; ++key) {
      if (key == 10) {
        fail_writes({1});
      }
      Lease lease = tiers->fetch(key);
      EXPECT_TRUE(all(lease.bytes(), static_cast<int>(key) + 1));
      set(lease, static_cast<int>(key) + 2);
      lease.commit();
    }
    EXPECT_TRUE(pass(*tiers, descending(n), 2));
    std::string const said = GetCapturedStderr();
    EXPECT_EQ(count(said, "is left out"), 1U) << said;
    EXPECT_THAT(said, HasSubstr(paths[1].directory));
    EXPECT_TRUE(pass(*tiers, ascending(n), 3));
    EXPECT_EQ(tiers->residence().paths.at(1), 0);
    EXPECT_EQ(tiers->residence().paths.at(0), (n - cached) * 8 * KiB);
  }
}

TEST_F(VirtualFaults, WhenEveryPathFailsTheExtentStaysInMemory) {
  for (int const error : {ENOSPC, EDQUOT, EIO}) {
    paths.clear();
    add_paths(2);
    kernel->on_complete = nullptr;
    auto const tiers = make({extent_bytes, extent_bytes, extent_bytes});
    for (Key key = 0; key < 3; ++key) {
      put(*tiers, key, 1);
    }
    fail_writes({0, 1}, error);
    Lease lease = tiers->fetch(1);
    set(lease, 2);
    CaptureStderr();
    EXPECT_THAT(message_of([&] { lease.commit(); }),
                AllOf(HasSubstr("extent 1"), HasSubstr("offset"), HasSubstr(scratch.path()),
                      HasSubstr(std::generic_category().message(error)), HasSubstr("tiers.path")));
    EXPECT_EQ(count(GetCapturedStderr(), "is left out"), 2U);
    EXPECT_TRUE(tiers->in_memory(1));
    EXPECT_TRUE(all(tiers->fetch(1).bytes(), 2));
    EXPECT_THAT(message_of([&] { (void)tiers->fetch(0); }), HasSubstr("extent 1 was not written"))
        << "it has the only buffer: waiting for that would last for ever";
    EXPECT_THAT(message_of([&] { tiers->fetch(1).commit(); }), HasSubstr("no tiers.path is left"));
    EXPECT_TRUE(all(tiers->fetch(1).bytes(), 2));
  }
}

TEST_F(VirtualFaults, ThreadsEndWhenEveryPathFails) {
  add_paths(2);
  settings.buffers = 3;
  settings.cached = 2;
  auto const tiers = make_filled(12);
  std::atomic<int> errors = 0;
  CaptureStderr();
  fail_writes({0, 1});
  {
    std::vector<NamedThread> threads;
    for (Key t = 0; t < 6; ++t) {
      threads.emplace_back("worker", [&, t] {
        try {
          for (Key key = 0; key < 12; ++key) {
            Lease lease = tiers->fetch((key + 2 * t) % 12);
            (void)lease.mutable_bytes();
            lease.commit();
          }
        } catch (IoError const&) {
          ++errors;
        }
      });
    }
  }
  (void)GetCapturedStderr();
  EXPECT_EQ(errors, 6);
  int there = 0;
  for (Key key = 0; key < 12; ++key) {
    if (tiers->in_memory(key)) {
      EXPECT_TRUE(all(tiers->fetch(key).bytes(), static_cast<int>(key)));
      ++there;
    }
  }
  EXPECT_EQ(there, 5) << "all buffers";
}

TEST_F(VirtualFaults, APathWithoutRoomToGrowTakesNoMore) {
  constexpr Key n = 40;
  add_paths(2);
  auto const tiers = make_filled(n);
  EXPECT_EQ(tiers->residence().paths, (std::vector<Bytes>{20 * 8 * KiB, 20 * 8 * KiB}));
  settings.paths->at(0)->set_rates(100e9, 100e9);
  {
    FileSizeLimit const limit{21 * 8 * KiB};
    CaptureStderr();
    EXPECT_TRUE(pass(*tiers, descending(n), 0));
    EXPECT_TRUE(pass(*tiers, ascending(n), 1));
    std::string const said = GetCapturedStderr();
    EXPECT_EQ(count(said, "cannot make more slots"), 1U) << said;
    EXPECT_EQ(tiers->residence().paths, (std::vector<Bytes>{21 * 8 * KiB, 19 * 8 * KiB}));
  }
  EXPECT_TRUE(pass(*tiers, descending(n), 2));
  EXPECT_EQ(tiers->residence().paths.at(1), 0) << "it was not left out";
}

TEST_F(VirtualFaults, AFailedReadSaysThatTheRunMustResume) {
  add_path();
  auto const tiers = make({extent_bytes, extent_bytes});
  put(*tiers, 0, 1);
  put(*tiers, 1, 1);
  kernel->on_complete = [](Transfer const&, Completion& completion) { completion.result = -EIO; };
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(0); }),
              AllOf(HasSubstr("extent 0"), HasSubstr("offset 0"), HasSubstr(scratch.path()),
                    HasSubstr("Input/output error"), HasSubstr("checkpoint")));
  kernel->on_complete = nullptr;
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1)) << "the key and the only buffer were not given back";
}

TEST_F(VirtualFaults, ReadsAgainAfterAPassingError) {
  add_path();
  auto const tiers = make_filled(2);
  int failures = 2;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (failures-- > 0) {
      completion.result = -EIO;
    }
  };
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
}

TEST_F(VirtualFaults, AFlippedBitInEveryExtentIsFound) {
  constexpr Key n = 15;
  add_paths(3);
  watch_writes();
  auto const tiers = make_filled(n);
  ASSERT_EQ(std::ssize(written), n);
  flip_every_extent();
  for (Key key = 0; key < n; ++key) {
    EXPECT_THAT(message_of([&] { (void)tiers->fetch(key); }),
                AllOf(HasSubstr("extent " + std::to_string(key) + ","), HasSubstr(scratch.path()),
                      HasSubstr("checksum"), HasSubstr("checkpoint")));
  }
}

TEST_F(VirtualFaults, AFlippedBitOnTheWayIsReadAgain) {
  add_path();
  auto const tiers = make_filled(2);
  int flips = 2;
  kernel->on_complete = [&](Transfer const& transfer, Completion&) {
    if (flips-- > 0) {
      transfer.memory[1234] ^= std::byte{16};
    }
  };
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
}

TEST_F(VirtualFaults, ASampleFindsOneInSixteenInTurnAndOffFindsNone) {
  constexpr Key n = 32;
  add_path();
  settings.verify = Verify::sample;
  watch_writes();
  std::vector<int> found(n);
  auto tiers = make_filled(n);
  for (int round = 0; round < verify_sample; ++round) {
    int in_round = 0;
    for (Key key = 0; key < n; ++key) {
      kernel->on_complete = [](Transfer const& transfer, Completion&) {
        transfer.memory[77] ^= std::byte{1};
      };
      bool const seen = message_of([&] { (void)tiers->fetch(key); }) != "no such error";
      found[static_cast<std::size_t>(key)] += seen ? 1 : 0;
      in_round += seen ? 1 : 0;
      kernel->on_complete = nullptr;
      tiers->fetch(key).commit();
    }
    EXPECT_EQ(in_round, n / verify_sample);
  }
  EXPECT_EQ(found, std::vector<int>(n, 1));
  settings.verify = Verify::off;
  written.clear();
  tiers = make_filled(n);
  flip_every_extent();
  for (Key key = 0; key < n; ++key) {
    EXPECT_FALSE(all(tiers->fetch(key).bytes(), static_cast<int>(key)));
  }
}

TEST_F(VirtualFaults, AFlippedBitInTheLastBytesIsFound) {
  add_path();
  auto const tiers = make({5000});
  put(*tiers, 0, 1);
  kernel->on_complete = [](Transfer const& transfer, Completion&) {
    transfer.memory[4999] ^= std::byte{1};
  };
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(0); }), HasSubstr("checksum"));
}

TEST_F(VirtualFaults, ShortTransfersAndEagainChangeNothing) {
  add_paths(2);
  std::atomic<int> calls = 0;
  kernel->reverse = true;
  kernel->on_submit = [&](Transfer& transfer) {
    transfer.length = std::min<Bytes>(transfer.length, 12 * KiB);
    return ++calls % 7 == 0 ? -EAGAIN : 0;
  };
  auto const tiers = make_filled(3, extent_bytes);
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(pass(*tiers, ascending(3), round));
  }
}

TEST_F(VirtualFaults, TheSmallestPoolsServeManyThreads) {
  constexpr Key n = 5;
  for (Evict const evict : {Evict::farthest, Evict::oldest}) {
    for (std::int64_t const cached : {0, 1}) {
      paths.clear();
      add_paths(2);
      settings.evict = evict;
      settings.cached = cached;
      auto const tiers = make_filled(n);
      std::vector<std::atomic<int>> commits(n);
      std::vector<NamedThread> threads;
      for (Key t = 0; t < 8; ++t) {
        threads.emplace_back("worker", [&, t] {
          for (Key i = 0; i < 30; ++i) {
            Key const key = (i * (t % 2 == 0 ? 1 : 3) + t) % n;
            Lease lease = tiers->fetch(key);
            auto& value = commits[static_cast<std::size_t>(key)];
            EXPECT_TRUE(all(lease.bytes(), static_cast<int>(key) + value));
            set(lease, static_cast<int>(key) + ++value);
            lease.commit();
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace offstage::tiers
