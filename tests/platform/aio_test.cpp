#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/failing_allocations.hpp"
#include "base/pauses.hpp"
#include "platform/aio/engine.hpp"
#include "platform/aio/file.hpp"
#include "platform/aio/kernel.hpp"
#include "platform/faulty_kernel.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/scratch_directory.hpp"

namespace {
bool knows_no_size = false;
}

// In the place of libc's, in this program: as a FUSE that says -1 for what it does not know.
extern "C" int statvfs(char const* path, struct statvfs* out) noexcept {
  struct statfs found {};
  if (statfs(path, &found) != 0) {
    return -1;
  }
  out->f_frsize = static_cast<unsigned long>(found.f_frsize);
  out->f_blocks = knows_no_size ? ~0UL : found.f_blocks;
  out->f_bavail = knows_no_size ? ~0UL : found.f_bavail;
  return 0;
}

namespace offstage::aio {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Bytes block = 64 * KiB;
constexpr EngineSettings small_requests{block, 4};

template <class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (IoError const& error) {
    return error.what();
  }
  return "no IoError";
}

void fill(std::span<std::byte> bytes, unsigned seed) {
  std::mt19937 generator{seed};
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(generator());
  }
}

bool equal(std::span<std::byte const> a, std::span<std::byte const> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// A file of 16 blocks with random bytes, and an engine on a kernel that a test can make fail.
class AioEngine : public ::testing::Test {
 protected:
  AioEngine() {
    file.allocate(16 * block);
    fill(content.bytes(), 1);
    Engine{small_requests}.write(file, content.bytes(), 0);
  }

  ScratchDirectory scratch;
  File file = File::create(scratch / "data");
  memory::HugeBuffer content{16 * block};
  memory::HugeBuffer target{16 * block};
  std::shared_ptr<FaultyKernel> kernel = std::make_shared<FaultyKernel>();
  Engine engine{small_requests, kernel};
};

TEST(AioFile, IsCreatedForItsOwnerAloneAndOnlyOnce) {
  ScratchDirectory const scratch;
  File const file = File::create(scratch / "data");
  struct stat status {};
  ASSERT_EQ(fstat(file.descriptor(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(file.path(), scratch / "data");
  EXPECT_THAT(message_of([&] { (void)File::create(scratch / "data"); }),
              AllOf(HasSubstr("cannot create"), HasSubstr(scratch / "data"), HasSubstr("exists")));
}

TEST(AioFile, NamesThePathThatDoesNotOpen) {
  EXPECT_THAT(message_of([] { (void)File::open_read("/nonexistent/file"); }),
              AllOf(HasSubstr("/nonexistent/file"), HasSubstr("No such file")));
  EXPECT_THAT(message_of([] { sync_directory("/nonexistent"); }), HasSubstr("/nonexistent"));
  EXPECT_THAT(message_of([] { (void)free_bytes("/nonexistent"); }), HasSubstr("/nonexistent"));
}

TEST(AioFile, ReadsNothingThatALinkLeadsTo) {
  ScratchDirectory const scratch;
  (void)File::create(scratch / "data");
  fs::create_symlink(scratch / "data", scratch / "link");
  EXPECT_EQ(File::open_read(scratch / "data").size(), 0);
  EXPECT_THAT(message_of([&] { (void)File::open_read(scratch / "link"); }),
              HasSubstr(scratch / "link"));
}

TEST(AioFile, SaysWhetherTransfersAreDirect) {
  ScratchDirectory const scratch;
  File const file = File::create(scratch / "data");
  EXPECT_EQ(file.direct(), (fcntl(file.descriptor(), F_GETFL) & O_DIRECT) != 0);
  // procfs refuses O_DIRECT.
  File const buffered = File::open_read("/proc/self/status");
  EXPECT_FALSE(buffered.direct());
}

TEST(AioFile, HasTheAllocatedSize) {
  ScratchDirectory const scratch;
  File const file = File::create(scratch / "data");
  EXPECT_EQ(file.size(), 0);
  file.allocate(3 * MiB);
  EXPECT_EQ(file.size(), 3 * MiB);
  file.sync();
  sync_directory(scratch.path());
}

TEST(AioDirectory, IsMadeWithItsParentsAndNamesAFileInTheWay) {
  ScratchDirectory const scratch;
  EXPECT_THAT(make_directory(scratch / "a/b/c/"),
              ElementsAre(scratch / "a", scratch / "a/b", scratch / "a/b/c"));
  EXPECT_THAT(make_directory(scratch / "a/b/c"), IsEmpty());
  EXPECT_TRUE(fs::is_directory(scratch / "a/b/c"));
  (void)File::create(scratch / "a/file");
  EXPECT_THAT(message_of([&] { make_directory(scratch / "a/file/c"); }), HasSubstr("file"));
  EXPECT_THAT(message_of([&] { make_directory(scratch / "a/file"); }), HasSubstr("file"));
}

TEST(AioDirectory, LeavesNoParentWhereItFails) {
  ScratchDirectory const scratch;
  std::string const too_long(256, 'x');
  EXPECT_THAT(message_of([&] { make_directory(scratch / ("a/b/" + too_long)); }),
              HasSubstr("cannot create the directory"));
  EXPECT_FALSE(fs::exists(scratch / "a"));
}

TEST(AioDirectory, GoesAgainUnlessItIsKept) {
  ScratchDirectory const scratch;
  fs::create_directory(scratch / "a");
  { MadeDirectories{}.make(scratch / "a/b/c"); }
  EXPECT_TRUE(fs::is_empty(scratch / "a"));
  {
    MadeDirectories made;
    made.make(scratch / "a/b/c");
    (void)File::create(scratch / "a/b/file");
  }
  EXPECT_TRUE(fs::exists(scratch / "a/b/file"));
  EXPECT_FALSE(fs::exists(scratch / "a/b/c"));
  {
    MadeDirectories made;
    made.make(scratch / "kept");
    made.keep();
  }
  EXPECT_TRUE(fs::is_directory(scratch / "kept"));
}

TEST(AioFile, RefusesMoreThanIsFreeWithoutTakingIt) {
  ScratchDirectory const scratch;
  File const file = File::create(scratch / "data");
  Bytes const huge = Bytes{1} << 60;
  EXPECT_LT(free_bytes(scratch.path()), huge);
  EXPECT_THAT(message_of([&] { file.allocate(huge); }),
              AllOf(HasSubstr(scratch / "data"), HasSubstr("needs"), HasSubstr("is free")));
  EXPECT_EQ(file.size(), 0);
}

TEST(FreeBytes, AreWithoutEndWhereThereAreMoreThanCanBeCounted) {
  ScratchDirectory const scratch;
  knows_no_size = true;
  EXPECT_EQ(free_bytes(scratch.path()), std::numeric_limits<Bytes>::max());
  knows_no_size = false;
  EXPECT_GT(free_bytes(scratch.path()), 0);
}

TEST(AioFile, MovesItsDescriptor) {
  ScratchDirectory const scratch;
  File first = File::create(scratch / "data");
  int const descriptor = first.descriptor();
  File second{std::move(first)};
  EXPECT_EQ(second.descriptor(), descriptor);
  second = File{};
  EXPECT_EQ(fcntl(descriptor, F_GETFD), -1) << "the descriptor was not closed";
}

/// Moves nothing; requests end one at a time.
class OneByOneKernel final : public Kernel {
 public:
  int in_flight() const { return static_cast<int>(transfers_.size()); }

  int setup(int /*depth*/, Context& /*context*/) override { return 0; }
  int submit(Context /*context*/, Transfer const& transfer) override {
    transfers_.push_back(transfer);
    return 0;
  }
  int get_events(Context /*context*/, std::span<Completion> completions) override {
    completions[0] = {transfers_.front().tag, transfers_.front().length};
    transfers_.pop_front();
    return 1;
  }
  void destroy(Context /*context*/) noexcept override {}

 private:
  std::deque<Transfer> transfers_;
};

TEST_F(AioEngine, SaysOnceThatTheLastRequestsAreUnderWay) {
  auto const one_by_one = std::make_shared<OneByOneKernel>();
  struct Trial {
    int depth, requests, left;  ///< of them, in flight when it is said; -1: it is not
  };
  for (auto const& [depth, requests, left] :
       {Trial{4, 16, 2}, {4, 2, 1}, {4, 3, 2}, {1, 2, 1}, {2, 5, 1}, {4, 1, -1}, {1, 1, -1}}) {
    Engine last{{block, depth}, one_by_one};
    std::vector<int> told;
    last.read(file, target.bytes().first(static_cast<std::size_t>(requests * block)), 0,
              [&] { told.push_back(one_by_one->in_flight()); });
    EXPECT_EQ(told, left < 0 ? std::vector<int>{} : std::vector{left})
        << depth << " at a time, " << requests;
  }
}

TEST_F(AioEngine, ReadsBackWhatItWrote) {
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
  // A part, whose length is not a multiple of the request.
  auto const part = target.bytes().first(block + direct_alignment);
  engine.read(file, part, 3 * block);
  EXPECT_TRUE(equal(part, content.bytes().subspan(3 * block, part.size())));
}

TEST_F(AioEngine, DoesWithoutAsynchronousRequestsWhereTheSystemRefusesThem) {
  for (int const refusal : {EPERM, ENOSYS, EAGAIN}) {
    kernel->on_setup = [refusal] { return -refusal; };
    Engine other{{block, 3}, kernel};
    fill(content.bytes(), static_cast<unsigned>(refusal));
    other.write(file, content.bytes(), 0);
    std::ranges::fill(target.bytes(), std::byte{});
    other.read(file, target.bytes(), 0);
    EXPECT_TRUE(equal(target.bytes(), content.bytes()));
    EXPECT_THAT(message_of([&] { other.read(file, target.bytes(), 8 * block); }),
                HasSubstr("end of file"));
    other.read(file, target.bytes(), 0);  // an error leaves nothing of it behind
    EXPECT_TRUE(equal(target.bytes(), content.bytes()));
  }
  EXPECT_THROW((Engine{{block, 3, true}, kernel}), IoError) << "the last refusal";
}

TEST_F(AioEngine, MovesNothingForAnEmptySpan) {
  kernel->on_submit = [](Transfer&) { return -EIO; };
  engine.read(file, {}, 0);
  engine.write(file, {}, 0);
}

TEST_F(AioEngine, KeepsNoMoreThanItsDepthInFlight) {
  std::size_t most = 0;
  std::size_t now = 0;
  kernel->on_submit = [&](Transfer&) {
    most = std::max(most, ++now);
    return 0;
  };
  kernel->on_complete = [&](Transfer const&, Completion&) { --now; };
  engine.read(file, target.bytes(), 0);
  EXPECT_EQ(most, 4U);
}

TEST_F(AioEngine, WantsAlignmentOfDirectFilesAlone) {
  if (file.direct()) {
    EXPECT_THROW(engine.read(file, target.bytes().first(100), 0), PreconditionError);
    EXPECT_THROW(engine.read(file, target.bytes().subspan(1, block), 0), PreconditionError);
    EXPECT_THROW(engine.write(file, content.bytes().first(block), 512), PreconditionError);
  }
  File const buffered = File::open_read("/proc/meminfo");
  ASSERT_FALSE(buffered.direct());
  std::vector<std::byte> text(5);
  engine.read(buffered, text, 1);
  EXPECT_EQ(std::string(reinterpret_cast<char const*>(text.data()), 4), "emTo");
}

TEST_F(AioEngine, GoesOnThroughThePageCacheWhereADirectTransferIsRefused) {
  kernel->on_complete = [this](Transfer const&, Completion& completion) {
    completion.result = file.direct() ? -EINVAL : completion.result;
  };
  engine.read(file, target.bytes(), 0);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
  kernel->on_complete = [](Transfer const&, Completion& completion) {
    completion.result = -EINVAL;
  };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 0); }),
              HasSubstr("Invalid argument"));
}

