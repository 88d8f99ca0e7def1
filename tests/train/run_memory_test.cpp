#include "train/memory/run_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "device/wrapped_device.hpp"
#include "platform/aio/engine.hpp"
#include "platform/memory/process_memory.hpp"
#include "state/link_support.hpp"
#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

/// Says that it is a GPU.
class NamedCuda final : public device::WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  [[nodiscard]] device::Kind kind() const noexcept override { return device::Kind::cuda; }
};

/// Parameters in host memory, behind a link. All ranks are on one node.
class RunMemoryOfRanks : public ::testing::Test {
 protected:
  RunMemoryOfRanks() {
    config.model = {.layers = 8,
                    .hidden = 64,
                    .heads = 4,
                    .kv_heads = 2,
                    .ffn_hidden = 64,
                    .vocab = 256,
                    .max_sequence = 64};
    config.train.sequence = 64;
    config.train.micro_batch = 1;
    config.train.global_batch = comm.size();
    config.train.activations = activations::parse_policy("recompute");
    config.numerics.dtype = DType::bf16;
    config.numerics.accumulate_fp32 = true;
    config.subgroup_size = 8192;
    config.share.device_chunk = 4096;
    config.share.device_share = 0.5;
    config.device.emulation = {.host_to_device = 1e10, .device_to_host = 1e10};
    config.parameter_home = parameters::Home::host;
    config.host_memory = 64 * MiB;
  }

  /// On a device with so much memory; 0: any.
  [[nodiscard]] RunMemory& on_device(Bytes limit = 0) {
    return on(device::make_host_device(limit, config.device.emulation));
  }
  [[nodiscard]] RunMemory& on(std::unique_ptr<device::Device> of) {
    device = std::move(of);
    link = state::make_link(state::LinkKind::usual, comm, device->host_visible());
    auto room = device_room(config, comm, *link, *device);
    room.ranks_per_node = node.size();
    made_ = std::make_unique<RunMemory>(config, comm, map(), room, *device);
    return *made_;
  }
  [[nodiscard]] state::ShardMap const& map() {
    if (!map_) {
      map_.emplace(state::layers_of(config.model), comm.size());
    }
    return *map_;
  }

  mpi::Communicator comm = mpi::Communicator::world();
  mpi::Communicator node = comm.split_by_node();
  config::RunConfig config;
  plan::MemoryPlan plan{.subgroup_elements = 8192, .node_total = 5 * MiB};
  std::unique_ptr<device::Device> device;
  std::unique_ptr<state::RankLink> link;
  std::optional<state::ShardMap> map_;
  std::unique_ptr<RunMemory> made_;
};

TEST_F(RunMemoryOfRanks, HasTheLimitThatIsGiven) {
  auto const& memory = on_device();
  EXPECT_EQ(memory.room().host_memory, 64 * MiB);
}

TEST_F(RunMemoryOfRanks, TakesItsShareOfWhatIsFreeForAllWhereNoneIsGiven) {
  config.host_memory = 0;
  Bytes const before = memory::available_bytes();
  Bytes const limit = on_device().room().host_memory;
  Bytes const most = std::max(before, memory::available_bytes());
  EXPECT_GT(limit, 0);
  EXPECT_LT(limit, static_cast<Bytes>(0.95 * static_cast<double>(most)));
  EXPECT_EQ(comm.minimum(limit), comm.maximum(limit));
}

TEST_F(RunMemoryOfRanks, BringsAsManyLayersAtATimeAsTheSmallestDeviceHasRoomFor) {
  auto const slots = [this](Bytes limit) {
    return on(std::make_unique<NamedCuda>(device::make_host_device(limit, config.device.emulation)))
        .layer_slots(plan);
  };
  int const roomy = slots(0);
  int const least = slots(1);
  ASSERT_EQ(least, 2);
  ASSERT_GT(roomy, least);
  EXPECT_EQ(slots(comm.rank() == comm.size() - 1 ? 1 : 0), least);
}

TEST_F(RunMemoryOfRanks, BringsNoneWhereTheyLiveOnTheDevice) {
  config.parameter_home = parameters::Home::device;
  EXPECT_EQ(on_device().layer_slots(plan), 0);
}

TEST_F(RunMemoryOfRanks, NeedsThePlanAndWhatAnEmulatedDeviceTakesOfTheSameMemory) {
  auto const& emulated = on_device();
  // The device will take the layers at least.
  Bytes const slots = emulated.layer_slots(plan) * 2 * map().shard_elements(0) / 16;
  auto const needs = emulated.needs(node, plan);
  EXPECT_GT(needs.allocation, plan.node_total + comm.size() * slots);
  EXPECT_GT(needs.host_memory, needs.allocation) << "what processes have already counts";
  auto const on_gpu =
      on(std::make_unique<NamedCuda>(device::make_host_device(0, config.device.emulation)))
          .needs(node, plan);
  EXPECT_EQ(on_gpu.allocation, plan.node_total);
}

TEST_F(RunMemoryOfRanks, NeedsRequestsOfEachEngineOfEachPathAndOfTheCheckpoint) {
  config.paths = {{.directory = "/a", .engine = {.queue_depth = 8}, .emulation = {}},
                  {.directory = "/b", .engine = {.queue_depth = 32}, .emulation = {}}};
  auto const needs = on_device().needs(node, {});
  EXPECT_EQ(needs.storage_paths, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(needs.aio_requests, aio::EngineSettings{}.queue_depth + 8 * config.paths[0].engines() +
                                    32 * config.paths[1].engines());
}

}  // namespace
}  // namespace offstage::train
