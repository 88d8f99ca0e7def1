#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "platform/faulty_kernel.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/spill_file.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {
namespace {

using aio::Completion;
using aio::Direction;
using aio::FaultyKernel;
using aio::Transfer;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes extent = 256 * KiB;

template <class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (IoError const& error) {
    return error.what();
  }
  return "no IoError";
}

void set(Lease& lease, int value) {
  std::ranges::fill(lease.mutable_bytes(), static_cast<std::byte>(value));
}
bool all(std::span<std::byte const> bytes, int value) {
  return std::ranges::all_of(bytes,
                             [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

/// Two keys, one buffer, small requests, and a kernel that a test can make fail.
class StorageTiers : public ::testing::Test {
 protected:
  StorageTiers() {
    settings.path = scratch.path();
    settings.spill = "offstage-test-3";
    settings.buffers = 1;
    settings.engine = {64 * KiB, 2};
    settings.kernel = kernel;
  }
  std::unique_ptr<Tiers> make(std::vector<Bytes> const& sizes = {extent, extent}) {
    auto tiers = make_storage_tiers(sizes, settings);
    for (Key key = 0; key < std::ssize(sizes); ++key) {
      Lease lease = tiers->create(key);
      set(lease, 1);
      lease.commit();
    }
    return tiers;
  }
  void make_directory_in_the_way() const {
    std::filesystem::create_directory(scratch / "offstage-test-3");
  }

  ScratchDirectory scratch;
  std::shared_ptr<FaultyKernel> kernel = std::make_shared<FaultyKernel>();
  StorageSettings settings;
};

TEST_F(StorageTiers, DiscardKeepsTheVersionBefore) {
  auto const tiers = make();
  {
    Lease lease = tiers->fetch(0);
    set(lease, 2);
  }
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1));
}

TEST_F(StorageTiers, CountsWhatItMovesAndHolds) {
  auto const tiers = make({extent, 5000});
  Traffic const before = tiers->traffic();
  EXPECT_EQ(before.write_bytes, extent + 8192) << "whole blocks of 4096";
  EXPECT_EQ(before.read_bytes, 0);
  { Lease const lease = tiers->fetch(1); }
  EXPECT_EQ(tiers->traffic().read_bytes, 8192);
  EXPECT_GT(tiers->traffic().read_seconds.count(), 0.0);
  EXPECT_EQ(tiers->host_bytes(), extent);
}

TEST_F(StorageTiers, MovesExtentsInPiecesOf64MiB) {
  Bytes const large = 64 * MiB + 5000;
  settings.engine = {};
  auto const tiers = make({large});
  Lease lease = tiers->fetch(0);
  auto const bytes = lease.mutable_bytes();
  bytes.front() = bytes.back() = std::byte{9};
  lease.commit();
  Lease const again = tiers->fetch(0);
  EXPECT_EQ(again.bytes().back(), std::byte{9});
  EXPECT_TRUE(all(again.bytes().subspan(1, again.bytes().size() - 2), 1));
}

TEST_F(StorageTiers, WritesToAFreeSlotNeverOverTheCurrentOne) {
  auto const tiers = make();
  std::vector<Bytes> reads;
  std::vector<Bytes> writes;
  kernel->on_submit = [&](Transfer& transfer) {
    (transfer.direction == Direction::read ? reads : writes).push_back(transfer.offset / extent);
    return 0;
  };
  for (int i = 0; i < 4; ++i) {
    reads.clear();
    writes.clear();
    Lease lease = tiers->fetch(0);
    lease.commit();
    ASSERT_EQ(reads.size(), 4U);
    ASSERT_EQ(writes.size(), 4U);
    EXPECT_NE(reads.front(), writes.front());
  }
}

TEST_F(StorageTiers, LeavesNoNameInTheDirectory) {
  mode_t mode = 0;
  nlink_t links = 1;
  kernel->on_submit = [&](Transfer& transfer) {
    struct stat status {};
    EXPECT_EQ(fstat(transfer.descriptor, &status), 0);
    mode = status.st_mode;
    links = status.st_nlink;
    return 0;
  };
  auto const tiers = make();
  EXPECT_EQ(mode & 0777U, 0600U);
  EXPECT_EQ(links, 0U);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(StorageTiers, TakesOverAnEmptyDirectory) {
  make_directory_in_the_way();
  auto const tiers = make();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(StorageTiers, RefusesWhatLiesInItsDirectory) {
  make_directory_in_the_way();
  std::string const foreign = scratch / "offstage-test-3/extents";
  std::ofstream{foreign} << "foreign";
  EXPECT_THAT(
      message_of([&] { make(); }),
      AllOf(HasSubstr("tiers.path"), HasSubstr(scratch / "offstage-test-3"), HasSubstr("remove")));
  EXPECT_EQ(std::filesystem::file_size(foreign), 7U);
}

TEST_F(StorageTiers, RefusesAFileInPlaceOfItsDirectory) {
  std::ofstream{scratch / "offstage-test-3"} << "foreign";
  EXPECT_THAT(message_of([&] { make(); }), HasSubstr("in the way"));
}

TEST_F(StorageTiers, SaysWhatIsWrongWithThePath) {
  settings.path = scratch / "missing";
  EXPECT_THAT(message_of([&] { make(); }),
              AllOf(HasSubstr("tiers.path = " + settings.path), HasSubstr("does not exist"),
                    HasSubstr("create it")));
  settings.path = scratch / "file";
  std::ofstream{settings.path} << "x";
  EXPECT_THAT(message_of([&] { make(); }), HasSubstr("not a directory"));
  settings.path = "/proc";  // neither root nor others make directories there
  EXPECT_THAT(message_of([&] { make(); }), HasSubstr("tiers.path = /proc"));
}

TEST_F(StorageTiers, RefusesWhatDoesNotFitAndLeavesNothing) {
  auto const huge = [&] {
    (void)make_spill_file(scratch.path(), "offstage-test-3", Bytes{1} << 50);
  };
  EXPECT_THAT(message_of(huge),
              AllOf(HasSubstr("tiers.path"), HasSubstr("needs"), HasSubstr("is free")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(StorageTiers, RefusesBadSettings) {
  settings.buffers = 0;
  EXPECT_THROW(make(), PreconditionError);
  settings.buffers = 1;
  EXPECT_THROW(make({0}), PreconditionError);
}

TEST_F(StorageTiers, AFailedWriteKeepsTheVersionBefore) {
  auto const tiers = make();
  for (int const error : {ENOSPC, EIO}) {
    kernel->on_complete = [&](Transfer const& transfer, Completion& completion) {
      if (transfer.direction == Direction::write) {
        completion.result = -error;
      }
    };
    Lease lease = tiers->fetch(1);
    set(lease, 2);
    EXPECT_THAT(message_of([&] { lease.commit(); }),
                AllOf(HasSubstr("extent 1"), HasSubstr("offset"), HasSubstr(scratch.path()),
                      HasSubstr(error == EIO ? "Input/output error" : "No space left")));
    kernel->on_complete = nullptr;
    EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
  }
  Lease lease = tiers->fetch(1);  // and later versions are written
  set(lease, 3);
  lease.commit();
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 3));
}

TEST_F(StorageTiers, AFailedReadSaysThatTheRunMustResume) {
  auto const tiers = make();
  kernel->on_complete = [](Transfer const&, Completion& completion) { completion.result = -EIO; };
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(0); }),
              AllOf(HasSubstr("extent 0"), HasSubstr("offset 0"), HasSubstr(scratch.path()),
                    HasSubstr("Input/output error"), HasSubstr("checkpoint")));
  kernel->on_complete = nullptr;
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1)) << "the key and the only buffer were not given back";
}