TEST_F(AioEngine, RefusesClosedFilesAndBadSettings) {
  EXPECT_THROW(engine.read(File{}, target.bytes(), 0), PreconditionError);
  EXPECT_THROW(engine.read(file, target.bytes(), -direct_alignment), PreconditionError);
  EXPECT_THROW(Engine({1000, 4}, kernel), PreconditionError);
  EXPECT_THROW(Engine({block, 0}, kernel), PreconditionError);
  EXPECT_THROW(Engine({block, 4}, nullptr), PreconditionError);
}

TEST_F(AioEngine, ReadingPastTheEndIsAnError) {
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 8 * block); }),
              AllOf(HasSubstr("cannot read"), HasSubstr(file.path()), HasSubstr("end of file")));
}

TEST_F(AioEngine, ContinuesShortTransfers) {
  kernel->on_submit = [](Transfer& transfer) {
    transfer.length = std::min<Bytes>(transfer.length, direct_alignment * 3);
    return 0;
  };
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
  fill(content.bytes(), 2);
  engine.write(file, content.bytes(), 0);
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

TEST_F(AioEngine, StartsAgainOnTheAlignmentAfterAnOddShortTransfer) {
  kernel->on_complete = [](Transfer const&, Completion& completion) {
    if (completion.result == block) {
      completion.result -= 512;
    }
  };
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

TEST_F(AioEngine, TriesAgainWhereLessThanAnAlignedBlockMoved) {
  int left = 20;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (--left >= 0) {
      completion.result = 1 + left * 200;
    }
  };
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
  kernel->on_complete = [](Transfer const&, Completion& completion) { completion.result = 512; };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes().first(4096), 0); }),
              HasSubstr("only 512 bytes moved"));
}

