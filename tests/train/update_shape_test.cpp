#include "train/memory/update_shape.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

/// A shard of ten subgroups of 100 elements, gradients of four bytes.
class ShapeOfUpdates : public ::testing::Test {
 protected:
  ShapeOfUpdates() {
    config.parameter_home = parameters::Home::device;
    config.share.device_chunk = 64;
    config.share.device_share = 0.0;
  }
  /// On a device with memory of its own that has 10,000 bytes free.
  [[nodiscard]] Bytes room() const { return gradient_room(config, shape, false, 10'000); }

  config::RunConfig config;
  UpdateShape shape{
      .elements = 1000, .subgroup_elements = 100, .gradient_bytes = 4, .parameter_bytes = 2};
};

TEST_F(ShapeOfUpdates, NeedALaneWhereTheDeviceUpdatesOrParametersTravel) {
  EXPECT_TRUE(needs_lane(config, false)) << "new parameters travel to the device";
  EXPECT_FALSE(needs_lane(config, true));
  config.parameter_home = parameters::Home::host;
  EXPECT_FALSE(needs_lane(config, false));
  config.share.device_share.reset();
  EXPECT_TRUE(needs_lane(config, false)) << "auto: the device may get a share";
  EXPECT_FALSE(needs_lane(config, true)) << "its kernels would run on the same cores";
  config.share.device_resident = 0.5;
  EXPECT_TRUE(needs_lane(config, true));
}

TEST_F(ShapeOfUpdates, HaveAsManyWorkersAsBuffersOrTwoForEachSide) {
  EXPECT_EQ(update_workers(config, {.buffers = 7}, false), 7);
  EXPECT_EQ(update_workers(config, {}, false), 4);
  EXPECT_EQ(update_workers(config, {}, true), 2);
}

TEST_F(ShapeOfUpdates, GiveTheLaneSlotsOnlyWhereTheDeviceTakesPart) {
  EXPECT_EQ(lane_settings(config, shape).buffers, 0);
  config.share.device_share = 0.5;
  auto const settings = lane_settings(config, shape);
  EXPECT_GT(settings.buffers, 0);
  EXPECT_EQ(settings.chunk, 64);
  EXPECT_EQ(settings.gradient_bytes, 4);
  EXPECT_EQ(settings.parameter_bytes, 2);
  EXPECT_FALSE(settings.parameters_on_host);
}

TEST_F(ShapeOfUpdates, HaveChunksNoLargerThanASubgroup) {
  config.share.device_chunk = 4096;
  EXPECT_EQ(lane_settings(config, shape).chunk, 100);
}

TEST_F(ShapeOfUpdates, LeaveABlocksRoomToSumsInTurnWhereNotAllHaveAPlace) {
  EXPECT_EQ(shape.reserved_in_turn(300), 0) << "sums have their places for a whole step";
  shape.blocks = {0, 200, 300, 400};  // the last one has 600 elements
  EXPECT_EQ(shape.reserved_in_turn(700), 600);
  EXPECT_EQ(shape.reserved_in_turn(500), 500) << "as far as there is room";
  EXPECT_EQ(shape.reserved_in_turn(1000), 0) << "all have a place for a whole step";
  EXPECT_EQ(shape.staying_elements(700 * 4), 100);
}

TEST_F(ShapeOfUpdates, KeepGradientsOfTheDevicesShareAndOfOneSubgroupMore) {
  EXPECT_EQ(room(), 0) << "the device updates nothing";
  config.share.device_share = 0.25;
  EXPECT_EQ(room(), 4 * (250 + 100));
  config.share.device_resident = 0.2;
  EXPECT_EQ(room(), 4 * (200 + 200 + 100)) << "a quarter of what is not resident";
  config.share.device_share.reset();
  EXPECT_EQ(room(), 4 * 1000) << "auto: all at most";
}

TEST_F(ShapeOfUpdates, KeepAllGradientsThatAreSummedOnTheDevice) {
  shape.sums_on_device = true;
  EXPECT_EQ(room(), 4 * 1000);
}

TEST_F(ShapeOfUpdates, KeepNoMoreGradientsThanIsFreeOrAskedFor) {
  config.share.device_share = 1.0;
  EXPECT_EQ(gradient_room(config, shape, false, 123), 123);
  config.share.device_gradients = 77;
  EXPECT_EQ(room(), 77);
}

TEST_F(ShapeOfUpdates, KeepNoGradientsInHostMemoryOrWhereTheyAreFlushed) {
  config.share.device_share = 1.0;
  EXPECT_EQ(gradient_room(config, shape, true, 10'000), 0);
  config.paths = {{.directory = "/nvme", .engine = {}, .emulation = {}}};
  config.storage.flush_fp32 = true;
  EXPECT_EQ(room(), 0);
}

}  // namespace
}  // namespace offstage::train
