#include "update/device_lane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "device/wrapped_device.hpp"
#include "shard_support.hpp"

namespace offstage::update {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Point = BusyTime::Point;

Point at(int seconds) {
  return Point{std::chrono::seconds{seconds}};
}

TEST(BusyTime, CountsWhatSpansHaveInCommonOnce) {
  BusyTime busy;
  EXPECT_EQ(busy.total().count(), 0.0);
  busy.add(at(15), at(17));
  busy.add(at(10), at(14));
  busy.add(at(12), at(13));
  busy.add(at(13), at(16));
  EXPECT_EQ(busy.total().count(), 7.0);
  busy.add(at(16), at(18));
  busy.add(at(20), at(21));
  EXPECT_EQ(busy.total().count(), 9.0);
}

DeviceLaneSettings small() {
  return {.chunk = chunk_elements,
          .buffers = 2,
          .parameter_buffers = 2,
          .gradient_bytes = 2,
          .parameter_bytes = 2,
          .lent = {}};
}

TEST(DeviceLane, TakesTheMemoryThatItSaysLessWhatIsLent) {
  auto const device = device::make_host_device(64 * MiB, {1e13, 1e13, 0.0, 0.0});
  EXPECT_EQ(DeviceLane::device_bytes(small()), 2 * 14 * chunk_elements);
  EXPECT_EQ(DeviceLane::host_bytes(small(), false), 2 * 2 * chunk_elements);
  EXPECT_EQ(DeviceLane::host_bytes(small(), true), 0);
  auto const lent = device->allocate(14 * chunk_elements + 4096, "activations");
  for (std::size_t const skip : {0, 8}) {  // lent memory need not be aligned
    auto settings = small();
    Bytes const before = device->used();
    {
      DeviceLane const lane{*device, settings};
      EXPECT_EQ(device->used() - before, DeviceLane::device_bytes(settings));
      EXPECT_TRUE(lane.any_own_buffers());
    }
    settings.lent = lent.as<std::byte>().subspan(skip);
    EXPECT_EQ(DeviceLane::device_bytes(settings), 14 * chunk_elements);
    {
      DeviceLane const lane{*device, settings};
      EXPECT_EQ(device->used() - before, DeviceLane::device_bytes(settings));
    }
    settings.buffers = 1;
    DeviceLane const lane{*device, settings};
    EXPECT_EQ(device->used(), before);
    EXPECT_FALSE(lane.any_own_buffers());
  }
}

TEST(DeviceLane, NamesTheKeysWhenDeviceMemoryIsShort) {
  auto const device = device::make_host_device(100 * KiB);
  try {
    DeviceLane const lane{*device, small()};
    FAIL() << "must throw";
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("update.device-share"),
                                    HasSubstr("update.device-chunk"), HasSubstr("112 KiB")));
  }
}

TEST(DeviceLane, RefusesSettingsThatCannotWork) {
  auto const device = device::make_host_device(0);
  for (auto const change : std::vector<void (*)(DeviceLaneSettings&)>{
           [](DeviceLaneSettings& settings) { settings.chunk = 0; },
           [](DeviceLaneSettings& settings) { settings.chunk = 100; },
           [](DeviceLaneSettings& settings) { settings.parameter_buffers = 0; }}) {
    auto settings = small();
    change(settings);
    EXPECT_THROW((DeviceLane{*device, settings}), PreconditionError);
  }
}

TEST(DeviceLane, SendsParametersThroughItsRingInOrder) {
  device::ShuffledDevice device{1};
  DeviceLane lane{device, small()};
  EXPECT_TRUE(lane.stages());
  constexpr int chunks = 9;
  auto const copy = device.allocate(chunks * chunk_elements * 2, "the working copy");
  std::shared_ptr<device::Event> last;
  for (int i = 0; i < chunks; ++i) {
    auto const place = std::get<std::span<bfloat16>>(
        lane.staging(copy.as<bfloat16>(), i * chunk_elements, chunk_elements));
    std::ranges::fill(place, to_bf16(static_cast<float>(i)));
    last = lane.send();
  }
  last->wait();
  std::vector<bfloat16> values(chunks * chunk_elements);
  auto const stream = device.make_stream("test");
  stream->copy(values.data(), copy.as<bfloat16>().data(), copy.size(),
               device::Copy::device_to_host);
  stream->synchronize();
  for (int i = 0; i < chunks; ++i) {
    EXPECT_EQ(values[static_cast<std::size_t>(i * chunk_elements)], to_bf16(static_cast<float>(i)));
    EXPECT_EQ(values[static_cast<std::size_t>((i + 1) * chunk_elements - 1)],
              to_bf16(static_cast<float>(i)));
  }
  EXPECT_EQ(lane.stats().to_device_bytes, copy.size());
}

