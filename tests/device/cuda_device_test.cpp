#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/device.hpp"
#include "platform/cuda/gpus.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
    device = make_cuda_device(cuda::find_gpus().count - 1, 64 * MiB);
  }
  std::unique_ptr<Device> device;
};

TEST_F(OnGpu, CountsMemoryAndSaysWhatNeedsHowMuchWhenItIsShort) {
  EXPECT_EQ(device->kind(), Kind::cuda);
  EXPECT_FALSE(device->host_visible());
  EXPECT_FALSE(device->name().empty());
  EXPECT_EQ(device->capacity(), 64 * MiB);
  {
    Buffer const most = device->allocate(60 * MiB, "weights");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(most.as<float>().data()) % 64, 0U);
    EXPECT_EQ(device->used(), 60 * MiB);
    try {
      (void)device->allocate(8 * MiB, "activations");
      FAIL() << "must throw";
    } catch (UsageError const& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("activations needs 8.00 MiB"), HasSubstr("4.00 MiB of 64.0 MiB"),
                        HasSubstr("device.memory")));
    }
  }
  EXPECT_EQ(device->used(), 0);
  EXPECT_EQ(device->peak(), 60 * MiB);
  EXPECT_EQ(device->allocate(0, "nothing").size(), 0);
}

TEST_F(OnGpu, CountsWhatLibrariesTakeByThemselves) {
  device->set_aside(60 * MiB, "a library");
  EXPECT_EQ(device->used(), 60 * MiB);
  EXPECT_EQ(device->peak(), 60 * MiB);
  EXPECT_THROW((void)device->allocate(8 * MiB, "activations"), UsageError);
  EXPECT_THROW(device->set_aside(8 * MiB, "another"), UsageError);
  EXPECT_EQ(device->allocate(4 * MiB, "activations").size(), 4 * MiB);
}

TEST_F(OnGpu, GivesEachOfTheRanksThatShareItAnEqualPartAndTheirLibrariesTheirs) {
  int const index = cuda::find_gpus().count - 1;
  Bytes const alone = make_cuda_device(index, 0)->capacity();
  Bytes const shared = make_cuda_device(index, 0, 2)->capacity();
  // Other tests may use a real one meanwhile: there this is about half, and exact enough for the
  // libraries' GiB on the small emulated one alone.
  auto const whole = static_cast<double>(alone + GiB);
  EXPECT_NEAR(static_cast<double>(2 * (shared + GiB)), whole, 0.2 * whole);
  EXPECT_EQ(make_cuda_device(index, 1 * MiB, 2)->capacity(), 1 * MiB);
  EXPECT_THROW(static_cast<void>(make_cuda_device(index, 0, 1 << 20)), UsageError);
}

TEST_F(OnGpu, MovesPinnedAndOrdinaryMemoryThereAndBack) {
  constexpr std::size_t count = 1 << 20;
  memory::HugeBuffer pinned{count * sizeof(int)};
  auto const pin = device->pin(pinned.bytes());
  auto const values = pinned.as<int>();
  std::iota(values.begin(), values.end(), 0);
  auto const size = static_cast<Bytes>(values.size_bytes());
  Buffer const a = device->allocate(size, "a");
  Buffer const b = device->allocate(size, "b");
  std::vector<int> back(count);
  auto const up = device->make_stream("up");
  auto const within = device->make_calling_stream("compute");
  auto const down = device->make_stream("down");
  up->copy(a.as<int>().data(), values.data(), size, Copy::host_to_device);
  within->wait(*up->record());
  within->copy(b.as<int>().data(), a.as<int>().data(), size, Copy::device_to_device);
  auto const moved = within->record();
  down->wait(*moved);
  down->copy(back.data(), b.as<int>().data(), size, Copy::device_to_host);
  down->copy(nullptr, nullptr, 0, Copy::device_to_host);
  down->synchronize();
  moved->wait();
  EXPECT_TRUE(std::ranges::equal(values, back));
}

TEST_F(OnGpu, ZeroesWhatItIsToldAndNoMore) {
  std::vector<std::uint8_t> host(4, 7);
  Buffer const buffer = device->allocate(4, "four bytes");
  auto* const there = buffer.as<std::uint8_t>().data();
  auto const stream = device->make_stream("compute");
  stream->copy(there, host.data(), 4, Copy::host_to_device);
  stream->zero(there + 1, 2);
  stream->zero(nullptr, 0);
  stream->copy(host.data(), there, 4, Copy::device_to_host);
  stream->synchronize();
  EXPECT_THAT(host, testing::ElementsAre(7, 0, 0, 7));
}