TEST_F(AioEngine, TakesCompletionsInAnyOrder) {
  kernel->reverse = true;
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

TEST_F(AioEngine, TriesAgainAfterEagainAndEintr) {
  int calls = 0;
  kernel->on_submit = [&](Transfer&) {
    ++calls;
    return calls % 3 == 1 ? -EAGAIN : (calls % 3 == 2 ? -EINTR : 0);
  };
  int waits = 0;
  kernel->on_wait = [&] { return ++waits % 2 == 1 ? -EINTR : 0; };
  int completions = 0;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (++completions % 4 == 0) {
      completion.result = -EAGAIN;
    }
    if (completions % 4 == 1) {
      completion.result = -EINTR;
    }
  };
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

TEST_F(AioEngine, DrainsWhatIsInFlightBeforeItThrows) {
  int completions = 0;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (++completions == 2) {
      completion.result = -ENODATA;  // a drive's medium error
    }
  };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 0); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("at offset"), HasSubstr(file.path()),
                    HasSubstr("No data available")));
  EXPECT_EQ(kernel->paused(), Seconds{0});
  EXPECT_EQ(kernel->in_flight(), 0U);
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

TEST_F(AioEngine, DrainsWhatIsInFlightWithoutMemoryForItsMessage) {
  std::optional<FailingAllocations> starving;
  int completions = 0;
  kernel->on_complete = [&](Transfer const&, Completion& completion) {
    if (++completions == 2) {
      completion.result = -ENODATA;
      starving.emplace(1);
    }
  };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 0); }),
              HasSubstr("cannot read or write " + file.path()));
  EXPECT_EQ(FailingAllocations::failed(), 1);
  starving.reset();
  EXPECT_EQ(kernel->in_flight(), 0U);
}