TEST(DeviceLane, RefusesToStageWhatIsNoChunkOfTheCopy) {
  device::ShuffledDevice device{1};
  DeviceLane lane{device, small()};
  auto const copy = device.allocate(4 * chunk_elements * 2, "the working copy");
  auto const view = copy.as<bfloat16>();
  EXPECT_THROW((void)lane.staging(view, 0, 2 * chunk_elements), PreconditionError);
  EXPECT_THROW((void)lane.staging(view, 4 * chunk_elements, 1), PreconditionError);
  EXPECT_THROW((void)lane.staging(view, -1, 1), PreconditionError);
  EXPECT_THROW((void)lane.send(), PreconditionError);
  auto const visible = device::make_host_device(0);
  DeviceLane direct{*visible, small()};
  EXPECT_FALSE(direct.stages());
  EXPECT_THROW((void)direct.staging(view, 0, 1), PreconditionError);
  EXPECT_THROW((void)direct.send(), PreconditionError);
}

/// A subgroup of two and a half chunks of the lane, of the given gradient.
struct Sample {
  Sample() {
    subgroup.size = 5 * chunk_elements;
    subgroup.pieces = {{3, {1, 2}, 0, 777}, {4, {0, 3}, 2 * chunk_elements, 9000}};
    auto const count = static_cast<std::size_t>(subgroup.size);
    state.resize(3 * count);
    auto const parameters = random_values<float>(subgroup.size, 1);
    std::ranges::copy(parameters, state.begin());
    gradient = random_values<bfloat16>(subgroup.size, 2);
  }
  [[nodiscard]] kernels::GradientView view() const { return std::span{gradient}; }
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{state}); }
  /// After one step on the CPU.
  [[nodiscard]] std::vector<float> stepped(std::vector<bfloat16>& copy) const {
    auto all = state;
    copy.resize(gradient.size());
    StateLayout const layout = adamw_layout();
    step_on_host({subgroup,
                  {0, subgroup.size},
                  layout,
                  state_views(layout, std::as_writable_bytes(std::span{all}), subgroup.size),
                  view(),
                  std::span{copy}},
                 first_step);
    return all;
  }

  state::Subgroup subgroup;
  std::vector<float> state;
  std::vector<bfloat16> gradient;
};

TEST(DeviceLane, UpdatesStateInHostMemoryAndOnTheDeviceAsTheCpuDoes) {
  auto settings = small();
  settings.chunk = 2 * chunk_elements;
  device::ShuffledDevice device{2};
  DeviceLane lane{device, settings};
  Sample sample;
  std::vector<bfloat16> expected_copy;
  auto const expected = sample.stepped(expected_copy);
  auto const stream = device.make_stream("test");
  auto const copy = device.allocate(5 * chunk_elements * 2, "the working copy");
  auto const resident = device.allocate(std::ssize(sample.bytes()), "resident state");
  stream->copy(resident.as<float>().data(), sample.state.data(), resident.size(),
               device::Copy::host_to_device);
  stream->synchronize();
  auto const expect_copy = [&] {
    std::vector<bfloat16> values(expected_copy.size());
    stream->copy(values.data(), copy.as<bfloat16>().data(), copy.size(),
                 device::Copy::device_to_host);
    stream->synchronize();
    EXPECT_EQ(values, expected_copy);
  };
  lane.update_resident(sample.subgroup, resident.as<std::byte>(), sample.view(),
                       {copy.as<bfloat16>()}, first_step);
  expect_copy();
  lane.update(sample.subgroup, sample.bytes(), sample.view(), {copy.as<bfloat16>()}, first_step);
  expect_copy();
  EXPECT_EQ(sample.state, expected);
  stream->copy(sample.state.data(), resident.as<float>().data(), resident.size(),
               device::Copy::device_to_host);
  stream->synchronize();
  EXPECT_EQ(sample.state, expected);
}