TEST_F(OnGpu, CallingStreamsHaveScratchThatNoLimitCounts) {
  Buffer const all = device->allocate(device->capacity(), "all");
  auto const one = device->make_calling_stream("one");
  auto const other = device->make_calling_stream("other");
  EXPECT_EQ(one->scratch().size(), static_cast<std::size_t>(64 * MiB));
  EXPECT_NE(one->scratch().data(), other->scratch().data());
  one->zero(one->scratch().data(), 64 * MiB);
  one->synchronize();
  EXPECT_TRUE(device->make_stream("copy")->scratch().empty());
  EXPECT_EQ(device->used(), device->capacity());
}

TEST_F(OnGpu, StreamsThatMoveDataGoBeforeTheModel) {
  auto const priority_of = [](std::unique_ptr<Stream> const& stream) {
    int priority{};
    EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(stream->native()), &priority),
              cudaSuccess);
    return priority;
  };
  int const model = priority_of(device->make_calling_stream("compute"));
  EXPECT_EQ(priority_of(device->make_stream("update", Priority::usual)), model);
  EXPECT_LT(priority_of(device->make_stream("copy")), model);  // less goes first
}

TEST_F(OnGpu, AnyThreadMayCall) {
  std::vector<int> const source(1000, 7);
  std::vector<int> back(1000);
  Buffer buffer;
  std::unique_ptr<Stream> stream;
  NamedThread{"first",
              [&] {
                buffer = device->allocate(4000, "buffer");
                stream = device->make_stream("copy");
                stream->copy(buffer.as<int>().data(), source.data(), 4000, Copy::host_to_device);
              }}
      .join();
  NamedThread{"second",
              [&] {
                stream->copy(back.data(), buffer.as<int>().data(), 4000, Copy::device_to_host);
                stream->synchronize();
                buffer.reset();
              }}
      .join();
  EXPECT_EQ(back, source);
}

TEST_F(OnGpu, EventsSayWhenTheyCame) {
  memory::HugeBuffer host{32 * MiB};
  auto const pin = device->pin(host.bytes());
  Buffer const there = device->allocate(host.size(), "there");
  auto const stream = device->make_stream("copy");
  auto const other = device->make_stream("other");
  auto const start = std::chrono::steady_clock::now();
  auto const before = other->record();
  stream->wait(*before);
  stream->copy(there.as<std::byte>().data(), host.bytes().data(), host.size(),
               Copy::host_to_device);
  auto const after = stream->record();
  std::chrono::duration<double> const took = after->when() - before->when();
  auto const end = std::chrono::steady_clock::now();
  EXPECT_GT(took.count(), static_cast<double>(host.size()) / 1e12);
  EXPECT_LT(took, end - start);
  // The two clocks agree to less than anyone would see in a picture.
  EXPECT_GT(before->when(), start - std::chrono::milliseconds{1});
  EXPECT_LT(after->when(), end + std::chrono::milliseconds{1});
}

TEST_F(OnGpu, RefusesHostKernelsAndEventsOfOtherDevices) {
  auto const stream = device->make_stream("compute");
  EXPECT_NE(stream->native(), nullptr);
  EXPECT_THROW(stream->enqueue([] {}), PreconditionError);
  auto const host = make_host_device(0);
  auto const event = host->make_stream("host")->record();
  EXPECT_THROW(stream->wait(*event), PreconditionError);
}

TEST_F(OnGpu, SaysOnceHowMuchCouldNotBePinnedAndGoesOn) {
  memory::HugeBuffer const whole_pages{4096};
  auto const memory = whole_pages.bytes();
  std::ranges::fill(memory, std::byte{7});
  auto const pin = device->pin(memory);
  testing::internal::CaptureStderr();
  {
    auto const twice = device->pin(memory);
    auto const thrice = device->pin(memory);
    EXPECT_NE(twice, nullptr);
  }
  std::string const said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("warning: cannot pin 4.00 KiB"), HasSubstr("what dmesg says")));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
  // The launch that follows knows nothing of it, nor does what is pinned.
  Buffer const there = device->allocate(4096, "there");
  auto const stream = device->make_stream("copy");
  stream->copy(there.as<std::byte>().data(), memory.data(), 4096, Copy::host_to_device);
  std::vector<std::byte> back(4096);
  stream->copy(back.data(), there.as<std::byte>().data(), 4096, Copy::device_to_host);
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(back, memory));
}

}  // namespace
}  // namespace offstage::device