TEST_F(AioEngine, TriesAgainAfterPausesWhatMayPass) {
  for (int const error : {EIO, ESHUTDOWN, ENOTCONN, ETIMEDOUT, ENOLINK, EREMOTEIO, ESTALE}) {
    for (int const failures : {1, 3, 4}) {
      Seconds const before = kernel->paused();
      int completions = 0;
      kernel->on_complete = [&](Transfer const& transfer, Completion& completion) {
        if (transfer.offset == 5 * block && ++completions <= failures) {
          completion.result = -error;
        }
      };
      int told = 0;
      std::ranges::fill(target.bytes(), std::byte{});
      ::testing::internal::CaptureStderr();
      std::string const message =
          message_of([&] { engine.read(file, target.bytes(), 0, [&] { ++told; }); });
      std::string const said = ::testing::internal::GetCapturedStderr();
      EXPECT_THAT(said, AllOf(HasSubstr("cannot read"), HasSubstr(file.path()),
                              HasSubstr(std::generic_category().message(error)),
                              HasSubstr("; trying again")));
      EXPECT_LE(told, 1);
      auto const pauses = std::span{pauses_between_tries}.first(
          std::min<std::size_t>(static_cast<std::size_t>(failures), 3));
      EXPECT_NEAR((kernel->paused() - before).count(),
                  std::accumulate(pauses.begin(), pauses.end(), Seconds{}).count(), 1e-9);
      if (failures < 4) {
        EXPECT_EQ(message, "no IoError");
        EXPECT_TRUE(equal(target.bytes(), content.bytes()));
      } else {
        EXPECT_THAT(message, HasSubstr(std::generic_category().message(error)));
        completions = 3;
        Seconds const after = kernel->paused();
        EXPECT_NE(message_of([&] { engine.read(file, target.bytes(), 0); }), "no IoError");
        EXPECT_EQ(kernel->paused(), after) << "it was in vain before";
        engine.read(file, target.bytes(), 0);
      }
      EXPECT_EQ(kernel->in_flight(), 0U);
    }
  }
}

TEST_F(AioEngine, NamesOperationOffsetPathAndCauseOfAFailedWrite) {
  kernel->on_complete = [](Transfer const& transfer, Completion& completion) {
    if (transfer.offset == 5 * block) {
      completion.result = -ENOSPC;
    }
  };
  EXPECT_THAT(message_of([&] { engine.write(file, content.bytes(), 0); }),
              AllOf(HasSubstr("cannot write"), HasSubstr("offset " + std::to_string(5 * block)),
                    HasSubstr(file.path()), HasSubstr("No space left")));
  EXPECT_EQ(kernel->in_flight(), 0U);
}

TEST_F(AioEngine, FailsWhenARequestIsRefused) {
  int calls = 0;
  kernel->on_submit = [&](Transfer&) { return ++calls == 3 ? -EBADF : 0; };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 0); }),
              HasSubstr("Bad file descriptor"));
  EXPECT_EQ(calls, 3) << "nothing may be started after an error";
  EXPECT_EQ(kernel->in_flight(), 0U);
}

TEST_F(AioEngine, WaitsForItsRequestsWhereCompletionsAreLost) {
  bool broken = true;
  kernel->on_wait = [&] { return broken ? -EINVAL : 0; };
  EXPECT_THAT(message_of([&] { engine.read(file, target.bytes(), 0); }),
              HasSubstr("completions are lost"));
  EXPECT_EQ(kernel->in_flight(), 0U);
  broken = false;
  engine.read(file, target.bytes(), 0);
  EXPECT_TRUE(equal(target.bytes(), content.bytes()));
}

}  // namespace
}  // namespace offstage::aio
