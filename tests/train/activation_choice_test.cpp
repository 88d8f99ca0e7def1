#include "train/settle/activation_choice.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/dtype.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/settle/sharding.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

config::RunConfig some_config() {
  return run_of_activations(16);
}

Bytes needed(config::RunConfig config, std::string const& policy) {
  config.train.activations = activations::parse_policy(policy);
  state::ShardMap const map{state::layers_of(config.model), 1};
  return device_demand(config, map, 0, {.route = state::Route::staged}, config.subgroup_size)
      .total();
}

ActivationChoice chosen(config::RunConfig const& config, Room room) {
  state::ShardMap const map{state::layers_of(config.model), 1};
  room.route = state::Route::staged;
  return settle_activations(config, map, room, given_rates(config, 1));
}

std::string settled(config::RunConfig const& config, Bytes memory, Bytes host_memory = 0) {
  return activations::describe(
      chosen(config, {.device_memory = memory, .host_memory = host_memory}).policy);
}

WantedRates wanted(config::RunConfig const& config, Bytes memory, Bytes host_memory = 0) {
  state::ShardMap const map{state::layers_of(config.model), 1};
  Room const room{
      .route = state::Route::staged, .device_memory = memory, .host_memory = host_memory};
  return wanted_rates(config, map, room, given_rates(config, 1));
}

TEST(ActivationChoice, KeepsAllWhereThatFits) {
  auto const config = some_config();
  EXPECT_EQ(settled(config, 0), "keep") << "no limit";
  EXPECT_EQ(settled(config, needed(config, "keep")), "keep");
  EXPECT_NE(settled(config, needed(config, "keep") - 1), "keep");
}

TEST(ActivationChoice, WithoutRatesIsTheFirstThatFits) {
  auto const config = some_config();
  ASSERT_LT(needed(config, "recompute"), needed(config, "keep"));
  EXPECT_EQ(settled(config, needed(config, "recompute")), "recompute");
  EXPECT_EQ(settled(config, needed(config, "recompute") - 1), "0");
}

/// Memory that has room for all policies but those that keep more than a block's parts.
Bytes some_room(config::RunConfig const& config) {
  return std::max(needed(config, "recompute"), needed(config, "host"));
}

bool is_computed_again(std::string const& policy) {
  return policy == "recompute" || policy.starts_with("keep:");
}

TEST(ActivationChoice, KeepsWhatIdleMemoryHasRoomFor) {
  auto config = some_config();
  Bytes const least = needed(config, "recompute");
  Bytes const most = needed(config, "keep:1");
  ASSERT_LT(most, needed(config, "keep"));
  EXPECT_EQ(settled(config, needed(config, "keep") - 1), "keep:1");
  EXPECT_EQ(settled(config, most), "keep:1");
  Bytes const half = (least + most) / 2;
  auto const policy = settled(config, half);
  ASSERT_TRUE(policy.starts_with("keep:0.")) << policy;
  EXPECT_LE(needed(config, policy), half);
  double const share = std::stod(policy.substr(5));
  EXPECT_GT(needed(config, "keep:" + std::to_string(share + 0.1)), half);
  // Gradients of the update come before them.
  config.share.device_gradients.reset();
  config.share.device_share = 1.0;
  config.device.emulation = {.host_to_device = 1e4, .device_to_host = 1e4, .compute = 1e9};
  EXPECT_EQ(settled(config, needed(config, "recompute")), "recompute");
  // A vertical schedule computes everything again.
  config.train.together = 1;
  EXPECT_EQ(settled(config, half), "recompute");
}

/// The choice of two ranks, and with it the rest of what a run settles.
config::RunConfig settled_by_two(config::RunConfig config, Bytes memory) {
  state::ShardMap const map{state::layers_of(config.model), 2};
  Room const room{.device_memory = memory};
  config.train.activations = settle_activations(config, map, room, given_rates(config, 1)).policy;
  settle_sharding(config, map, room);
  return config;
}

Bytes needed_by_two(config::RunConfig config, std::string const& policy,
                    parameters::Sharding sharding) {
  config.train.activations = activations::parse_policy(policy);
  config.sharding = sharding;
  state::ShardMap const map{state::layers_of(config.model), 2};
  return device_demand(config, map, 0, {}, config.subgroup_size).total();
}

TEST(ActivationChoice, KeepsMoreThanWhatSparesRanksTheGatheringOfALayer) {
  auto const config = some_config();
  for (std::string const share : {"0.3", "0.7", "1"}) {
    auto const policy = "keep:" + share;
    Bytes const memory = needed_by_two(config, policy, parameters::Sharding::zero3);
    auto const found = activations::describe(settled_by_two(config, memory).train.activations);
    EXPECT_EQ(needed_by_two(config, found, parameters::Sharding::zero3), memory) << found;
  }
}