TEST(DeviceLane, BringsNewParametersToHostMemoryIfTheirTargetLiesThere) {
  auto settings = small();
  settings.chunk = 2 * chunk_elements;
  settings.parameters_on_host = true;
  EXPECT_EQ(DeviceLane::device_bytes(settings), 2 * 16 * 2 * chunk_elements);
  EXPECT_EQ(DeviceLane::host_bytes(settings, false), 0);
  device::ShuffledDevice device{3};
  DeviceLane lane{device, settings};
  EXPECT_FALSE(lane.stages());
  Sample sample;
  std::vector<bfloat16> expected_copy;
  auto const expected = sample.stepped(expected_copy);
  auto const stream = device.make_stream("test");
  auto const resident = device.allocate(std::ssize(sample.bytes()), "resident state");
  stream->copy(resident.as<float>().data(), sample.state.data(), resident.size(),
               device::Copy::host_to_device);
  stream->synchronize();
  std::vector<bfloat16> copy(expected_copy.size());
  lane.update_resident(sample.subgroup, resident.as<std::byte>(), sample.view(),
                       {std::span{copy}, false}, first_step);
  EXPECT_EQ(copy, expected_copy);
  Bytes const copy_bytes = std::ssize(copy) * 2;
  EXPECT_EQ(lane.stats().to_host_bytes, copy_bytes);
  std::ranges::fill(copy, bfloat16{});
  lane.update(sample.subgroup, sample.bytes(), sample.view(), {std::span{copy}, false}, first_step);
  EXPECT_EQ(copy, expected_copy);
  EXPECT_EQ(sample.state, expected);
  EXPECT_EQ(lane.stats().to_host_bytes, 2 * copy_bytes + std::ssize(sample.bytes()));
}

TEST(DeviceLane, RefusesATargetInHostMemoryWithoutRoomForIt) {
  device::ShuffledDevice device{3};
  DeviceLane lane{device, small()};
  Sample sample;
  std::vector<bfloat16> copy(sample.gradient.size());
  EXPECT_THROW(lane.update(sample.subgroup, sample.bytes(), sample.view(), {std::span{copy}, false},
                           first_step),
               PreconditionError);
  std::vector<float> wide(sample.gradient.size());
  EXPECT_THROW(
      lane.update(sample.subgroup, sample.bytes(), sample.view(), {std::span{wide}}, first_step),
      PreconditionError);
}

TEST(DeviceLane, TakesAGradientWhereItLiesOnTheDevice) {
  device::ShuffledDevice device{2};
  DeviceLane lane{device, small()};
  Sample sample;
  std::vector<bfloat16> expected_copy;
  auto const expected = sample.stepped(expected_copy);
  auto const stream = device.make_stream("test");
  auto const copy = device.allocate(5 * chunk_elements * 2, "the working copy");
  auto const held = device.allocate(5 * chunk_elements * 2, "the gradient");
  auto const resident = device.allocate(std::ssize(sample.bytes()), "resident state");
  stream->copy(held.as<bfloat16>().data(), sample.gradient.data(), held.size(),
               device::Copy::host_to_device);
  stream->copy(resident.as<float>().data(), sample.state.data(), resident.size(),
               device::Copy::host_to_device);
  stream->synchronize();
  std::span<bfloat16 const> const gradient = held.as<bfloat16>();
  lane.update_resident(sample.subgroup, resident.as<std::byte>(), gradient, {copy.as<bfloat16>()},
                       first_step, GradientPlace::device);
  EXPECT_EQ(lane.stats().to_device_bytes, 0);
  lane.update(sample.subgroup, sample.bytes(), gradient, {copy.as<bfloat16>()}, first_step,
              GradientPlace::device);
  EXPECT_EQ(lane.stats().to_device_bytes, std::ssize(sample.bytes()));
  EXPECT_EQ(sample.state, expected);
  stream->copy(sample.state.data(), resident.as<float>().data(), resident.size(),
               device::Copy::device_to_host);
  stream->synchronize();
  EXPECT_EQ(sample.state, expected);
}

TEST(DeviceLane, RefusesGradientsThatDoNotFit) {
  auto const device = device::make_host_device(0);
  DeviceLane lane{*device, small()};
  Sample sample;
  auto const copy = device->allocate(5 * chunk_elements * 2, "the working copy");
  auto const view = copy.as<bfloat16>();
  std::vector<float> const wide(sample.gradient.size());
  auto const update = [&](kernels::GradientView const& gradient) {
    lane.update(sample.subgroup, sample.bytes(), gradient, {view}, first_step);
  };
  EXPECT_THROW(update(std::span{wide}), PreconditionError);  // of 4 bytes, not 2
  EXPECT_THROW(update(std::span<bfloat16 const>{sample.gradient}.first(7)), PreconditionError);
  EXPECT_THROW(update(std::span<float16 const>{}), PreconditionError);
  EXPECT_EQ(lane.stats().updated, 0);
}

