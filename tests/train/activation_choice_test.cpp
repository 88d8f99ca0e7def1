#include "train/activation_choice.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/dtype.hpp"
#include "train/device_demand.hpp"
#include "train/memory_demand.hpp"

namespace offstage::train {
namespace {

RunConfig some_config() {
  RunConfig config;
  config.model = {.layers = 8,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn_hidden = 128,
                  .vocab = 256,
                  .max_sequence = 64};
  config.train.sequence = 64;
  config.train.micro_batch = 16;
  config.train.global_batch = 16;
  config.numerics.dtype = DType::bf16;
  config.subgroup_size = 65536;
  config.share.device_chunk = 4096;
  config.share.device_share = 0.0;
  config.share.device_gradients = 0;
  config.device.kind = DeviceKind::host;
  return config;
}

Bytes needed(RunConfig config, std::string const& policy) {
  config.train.activations = activations::parse_policy(policy);
  state::ShardMap const map{state::layers_of(config.model), 1};
  return device_demand<bfloat16>(config, map, 0, state::Route::staged, config.subgroup_size)
      .total();
}

std::string settled(RunConfig const& config, Bytes memory) {
  state::ShardMap const map{state::layers_of(config.model), 1};
  return activations::describe(settle_activations<bfloat16>(
      config, map, 0, {.memory = memory, .route = state::Route::staged}));
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

TEST(ActivationChoice, LetsWhatLeavesGoToStorageWhereThereIsAny) {
  auto config = some_config();
  config.paths.emplace_back().directory = "/path";
  EXPECT_EQ(settled(config, needed(config, "recompute") - 1), "storage:0");
  config.device.emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  EXPECT_EQ(settled(config, needed(config, "keep") - 1), "storage");
}

TEST(ActivationChoice, WithRatesIsTheFasterOfWhatFits) {
  auto config = some_config();
  auto& emulation = config.device.emulation;
  emulation = {.host_to_device = 1e12, .device_to_host = 1e12, .compute = 1e9};
  Bytes const roomy = needed(config, "keep") - 1;
  EXPECT_EQ(settled(config, roomy), "host");
  emulation.host_to_device = emulation.device_to_host = 1e4;
  EXPECT_EQ(settled(config, roomy), "recompute");
  emulation = {.compute = 1e9};
  config.platform.host_to_device = config.platform.device_to_host = 1e12;
  EXPECT_EQ(settled(config, roomy), "host");
}

TEST(ActivationChoice, LeavesWhatTheUserSaysAlone) {
  auto config = some_config();
  config.train.activations = activations::parse_policy("0.5");
  EXPECT_EQ(settled(config, 1), "0.5");
}

TEST(ActivationChoice, CountsHostMemoryForWhatLeaves) {
  auto config = some_config();
  EXPECT_EQ(activation_bytes<bfloat16>(config), 0);
  config.train.activations = activations::parse_policy("0");
  Bytes const input = 16 * 64 * 64 * 2;
  EXPECT_EQ(activation_bytes<bfloat16>(config), 6 * input) << "the last two stay";
  config.share.transfers = plan::Transfers::blocking;
  EXPECT_EQ(activation_bytes<bfloat16>(config), 7 * input) << "but one without overlap";
  state::ShardMap const map{state::layers_of(config.model), 1};
  EXPECT_EQ(memory_demand<bfloat16>(config, map, {.host_memory = GiB}).activation_bytes, 7 * input);
}

}  // namespace
}  // namespace offstage::train