TEST(ActivationChoice, LeavesRanksTheRoomForWholeLayers) {
  auto config = some_config();
  config.sharding_is_open = true;
  for (std::string const policy : {"recompute", "keep:0.3", "keep:1"}) {
    Bytes const memory = needed_by_two(config, policy, parameters::Sharding::zero2);
    auto const found = settled_by_two(config, memory);
    EXPECT_EQ(found.sharding, parameters::Sharding::zero2) << policy;
    EXPECT_EQ(needed_by_two(config, activations::describe(found.train.activations), found.sharding),
              memory)
        << policy;
  }
}

TEST(ActivationChoice, LeavesRanksTheRoomForAttentionsBuffer) {
  auto config = some_config();
  state::ShardMap const map{state::layers_of(config.model), 2};
  auto const demand = [&](std::string const& policy, Room const& room) {
    config.train.activations = activations::parse_policy(policy);
    return device_demand(config, map, state::fullest_rank, room, config.subgroup_size);
  };
  Room room{.route = state::Route::staged};
  for (std::string const policy : {"keep", "keep:1", "keep:0.3"}) {
    room.device_memory = 0;
    auto const roomy = demand(policy, room);
    room.device_memory = roomy.total() - roomy.held - 1;
    ASSERT_LE(demand(policy, room).total(), room.device_memory);
    config.train.activations = {activations::Policy::Rule::automatic};
    auto const found = settle_activations(config, map, room, given_rates(config, 1)).policy;
    EXPECT_TRUE(demand(activations::describe(found), room).attention_buffer) << policy;
  }
}

TEST(ActivationChoice, DoesWithoutAttentionsBufferWhereNoPolicyFitsBesideIt) {
  auto config = some_config();
  config.model.layers = 2;
  config.train.sequence = 2;  // activations are smaller than the buffer
  state::ShardMap const map{state::layers_of(config.model), 2};
  auto const demand = [&](std::string const& policy, Room const& room) {
    config.train.activations = activations::parse_policy(policy);
    return device_demand(config, map, state::fullest_rank, room, config.subgroup_size);
  };
  Room room{.route = state::Route::staged, .device_memory = 1};
  room.device_memory = demand("recompute", room).total();
  ASSERT_TRUE(demand("0", room).lacks_attention_buffer);
  config.train.activations = {activations::Policy::Rule::automatic};
  auto const found = settle_activations(config, map, room, given_rates(config, 1)).policy;
  EXPECT_TRUE(is_computed_again(activations::describe(found))) << activations::describe(found);
}

TEST(ActivationChoice, DoesWithoutAttentionsBufferWhereHostMemoryHasNoRoomForActivations) {
  auto config = some_config();
  state::ShardMap const map{state::layers_of(config.model), 2};
  config.train.activations = activations::parse_policy("recompute");
  Room room{.route = state::Route::staged, .device_memory = 1, .host_memory = GiB};
  room.host_memory = host_plan(config, map, room).node_total;
  room.device_memory =
      device_demand(config, map, state::fullest_rank, room, config.subgroup_size).total();
  config.train.activations = {activations::Policy::Rule::automatic};
  auto const found = settle_activations(config, map, room, given_rates(config, 1)).policy;
  EXPECT_EQ(activations::describe(found), "recompute");
}

TEST(ActivationChoice, LetsWhatLeavesGoToStorageWhereThereIsAny) {
  auto config = some_config();
  config.paths.emplace_back().directory = "/path";
  EXPECT_EQ(settled(config, needed(config, "recompute") - 1), "storage:0");
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  EXPECT_EQ(settled(config, some_room(config)), "storage");
}

TEST(ActivationChoice, WithRatesIsTheFasterOfWhatFits) {
  auto config = some_config();
  auto& emulation = config.device.emulation;
  emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  Bytes const roomy = some_room(config);
  EXPECT_EQ(settled(config, roomy), "host");
  emulation.host_to_device = emulation.device_to_host = 1e4;
  EXPECT_TRUE(is_computed_again(settled(config, roomy)));
  emulation = {.compute = 1e9};
  config.platform.host_to_device = config.platform.device_to_host = 1e12;
  EXPECT_EQ(settled(config, roomy), "host");
}

TEST(ActivationChoice, SwapsWhatTheDeviceHasRoomForIfNotAllThatItWould) {
  auto config = some_config();
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  Bytes const least = needed(config, "0");
  Bytes const most = needed(config, "host");
  ASSERT_LT(least, most);
  ASSERT_LT(most, needed(config, "keep"));
  EXPECT_EQ(settled(config, most), "host");
  EXPECT_EQ(settled(config, least), "0");
  double before = 1.0;
  for (Bytes memory = most - 1; memory > least; memory -= (most - least) / 7) {
    auto const policy = settled(config, memory);
    EXPECT_LE(needed(config, policy), memory);
    double const share = std::stod(policy);
    EXPECT_LE(share, before);
    before = share;
  }
  EXPECT_LT(before, 0.5);
  auto const some = std::stod(settled(config, most - 1));
  EXPECT_GT(some, 0.3) << "all parts but the last";
  EXPECT_LT(some, 1.0);
}

