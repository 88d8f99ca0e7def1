#include "train/settle/schedule_choice.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "train/forecast/attention_room.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/settle/rank_link_needs.hpp"

namespace offstage::train {
namespace {

constexpr int micro_batches = 64;

/// Large layers and few tokens: a vertical schedule moves fewer bytes.
config::RunConfig streamed(char const* activations) {
  config::RunConfig config;
  config.model = {.layers = 6,
                  .hidden = 128,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn_hidden = 256,
                  .vocab = 256,
                  .max_sequence = 16};
  config.train.sequence = 16;
  config.train.micro_batch = 1;
  config.train.global_batch = micro_batches;
  config.train.schedule = config::LayerSchedule::automatic;
  config.train.activations = activations::parse_policy(activations);
  config.numerics.dtype = DType::bf16;
  config.subgroup_size = 65536;
  config.share.device_chunk = 4096;
  config.share.device_share = 0.0;
  config.share.device_gradients = 0;
  config.device.kind = config::DeviceKind::cuda;
  config.parameter_home = parameters::Home::host;
  return config;
}

state::ShardMap map_of(config::RunConfig const& config) {
  return state::ShardMap{state::layers_of(config.model), 1};
}

int settled(config::RunConfig config, Room const& room) {
  settle_schedule(config, map_of(config), room);
  return config.train.together;
}

Bytes device_bytes(config::RunConfig config, int together) {
  config.train.together = together;
  Room const room{.route = state::Route::staged, .device_memory = 1};
  auto const demand = device_demand(config, map_of(config), 0, room, config.subgroup_size);
  return demand.total() - demand.held;
}

TEST(ScheduleChoice, AllowsWhatTheKeyAndTheActivationsDo) {
  auto config = streamed("auto");
  EXPECT_EQ(allowed_schedules(config, 1), (std::vector{0, micro_batches}));
  EXPECT_EQ(allowed_schedules(config, 3), (std::vector{0, 22}));
  config.train.activations = activations::parse_policy("keep");
  EXPECT_EQ(allowed_schedules(config, 1), std::vector{0});
  config.train.schedule = config::LayerSchedule::vertical;
  EXPECT_EQ(allowed_schedules(config, 1), std::vector{micro_batches});
  config.train.schedule = config::LayerSchedule::horizontal;
  EXPECT_EQ(allowed_schedules(config, 1), std::vector{0});
}

TEST(ScheduleChoice, AutomaticIsHorizontalWhereTheDeviceHasNoRoomForAllInputs) {
  auto const config = streamed("recompute");
  Bytes const all = device_bytes(config, micro_batches);
  ASSERT_GT(all, device_bytes(config, 0));
  Room room{.route = state::Route::staged, .device_memory = all};
  EXPECT_EQ(settled(config, room), micro_batches);
  room.device_memory = all - 1;
  EXPECT_EQ(settled(config, room), 0);
  auto forced = config;
  forced.train.schedule = config::LayerSchedule::vertical;
  EXPECT_EQ(settled(forced, room), micro_batches) << "which the device will refuse";
}

TEST(ScheduleChoice, OfAnotherRunIsForgotten) {
  auto config = streamed("0");
  auto const map = map_of(config);
  Room room{.route = state::Route::staged, .device_memory = 4 * MiB};
  settle_schedule(config, map, room);
  settle_waiting(config, map, room);
  ASSERT_EQ(config.train.together, micro_batches);
  ASSERT_GT(config.train.staying.tensors, 0);
  room.device_memory = device_bytes(streamed("0"), micro_batches);
  EXPECT_EQ(settled(config, room), micro_batches) << "with nothing that stays";
  room.device_memory = 1;
  EXPECT_EQ(settled(config, room), 0) << "there is no room";
}

TEST(ScheduleChoice, AutomaticIsHorizontalWhereHostMemoryHasNoRoomForAllInputs) {
  auto const config = streamed("0");
  auto const map = map_of(config);
  Room room{.route = state::Route::staged, .host_memory = MiB};
  while (!has_room(config, map, room)) {
    room.host_memory += 16 * KiB;
  }
  auto vertical = config;
  vertical.train.together = micro_batches;
  ASSERT_FALSE(has_room(vertical, map, room));
  EXPECT_EQ(settled(config, room), 0);
  while (!has_room(vertical, map, room)) {
    room.host_memory += 16 * KiB;
  }
  EXPECT_EQ(settled(config, room), micro_batches);
}

TEST(ScheduleChoice, OfAVerticalRunIsInWhatLinksAndAttentionFindRoomBeside) {
  auto config = streamed("recompute");
  auto const either = rank_link_needs(config, 2);
  config.train.schedule = config::LayerSchedule::vertical;
  auto const vertical = rank_link_needs(config, 2);
  EXPECT_GT(vertical.staged, either.staged);
  EXPECT_GT(vertical.direct, either.direct);
  config.train.schedule = config::LayerSchedule::horizontal;
  EXPECT_EQ(rank_link_needs(config, 2).staged, either.staged) << "the cheapest that is allowed";

  constexpr Bytes workspace = MiB;
  config.device.attention_workspace = workspace;
  Room room{.route = state::Route::staged, .device_memory = device_bytes(config, 0)};
  auto const map = map_of(config);
  EXPECT_TRUE(has_attention_room(config, map, room, workspace));
  config.train.schedule = config::LayerSchedule::vertical;
  EXPECT_FALSE(has_attention_room(config, map, room, workspace));
  room.device_memory = device_bytes(config, micro_batches);
  EXPECT_TRUE(has_attention_room(config, map, room, workspace));
  config.share.device_gradients = 8 * KiB;
  EXPECT_FALSE(has_attention_room(config, map, room, workspace)) << "they are asked for";
}

/// A vertical step of `streamed`, of which as much waits on the device as there is room for.
plan::StayingTensors staying(config::RunConfig config, Room const& room) {
  config.train.together = micro_batches;
  config.train.staying = {.tensors = 3};  // of an earlier choice
  settle_waiting(config, map_of(config), room);
  auto const demand = device_demand(config, map_of(config), 0, room, config.subgroup_size);
  EXPECT_LE(demand.total(), room.device_memory);
  return config.train.staying;
}

TEST(ScheduleChoice, AsMuchWaitsOnTheDeviceAsItHasRoomFor) {
  auto config = streamed("0");
  config.model.tied_head = true;
  Bytes const tensor = 16 * 128 * 2;
  Bytes const table = 256 * 128 * 2;
  Room room{.route = state::Route::staged};
  config.train.together = micro_batches;
  room.device_memory = device_bytes(config, micro_batches);
  int const slots = 4;  // of layers, which come first
  config.train.staying = {};
  while (device_demand(config, map_of(config), 0, room, config.subgroup_size).layer_slots < slots) {
    room.device_memory += KiB;
  }
  Bytes const least = device_demand(config, map_of(config), 0, room, config.subgroup_size).total();
  room.device_memory = least + 5 * tensor + 1;
  EXPECT_EQ(staying(config, room), (plan::StayingTensors{.tensors = 5})) << "of the gradients";
  room.device_memory = least + 70 * tensor;
  EXPECT_EQ(staying(config, room).tensors, 70) << "there is no room for tables";
  Bytes const tables = (micro_batches - 2) * table;
  room.device_memory = least + tables + 80 * tensor;
  EXPECT_EQ(staying(config, room), (plan::StayingTensors{.tensors = 80, .tables = true}));
  room.device_memory = 1000 * MiB;
  EXPECT_EQ(staying(config, room).tensors, micro_batches * 8) << "all";
  config.share.device_gradients = 2 * tensor;
  room.device_memory = least + 70 * tensor;
  EXPECT_LT(staying(config, room).tensors, 70) << "gradients have what they are given";

  room.device_memory = 0;
  config.train.together = micro_batches;
  settle_waiting(config, map_of(config), room);
  EXPECT_EQ(config.train.staying, plan::StayingTensors{}) << "nobody knows the room";
  room.device_memory = 1000 * MiB;
  EXPECT_EQ(staying(streamed("recompute"), room), plan::StayingTensors{}) << "all stay";
}

TEST(ScheduleChoice, TheSumsOfABlockComeBeforeInputsThatWait) {
  auto config = streamed("0");
  config.share.device_gradients.reset();
  config.numerics.accumulate_fp32 = true;
  Bytes const tensor = 16 * 128 * 2;
  Room room{.route = state::Route::staged, .device_memory = 1};
  config.train.together = micro_batches;
  auto const least = device_demand(config, map_of(config), 0, room, config.subgroup_size);
  int some = 0;
  for (int more = micro_batches; more < 8 * micro_batches; more += 16) {
    room.device_memory = least.total() + more * tensor;
    auto settled = config;
    settle_waiting(settled, map_of(config), room);
    auto const demand = device_demand(settled, map_of(config), 0, room, config.subgroup_size);
    if (int const tensors = settled.train.staying.tensors; tensors > micro_batches) {
      some += tensors < more ? 1 : 0;
      auto const shape = update_shape(settled, map_of(config), 0, config.subgroup_size, room.route);
      EXPECT_GT(shape.reserved_in_turn(shape.held_elements(demand.held)), 0);
    }
  }
  EXPECT_GT(some, 0);
}

/// A second path that takes nothing and whose rates nobody knows.
TEST(ScheduleChoice, PathsThatTakeNothingCountNowhere) {
  auto config = streamed("auto");
  config.parameter_home = parameters::Home::storage;
  auto& first = config.paths.emplace_back();
  first.directory = "/one";
  first.read_rate = 4e9;
  first.write_rate = 2e9;
  config.paths.emplace_back().directory = "/two";
  auto const map = map_of(config);
  EXPECT_EQ(given_rates(config, 1).rates.storage.read, 0.0);
  EXPECT_EQ(depth_demand(config, map, GiB).paths, 2);
  auto const check = [&] {
    EXPECT_EQ(given_rates(config, 2).rates.storage.read, 2e9);
    EXPECT_EQ(given_rates(config, 2).rates.storage.write, 1e9);
    auto const depth = depth_demand(config, map, GiB);
    EXPECT_EQ(depth.paths, 1);
    EXPECT_EQ(depth.storage, 4e9);
  };
  config.storage.split = plan::parse_split("first");
  check();
  config.storage.split = plan::parse_split("1:0");
  check();
}

}  // namespace
}  // namespace offstage::train
