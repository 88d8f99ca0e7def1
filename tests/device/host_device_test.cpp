#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/device.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::device {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST(HostDevice, CountsWhatIsUsedAndRemembersThePeak) {
  auto const device = make_host_device(10 * MiB);
  EXPECT_EQ(device->capacity(), 10 * MiB);
  Buffer first = device->allocate(6 * MiB, "first");
  {
    Buffer const second = device->allocate(4 * MiB, "second");
    EXPECT_EQ(device->used(), 10 * MiB);
  }
  EXPECT_EQ(device->used(), 6 * MiB);
  first.reset();
  EXPECT_EQ(device->used(), 0);
  EXPECT_EQ(first.size(), 0);
  EXPECT_EQ(device->peak(), 10 * MiB);
}

TEST(HostDevice, CountsWhatLibrariesTakeByThemselves) {
  auto const device = make_host_device(10 * MiB);
  device->set_aside(8 * MiB, "a library");
  EXPECT_EQ(device->used(), 8 * MiB);
  EXPECT_EQ(device->peak(), 8 * MiB);
  EXPECT_THROW((void)device->allocate(4 * MiB, "activations"), UsageError);
  EXPECT_THROW(device->set_aside(4 * MiB, "another"), UsageError);
  EXPECT_THROW(device->set_aside(-1, "less"), PreconditionError);
  EXPECT_EQ(device->used(), 8 * MiB);
}

TEST(HostDevice, SaysHowToDoWithoutWhatIsSetAside) {
  auto const device = make_host_device(10 * MiB);
  device->set_aside(8 * MiB, "NCCL");
  try {
    (void)device->allocate(4 * MiB, "activations");
    FAIL() << "must throw";
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("comm.backend=mpi"), HasSubstr("8.00 MiB"),
                                    HasSubstr("raise device.memory")));
  }
}

TEST(HostDevice, HasNoPeakOfWhatTheHostDoesNotGive) {
  auto const device = make_host_device((Bytes{1} << 60) + MiB);
  EXPECT_ANY_THROW((void)device->allocate(Bytes{1} << 60, "the world"));
  EXPECT_EQ(device->used(), 0);
  EXPECT_EQ(device->peak(), 0);
  EXPECT_EQ(device->allocate(2 * MiB, "a part").size(), 2 * MiB) << "more than beside the world";
  EXPECT_EQ(device->peak(), 2 * MiB);
}

TEST(HostDevice, SaysWhatNeedsHowMuchWhenMemoryIsShort) {
  auto const device = make_host_device(10 * MiB);
  Buffer const weights = device->allocate(8 * MiB, "weights");
  try {
    (void)device->allocate(4 * MiB, "activations");
    FAIL() << "must throw";
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("activations needs 4.00 MiB"), HasSubstr("2.00 MiB"),
                                    HasSubstr("10.0 MiB"), HasSubstr("device.memory"),
                                    HasSubstr("train.micro-batch")));
  }
  EXPECT_EQ(device->used(), 8 * MiB);
  EXPECT_EQ(device->allocate(2 * MiB, "the rest").size(), 2 * MiB);
}

TEST(HostDevice, WithoutALimitItTakesWhatTheHostGives) {
  auto const device = make_host_device(0);
  EXPECT_EQ(device->allocate(64 * MiB, "buffer").size(), 64 * MiB);
}

TEST(HostDevice, EmptyBuffersAreFine) {
  auto const device = make_host_device(MiB);
  Buffer const empty = device->allocate(0, "nothing");
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE(empty.as<float>().empty());
  EXPECT_THROW((void)device->allocate(-1, "less"), PreconditionError);
}

TEST(HostDevice, BuffersAreAlignedAndMoveWithoutCopies) {
  auto const device = make_host_device(0);
  Buffer buffer = device->allocate(100 * sizeof(float), "buffer");
  auto* const data = buffer.as<float>().data();
  EXPECT_EQ(buffer.as<float>().size(), 100U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
  Buffer moved{std::move(buffer)};
  EXPECT_EQ(moved.as<float>().data(), data);
  Buffer target = device->allocate(8, "target");
  target = std::move(moved);
  EXPECT_EQ(target.as<float>().data(), data);
  EXPECT_EQ(device->used(), 400);
}

TEST(HostDevice, NamesTheKeysThatHelpWhenMemoryIsShort) {
  auto const device = make_host_device(MiB);
  try {
    (void)device->allocate(2 * MiB, "the state on the device");
    FAIL() << "must throw";
  } catch (UsageError const& error) {
    for (char const* key :
         {"train.micro-batch", "train.sequence", "train.activations=host", "device.memory",
          "update.device-share", "update.device-resident", "update.device-chunk"}) {
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
  }
}

TEST(HostDevice, ThreadsThatAllocateAtOnceStayWithinTheLimit) {
  constexpr int limit = 5;
  auto const device = make_host_device(limit * KiB);
  std::atomic<int> most{0};
  std::atomic<int> present{0};
  {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("allocator", [&] {
        for (int i = 0; i < 200; ++i) {
          try {
            Buffer const two = device->allocate(2 * KiB, "test");
            int const now = ++present;
            for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
            }
            --present;
          } catch (UsageError const&) {
          }
        }
      });
    }
  }
  EXPECT_LE(most, limit / 2);
  EXPECT_LE(device->peak(), device->capacity());
  EXPECT_EQ(device->used(), 0);
}

TEST(HostDevice, IsVisibleToTheHostUnlessALinkIsEmulated) {
  EXPECT_TRUE(make_host_device(0)->host_visible());
  EXPECT_TRUE(make_host_device(0, {.device_update = 1e6, .host_update = 1e6})->host_visible());
  EXPECT_FALSE(make_host_device(0, {.host_to_device = 1e9})->host_visible());
  EXPECT_FALSE(make_host_device(0, {.device_to_host = 1e9})->host_visible());
}

TEST(HostDevice, PinsAnyMemory) {
  std::vector<std::byte> memory(100);
  auto const device = make_host_device(0);
  EXPECT_NE(device->pin(memory), nullptr);
  EXPECT_NE(device->pin({}), nullptr);
}

TEST(CudaDevice, SaysWhyThereIsNone) {
  if (cuda::find_gpus().count > 0) {
    EXPECT_THROW((void)make_cuda_device(cuda::find_gpus().count, 0), cuda::CudaError);
    return;
  }
  try {
    (void)make_cuda_device(0, 0);
    FAIL() << "must throw";
  } catch (Error const& error) {
    EXPECT_THAT(error.what(), AnyOf(HasSubstr("CUDA was not compiled in"),
                                    HasSubstr("there is no GPU 0: 0 are visible")));
  }
}

}  // namespace
}  // namespace offstage::device
