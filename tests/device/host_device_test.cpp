#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"

namespace offstage::device {
namespace {

using testing::AllOf;
using testing::ElementsAre;
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

TEST(HostStream, RunsItsWorkInOrder) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  EXPECT_EQ(stream->kind(), Kind::host);
  EXPECT_EQ(stream->native(), nullptr);
  std::vector<int> order;
  stream->enqueue([&] { order.push_back(1); });
  stream->enqueue([&] { order.push_back(2); });
  auto const event = stream->record();
  auto const other = device->make_stream("copy");
  other->wait(*event);
  other->enqueue([&] { order.push_back(3); });
  other->synchronize();
  event->wait();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(HostStream, CopiesToAndFromTheDevice) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("copy");
  std::vector<float> source(1000);
  std::iota(source.begin(), source.end(), 0.0F);
  Bytes const size = 4000;
  Buffer const a = device->allocate(size, "a");
  Buffer const b = device->allocate(size, "b");
  std::vector<float> target(1000);
  stream->copy(a.as<float>().data(), source.data(), size, Copy::host_to_device);
  stream->copy(b.as<float>().data(), a.as<float>().data(), size, Copy::device_to_device);
  stream->copy(target.data(), b.as<float>().data(), size, Copy::device_to_host);
  stream->copy(nullptr, nullptr, 0, Copy::host_to_device);
  stream->synchronize();
  EXPECT_EQ(target, source);
}

TEST(HostStream, AnErrorOfQueuedWorkSurfaces) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  auto const run = [&] {
    stream->enqueue([] { throw IoError{"failed"}; });
    stream->synchronize();
  };
  EXPECT_THROW(run(), IoError);
}

}  // namespace
}  // namespace offstage::device