TEST_F(StorageTiers, ReadsAgainAfterAPassingError) {
  auto const tiers = make();
  int failures = 2;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (failures-- > 0) {
      completion.result = -EIO;
    }
  };
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1));
}

TEST_F(StorageTiers, AFlippedBitIsFound) {
  auto const tiers = make();
  auto const flip = [](Transfer const& transfer, Completion&) {
    if (transfer.offset == extent + 64 * KiB) {
      transfer.memory[1234] ^= std::byte{16};
    }
  };
  kernel->on_complete = flip;
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1));
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(1); }),
              AllOf(HasSubstr("extent 1"), HasSubstr("offset " + std::to_string(extent)),
                    HasSubstr("checksum"), HasSubstr("checkpoint")));
  kernel->on_complete = nullptr;
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
}

TEST_F(StorageTiers, AFlippedBitInTheLastBytesIsFound) {
  auto const tiers = make({5000});
  kernel->on_complete = [](Transfer const& transfer, Completion&) {
    transfer.memory[4999] ^= std::byte{1};
  };
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(0); }), HasSubstr("checksum"));
}

TEST_F(StorageTiers, ShortTransfersAndEagainChangeNothing) {
  std::atomic<int> calls = 0;
  kernel->reverse = true;
  kernel->on_submit = [&](Transfer& transfer) {
    transfer.length = std::min<Bytes>(transfer.length, 12 * KiB);
    return ++calls % 7 == 0 ? -EAGAIN : 0;
  };
  auto const tiers = make();
  for (int value = 1; value < 4; ++value) {
    Lease lease = tiers->fetch(1);
    EXPECT_TRUE(all(lease.bytes(), value));
    set(lease, value + 1);
    lease.commit();
  }
}

}  // namespace
}  // namespace offstage::tiers