TEST(ActivationChoice, SaysByWhichRates) {
  auto config = some_config();
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  Bytes const all = needed(config, "keep");
  EXPECT_EQ(chosen(config, {.device_memory = all}).why, "");
  auto const why = chosen(config, {.device_memory = all - 1}).why;
  EXPECT_NE(why.find("100% swapped"), std::string::npos) << why;
  EXPECT_NE(why.find("products 1.00 GFLOP/s (given), link 1.00 TB/s to the device and 1.00 TB/s"),
            std::string::npos)
      << why;
}

TEST(ActivationChoice, WantsNoRatesWhereAllFitsOrTheUserChose) {
  auto config = some_config();
  Bytes const all = needed(config, "keep");
  EXPECT_FALSE(wanted(config, 0).any());
  EXPECT_FALSE(wanted(config, all).any());
  auto const some = wanted(config, all - 1);
  EXPECT_TRUE(some.compute && some.link && !some.storage);
  config.device.emulation.compute = 1e9;
  EXPECT_FALSE(wanted(config, all - 1).compute);
  config.platform.host_to_device = config.platform.device_to_host = 1e9;
  EXPECT_FALSE(wanted(config, all - 1).any());
  config.train.activations = activations::parse_policy("0.5");
  EXPECT_FALSE(wanted(some_config(), all).any());
}

/// A host whose memory has room for the run and so much more, that of activations.
Bytes host_with(config::RunConfig config, Bytes activations) {
  config.train.activations = activations::parse_policy("keep");
  config.paths.clear();
  state::ShardMap const map{state::layers_of(config.model), 1};
  auto const demand =
      memory_demand(config, map, {.route = state::Route::staged, .host_memory = GiB});
  return plan::plan_memory(demand).node_total + activations;
}

TEST(ActivationChoice, SwapsNoMoreThanHostMemoryHasRoomFor) {
  auto config = some_config();
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  Bytes const roomy = some_room(config);
  EXPECT_EQ(settled(config, roomy, GiB), "host");
  config.train.activations = activations::parse_policy("host");
  Bytes const all = activation_bytes(config);
  config.train.activations = {};
  double const share = std::stod(settled(config, roomy, host_with(config, all / 2)));
  EXPECT_GT(share, 0.3);
  EXPECT_LT(share, 0.5) << "the inputs take a part";
  EXPECT_TRUE(is_computed_again(settled(config, roomy, host_with(config, 0))));
}

TEST(ActivationChoice, GoesByStorageWhereHostMemoryHasNoRoom) {
  auto config = some_config();
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  auto& path = config.paths.emplace_back();
  path.directory = "/path";
  Bytes const roomy = some_room(config);
  Bytes const tight = needed(config, "recompute") - 1;
  Bytes const host = host_with(config, 0);
  EXPECT_FALSE(wanted(config, roomy, GiB).storage) << "nothing goes there";
  EXPECT_TRUE(wanted(config, roomy, host).storage);
  EXPECT_TRUE(is_computed_again(settled(config, roomy, host))) << "its rates are not known";
  EXPECT_EQ(settled(config, tight, host), "storage:0");
  path.read_rate = path.write_rate = 1e12;
  EXPECT_FALSE(wanted(config, roomy, host).storage);
  EXPECT_EQ(settled(config, roomy, host), "storage");
  path.read_rate = path.write_rate = 1e6;
  EXPECT_TRUE(is_computed_again(settled(config, roomy, host)));
  EXPECT_EQ(settled(config, tight, host), "storage:0");
  EXPECT_EQ(settled(config, roomy, GiB), "storage") << "it goes to host memory";
}

TEST(ActivationChoice, LeavesWhatTheUserSaysAlone) {
  auto config = some_config();
  config.train.activations = activations::parse_policy("0.5");
  EXPECT_EQ(settled(config, 1), "0.5");
}

TEST(ActivationChoice, CountsHostMemoryForWhatLeaves) {
  auto config = some_config();
  EXPECT_EQ(activation_bytes(config), 0);
  config.train.activations = activations::parse_policy("0");
  Bytes const input = 16 * 64 * 64 * 2;
  EXPECT_EQ(activation_bytes(config), 6 * input) << "the last two stay";
  config.share.transfers = plan::Transfers::blocking;
  EXPECT_EQ(activation_bytes(config), 7 * input) << "but one without overlap";
  state::ShardMap const map{state::layers_of(config.model), 1};
  EXPECT_EQ(memory_demand(config, map, {.host_memory = GiB}).activation_bytes, 7 * input);
}

}  // namespace
}  // namespace offstage::train
