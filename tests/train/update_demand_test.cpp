#include "train/memory/update_demand.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

/// Ten subgroups of 100 elements on a storage path, three of them cached.
class StorageTraffic : public ::testing::Test {
 protected:
  StorageTraffic() {
    config.paths = {{.directory = "/nvme", .engine = {}, .emulation = {}}};
    config.overlap = config::Switch::off;
  }
  [[nodiscard]] plan::StorageTraffic traffic() const {
    return storage_traffic(config, shape, memory);
  }

  config::RunConfig config;
  UpdateShape shape{
      .elements = 1000, .subgroup_elements = 100, .gradient_bytes = 4, .parameter_bytes = 2};
  plan::MemoryPlan memory{
      .subgroup_elements = 100, .subgroups = 10, .buffers = 3, .cached = 3, .gradients_cached = 10};
};

TEST_F(StorageTraffic, IsTheStateThatIsNotCachedThereAndBack) {
  EXPECT_EQ(traffic().read, 12 * 700);
  EXPECT_EQ(traffic().written, 12 * 700);
  EXPECT_EQ(traffic().spilled, 0);
  memory.cached = 10;
  EXPECT_TRUE(traffic().none());
}

TEST_F(StorageTraffic, IsNoneWithoutPaths) {
  config.paths.clear();
  memory.cached = 0;
  EXPECT_TRUE(traffic().none());
}

TEST_F(StorageTraffic, LeavesOutWhatIsResident) {
  config.share.device_resident = 0.4;
  memory.subgroups = 6;
  EXPECT_EQ(traffic().read, 12 * 300);
  memory.cached = 6;
  EXPECT_TRUE(traffic().none());
}

TEST_F(StorageTraffic, IsAllStateWhereTheCacheThrowsOutWhatIsWantedNext) {
  config.storage.evict = plan::Evict::oldest;
  EXPECT_EQ(traffic().read, 12 * 700) << "the order turns";
  config.storage.order = plan::UpdateOrder::ascending;
  EXPECT_EQ(traffic().read, 12 * 1000);
  config.overlap = config::Switch::on;
  EXPECT_EQ(traffic().read, 12 * 700) << "the lowest subgroups stay";
  config.overlap = config::Switch::off;
  config.storage.evict = plan::Evict::farthest;
  EXPECT_EQ(traffic().read, 12 * 700);
}

TEST_F(StorageTraffic, CountsGradientsThatHaveNoPlaceInHostMemory) {
  memory.gradients_cached = 4;
  memory.gradient_buffers = 3;
  EXPECT_EQ(traffic().spilled, 600);
  EXPECT_EQ(traffic().read, 12 * 700) << "state alone";
  config.storage.flush_fp32 = true;
  EXPECT_EQ(traffic().spilled, 1000);
}

TEST_F(StorageTraffic, WritesParametersThatLiveOnStorage) {
  config.parameter_home = parameters::Home::storage;
  EXPECT_EQ(traffic().written, 12 * 700 + 2 * 1000);
  EXPECT_EQ(traffic().read, 12 * 700);
  config.parameter_home = parameters::Home::host;
  EXPECT_EQ(traffic().written, 12 * 700);
}

TEST(UpdateDemand, IsThatOfTheConfigurationAndTheShape) {
  config::RunConfig config;
  config.share.device_chunk = 500;
  config.share.device_resident = 0.25;
  config.share.transfers = plan::Transfers::blocking;
  UpdateShape shape{
      .elements = 1000, .subgroup_elements = 100, .gradient_bytes = 4, .parameter_bytes = 2};
  shape.storage.read = 7;
  auto demand = update_demand(config, shape, false);
  EXPECT_EQ(demand.elements, 1000);
  EXPECT_EQ(demand.resident, 0.25);
  EXPECT_EQ(demand.gradient_bytes, 4);
  EXPECT_EQ(demand.parameter_bytes, 2);
  EXPECT_EQ(demand.chunk, 100) << "no more than a subgroup";
  EXPECT_EQ(demand.transfers, plan::Transfers::blocking);
  EXPECT_EQ(demand.storage.read, 7);
  EXPECT_FALSE(demand.direct_copy);
  EXPECT_TRUE(update_demand(config, shape, true).direct_copy);
  config.parameter_home = parameters::Home::host;
  EXPECT_TRUE(update_demand(config, shape, false).direct_copy);
}

}  // namespace
}  // namespace offstage::train
