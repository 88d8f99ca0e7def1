#include "train/step/make_lane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/wrapped_device.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/offload/offload.hpp"
#include "update/targets_in.hpp"
#include "update/update.hpp"

namespace offstage::train {
namespace {

/// A device over a link of whose memory others may have taken some: it has less than it says.
class CrowdedDevice final : public device::WrappedDevice {
 public:
  CrowdedDevice() : WrappedDevice{device::make_host_device(0)} {}
  void leave(Bytes room) { room_ = room; }
  [[nodiscard]] device::Buffer allocate(Bytes size, std::string const& purpose) override {
    if (size > room_) {
      throw UsageError{"no room for " + purpose};
    }
    return WrappedDevice::allocate(size, purpose);
  }

 private:
  Bytes room_ = std::numeric_limits<Bytes>::max();
};

/// Two subgroups of a chunk that a device updates, and memory for slots that activations could
/// lend.
class LentSlots : public ::testing::Test {
 protected:
  static constexpr Bytes slot_bytes = chunk_elements * (12 + 2);

  LentSlots() {
    config.run_dir = "nowhere";
    config.share.device_share = 1.0;
    config.share.device_chunk = chunk_elements;
    offload = std::make_unique<Offload>(config, comm, nullptr);
    offload->allocate(subgroups, plan::MemoryPlan{}, sizeof(bfloat16), device);
    gradients = offload->take_gradients(false).accumulated;
    for (auto const& subgroup : subgroups) {
      for (auto* const tiers : {&offload->state(), gradients.get()}) {
        auto lease = tiers->create(subgroup.index);
        std::ranges::fill(lease.mutable_bytes(), std::byte{1});
        lease.commit();
      }
    }
  }
  static std::vector<state::LayerLayout> layers() {
    state::LayerLayout layer;
    layer.name = "layer";
    layer.decayed_elements = layer.elements = 2 * chunk_elements;
    layer.tensors.push_back(
        {.name = "weight", .rows = layer.elements, .decayed = true, .initial = {}, .index = 0});
    return {layer};
  }
  [[nodiscard]] std::unique_ptr<update::DeviceLane> make(std::span<std::byte> idle) {
    return make_lane(config,
                     {.elements = 2 * chunk_elements,
                      .subgroup_elements = chunk_elements,
                      .gradient_bytes = sizeof(bfloat16),
                      .parameter_bytes = sizeof(bfloat16)},
                     device, idle);
  }
  /// True if an update by the lane writes to `memory`.
  [[nodiscard]] bool used(update::DeviceLane& lane, std::span<std::byte> memory) {
    std::ranges::fill(memory, std::byte{});
    update::Update update{{.subgroups = subgroups,
                           .state = offload->state(),
                           .gradient =
                               [this](state::Subgroup const& subgroup) {
                                 auto lease = gradients->fetch(subgroup.index);
                                 auto const view = std::span{
                                     reinterpret_cast<bfloat16 const*>(lease.bytes().data()),
                                     static_cast<std::size_t>(subgroup.size)};
                                 return update::GradientLease{std::move(lease), view};
                               },
                           .target = parameters::targets_in(copy.as<bfloat16>()),
                           .device = &lane},
                          {}};
    update.plan({{.subgroup = 0, .on_device = true}, {.subgroup = 1, .on_device = true}});
    update.run({.learning_rate = 1e-3,
                .beta1 = 0.9,
                .beta2 = 0.95,
                .epsilon = 1e-8,
                .weight_decay = 0.1,
                .gradient_scale = 1.0,
                .step = 1});
    update.finish();
    return std::ranges::any_of(memory, [](std::byte byte) { return byte != std::byte{}; });
  }

  config::RunConfig config;
  mpi::Communicator comm = mpi::Communicator::self();
  CrowdedDevice device;
  state::ShardMap map{layers(), 1};
  std::vector<state::Subgroup> subgroups = state::subgroups_of(map, 0, chunk_elements);
  std::unique_ptr<Offload> offload;
  std::unique_ptr<tiers::Tiers> gradients;
  device::Buffer copy = device.allocate(2 * chunk_elements * 2, "the working copy");
  device::Buffer activations = device.allocate(4 * slot_bytes, "activations");
};

TEST_F(LentSlots, AreLeftAloneWhileTheDeviceHasRoom) {
  auto const lane = make(activations.as<std::byte>());
  EXPECT_FALSE(used(*lane, activations.as<std::byte>()));
}

TEST_F(LentSlots, AreTakenWhenOthersTookTheRoomThatTheDeviceSpeaksOf) {
  device.leave(slot_bytes);
  auto const before = device.used();
  auto const lane = make(activations.as<std::byte>());
  EXPECT_EQ(device.used(), before);
  EXPECT_TRUE(used(*lane, activations.as<std::byte>()));
}

TEST_F(LentSlots, ThatDoNotSufficeLeaveTheErrorOfTheDevice) {
  device.leave(slot_bytes);
  try {
    (void)make(activations.as<std::byte>().first(2 * slot_bytes));
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("update.device-chunk"));
  }
}

}  // namespace
}  // namespace offstage::train
