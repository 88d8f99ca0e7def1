#include "parameters/working_parameters.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "parameters/parameter_support.hpp"

namespace offstage::parameters {
namespace {

/// One rank's, for homes that do not gather.
struct Alone {
  mpi::Communicator comm;
  state::ShardMap map{layers_with({3 * 4096, 5000}), 1};
  std::vector<state::Subgroup> subgroups = state::subgroups_of(map, 0, 2 * 4096);

  template <class T>
  void fill(WorkingParameters<T>& parameters) const {
    for (auto const& subgroup : subgroups) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < subgroup.size; ++i) {
        values.push_back(value_of(0, subgroup.begin + i, 0));
      }
      parameters.fill(subgroup, values);
    }
  }
};

TEST(DeviceParameters, AreFilledAndUpdatedInDeviceMemory) {
  Alone const alone;
  device::ShuffledDevice device{4};
  auto const stream = device.make_calling_stream("compute");
  auto const link = state::make_mpi_link(alone.comm, state::Route::staged);
  DeviceParameters<bfloat16> parameters{alone.map, *link, device, *stream};
  alone.fill(parameters);
  auto const target = parameters.target(alone.subgroups[1]);
  EXPECT_TRUE(target.on_device);
  EXPECT_FALSE(target.lease.is_held());
  auto const layer = parameters.acquire(0);
  auto const view = std::get<std::span<bfloat16>>(target.view);
  EXPECT_EQ(view.data(), layer.data() + 2 * 4096) << "where it is used";
  EXPECT_EQ(std::ssize(view), alone.subgroups[1].size);
  std::vector<bfloat16> values(layer.size());
  stream->copy(values.data(), layer.data(), static_cast<Bytes>(layer.size_bytes()),
               device::Copy::device_to_host);
  stream->synchronize();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(load(values[i]), value_of(0, static_cast<std::int64_t>(i), 0));
  }
  parameters.release(0, nullptr);
  state::Subgroup beyond = alone.subgroups.back();
  beyond.begin += 4096;
  EXPECT_THROW((void)parameters.target(beyond), PreconditionError);
  EXPECT_THROW(parameters.fill(alone.subgroups[0], {}), PreconditionError);
}

TEST(DeviceParameters, AreFilledWithMoreThanIsConvertedAtATime) {
  constexpr std::int64_t elements = (std::int64_t{1} << 20U) + 4096;
  mpi::Communicator const comm;
  state::ShardMap const map{layers_with({elements}), 1};
  auto const subgroups = state::subgroups_of(map, 0, elements);
  ASSERT_EQ(subgroups.size(), 1U);
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("compute");
  auto const link = state::make_mpi_link(comm, state::Route::in_place);
  DeviceParameters<bfloat16> parameters{map, *link, *device, *stream};
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(value_of(0, i, 0));
  }
  parameters.fill(subgroups.front(), values);
  auto const layer = parameters.acquire(0);
  ASSERT_EQ(std::ssize(layer), elements);
  for (std::size_t i = 0; i < layer.size(); ++i) {
    ASSERT_EQ(load(layer[i]), values[i]) << i;
  }
  parameters.release(0, nullptr);
}

TEST(HostParameters, AreUsedWhereTheyLieWhenTheyAreReady) {
  Alone const alone;
  auto const device = device::make_host_device(0);
  HostParameters<float16> parameters{alone.map, *device};
  EXPECT_EQ(device->used(), 0);
  alone.fill(parameters);
  state::Readiness readiness{alone.subgroups};
  parameters.set_readiness(&readiness);
  readiness.begin();
  readiness.done(0);
  auto layer = std::async(std::launch::async, [&] { return parameters.acquire(0); });
  EXPECT_EQ(layer.wait_for(std::chrono::milliseconds{5}), std::future_status::timeout);
  auto const target = parameters.target(alone.subgroups[1]);
  EXPECT_TRUE(target.on_device) << "the device has no other memory";
  auto const view = std::get<std::span<float16>>(target.view);
  view[0] = store<float16>(77.0F);
  readiness.done(1);
  EXPECT_EQ(load(layer.get()[2 * 4096]), 77.0F);
  parameters.release(0, nullptr);
}

TEST(HostHome, SaysThatTheDeviceCannotWriteToItOverALink) {
  Alone const alone;
  device::ShuffledDevice device{4};
  HostHome<float> home{alone.map, 0, device};
  EXPECT_FALSE(home.target(alone.subgroups[0]).on_device);
  state::Subgroup beyond = alone.subgroups.back();
  beyond.size += 4096;
  EXPECT_THROW((void)home.target(beyond), PreconditionError);
}

TEST(StoredHome, BringsWhatIsExpectedAndNothingElse) {
  Alone const alone;
  update::MemoryTiers tiers{{2 * 4096 * 4, 2 * 4096 * 4, 4096 * 4}};
  StoredHome<float> home{alone.map, 0, alone.subgroups, tiers, 2, false};
  auto const ignore = [](std::int64_t, std::span<float const>) {};
  EXPECT_THROW(home.bring(0, ignore), PreconditionError);
  home.expect(std::vector{0});
  EXPECT_THROW(home.bring(1, ignore), PreconditionError);
  auto const target = home.target(alone.subgroups[2]);
  EXPECT_FALSE(target.on_device);
  EXPECT_TRUE(target.lease.is_held());
  home.stop();
}

}  // namespace
}  // namespace offstage::parameters