TEST(DeviceLane, RefusesToGoOnWhenAllThatItHadWasLentAndIsGivenBack) {
  auto const device = device::make_host_device(0);
  auto const lent = device->allocate(1 * MiB, "activations");
  auto settings = small();
  settings.lent = lent.as<std::byte>();
  DeviceLane lane{*device, settings};
  Sample sample;
  auto const copy = device->allocate(5 * chunk_elements * 2, "the working copy");
  auto const update = [&] {
    lane.update(sample.subgroup, sample.bytes(), sample.view(), {copy.as<bfloat16>()}, first_step);
  };
  update();
  lane.leave_lent();
  EXPECT_THROW(update(), PreconditionError);
  lane.use_lent();
  update();
}

/// A device over a link whose copies to the device wait for a sign from the n-th one on, and whose
/// copies to the host fail.
class HeldDevice final : public device::WrappedDevice {
 public:
  explicit HeldDevice(int free) : WrappedDevice{device::make_host_device(0)}, free_{free} {}
  void go_on() { sign_.set_value(); }
  void wait_for_copies(int count) const {
    while (copies_ < count) {
      std::this_thread::yield();
    }
  }
  void wait_for_failure() const { failed_.wait(false); }

 protected:
  [[nodiscard]] std::unique_ptr<device::Stream> wrap(
      std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<HeldStream>(std::move(stream), *this);
  }

 private:
  class HeldStream final : public device::WrappedStream {
   public:
    HeldStream(std::unique_ptr<Stream> inner, HeldDevice& device)
        : WrappedStream{std::move(inner)}, device_{device} {}
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      if (direction == device::Copy::device_to_host) {
        inner().enqueue([&device = device_] {
          device.failed_ = true;
          device.failed_.notify_all();
          throw IoError{"the link is gone"};
        });
        return;
      }
      if (device_.copies_ >= device_.free_) {
        inner().enqueue([sign = device_.signed_] { sign.wait(); });
      }
      inner().copy(target, source, size, direction);
      ++device_.copies_;
    }

   private:
    HeldDevice& device_;
  };

  int free_;
  std::atomic<int> copies_ = 0;  ///< to the device, that streams have been given
  std::atomic<bool> failed_ = false;
  std::promise<void> sign_;
  std::shared_future<void> signed_ = sign_.get_future().share();
};

/// An update through lent chunks that fails while copies to them wait on `device`.
struct FailingUpdate {
  explicit FailingUpdate(HeldDevice& on) : device{on} {}
  void run(kernels::OptimizerStep const& step) {
    lane.update(sample.subgroup, sample.bytes(), sample.view(), {copy.as<bfloat16>()}, step);
  }
  /// When `failed` returns, the update has failed.
  template <class Error, class Failed>
  void expect_left_alone(kernels::OptimizerStep const& step, Failed const& failed) {
    auto update = std::async(std::launch::async, [&] { run(step); });
    failed();
    auto left = std::async(std::launch::async, [&] {
      lane.leave_lent();
      std::ranges::fill(lent.as<std::byte>(), std::byte{7});
    });
    EXPECT_EQ(left.wait_for(std::chrono::milliseconds{50}), std::future_status::timeout);
    device.go_on();
    left.get();
    EXPECT_THROW(update.get(), Error);
    EXPECT_TRUE(
        std::ranges::all_of(lent.as<std::byte>(), [](auto b) { return b == std::byte{7}; }));
  }

  HeldDevice& device;
  Sample sample;
  device::Buffer lent = device.allocate(2 * 14 * chunk_elements, "activations");
  device::Buffer copy = device.allocate(5 * chunk_elements * 2, "the working copy");
  DeviceLane lane{device,
                  {.chunk = chunk_elements,
                   .buffers = 2,
                   .parameter_buffers = 2,
                   .gradient_bytes = 2,
                   .parameter_bytes = 2,
                   .lent = lent.as<std::byte>()}};
};

TEST(DeviceLane, LeavesLentMemoryAloneOnceItIsGivenBackThoughAStreamFailed) {
  constexpr int copies_of_a_chunk = 4;  // p, m, v and the gradient
  HeldDevice device{copies_of_a_chunk};
  FailingUpdate update{device};
  update.expect_left_alone<IoError>(first_step, [&] {
    device.wait_for_copies(2 * copies_of_a_chunk);
    device.wait_for_failure();
  });
}

TEST(DeviceLane, LeavesLentMemoryAloneOnceItIsGivenBackThoughAChunkWasFedHalfway) {
  HeldDevice device{0};
  FailingUpdate update{device};
  kernels::OptimizerStep bad = first_step;
  bad.step = 0;
  update.expect_left_alone<PreconditionError>(bad, [&] { device.wait_for_copies(4); });
}

}  // namespace
}  // namespace offstage::update
