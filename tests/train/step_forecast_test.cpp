#include "train/forecast/step_forecast.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/dtype.hpp"
#include "model/transformer.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/settle/activation_choice.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

config::RunConfig tiny_step() {
  auto config = small_run(6, 10);
  config.numerics.accumulate_fp32 = true;
  config.share.device_chunk = 4096;
  config.device.kind = config::DeviceKind::cuda;
  return config;
}

struct StepScene {
  config::RunConfig config;
  state::ShardMap map;
  Room room{.route = state::Route::staged};
  plan::MemoryPlan memory{.subgroup_elements = 8192, .subgroups = 30};
  DeviceDemand device{};

  explicit StepScene(config::RunConfig const& with, int ranks = 1)
      : config{with}, map{state::layers_of(with.model), ranks} {
    room.ranks_per_node = ranks;
  }
  [[nodiscard]] StepFacts facts(int rank = 0) const {
    return {.map = map, .rank = rank, .room = room, .memory = memory, .device = device};
  }
};

TEST(StepForecast, HasAllProductsOfTheModel) {
  StepScene const scene{tiny_step()};
  auto const work = workload_of(scene.config, scene.facts());
  double flops = 0.0;
  for (auto const& layer : work.layers) {
    flops += layer.forward + layer.backward;
    EXPECT_EQ(layer.recompute, 0.0);
  }
  // Attention's backward makes one more product than twice forward's two.
  double const pairs = 2.0 * 32 * 33 / 2;
  double const again = 6 * 2.0 * pairs * 64;
  EXPECT_NEAR(flops, model::product_flops(scene.config.model, run_shape(scene.config)) + again,
              1e-6 * flops);
  EXPECT_EQ(work.rounds, 5);
  EXPECT_EQ(work.gradient_bytes, 4);
  EXPECT_EQ(work.working_bytes, 2);
}

TEST(StepForecast, ARanksLayersAndSubgroupsCoverItsShard) {
  StepScene const scene{tiny_step(), 3};
  for (int rank = 0; rank < 3; ++rank) {
    auto const work = workload_of(scene.config, scene.facts(rank));
    std::int64_t layers = 0;
    for (auto const& layer : work.layers) {
      EXPECT_EQ(layer.begin, layers);
      layers += layer.count;
    }
    std::int64_t subgroups = 0;
    for (auto const& subgroup : work.subgroups) {
      EXPECT_EQ(subgroup.begin, subgroups);
      subgroups += subgroup.elements;
    }
    EXPECT_EQ(layers, scene.map.shard_elements(rank));
    EXPECT_EQ(subgroups, layers);
    EXPECT_EQ(work.rounds, 2);
  }
}

TEST(StepForecast, RecomputationAndSwappingFollowTheFates) {
  auto config = tiny_step();
  config.train.activations = {activations::Policy::Rule::recompute};
  StepScene const again{config};
  auto const recomputed = workload_of(again.config, again.facts());
  // The MLP's backward begins with all of it, and needs attention's parameters.
  EXPECT_EQ(recomputed.layers[1].recompute, 0.0);
  EXPECT_GT(recomputed.layers[2].recompute, recomputed.layers[1].forward);
  EXPECT_TRUE(recomputed.layers[2].with_before);
  EXPECT_EQ(recomputed.layers[11].recompute, 0.0);
  EXPECT_EQ(recomputed.layers[12].recompute, 0.0) << "what the last block has made is still there";
  EXPECT_FALSE(recomputed.layers[12].with_before);
  config.train.activations = {activations::Policy::Rule::swap, 1.0};
  StepScene const swapped{config};
  auto const leaving = workload_of(swapped.config, swapped.facts());
  Bytes bytes = 0;
  for (auto const& layer : leaving.layers) {
    bytes += layer.leaving;
  }
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, activation_bytes(swapped.config));
  EXPECT_EQ(leaving.layers_per_block, 2U);
  EXPECT_EQ(leaving.layers[1].leaving, 0) << "they leave with the MLP's";
  EXPECT_GT(leaving.layers[2].leaving, 0);
  EXPECT_EQ(leaving.layers[12].leaving, 0);
}

TEST(StepForecast, AVerticalStepHasItsTensorsAndAllProductsAgain) {
  auto config = tiny_step();
  config.train.together = 5;
  config.train.activations = {activations::Policy::Rule::swap, 0.0};
  StepScene const scene{config};
  auto const work = workload_of(scene.config, scene.facts());
  ASSERT_TRUE(work.vertical.has_value());
  EXPECT_EQ(work.vertical->tensor, 2.0 * 2 * 32 * 64);
  EXPECT_EQ(work.vertical->slabs, 6);
  // What leaves in a step: inputs, the output and the gradients.
  auto const parts = model::leaving_parts<bfloat16>(config.model, run_shape(config));
  EXPECT_EQ(std::ssize(parts), 5 * (6 + 2));
  EXPECT_EQ(static_cast<double>(parts.front().bytes), work.vertical->tensor);
  auto some = scene.config;
  some.train.staying.tensors = 7;
  auto const less = workload_of(some, scene.facts());
  EXPECT_EQ(less.vertical->tensor, work.vertical->tensor);
  EXPECT_EQ(less.vertical->slabs, 6 + 7);
  EXPECT_EQ(less.vertical->staying, 7);
  some.train.staying.tensors = 5 * (6 + 2) - 6;
  EXPECT_EQ(workload_of(some, scene.facts()).vertical->tensor, 0.0) << "six slabs are the rest";
  for (std::size_t attention = 1; attention <= 11; attention += 2) {
    EXPECT_GT(work.layers[attention].recompute + work.layers[attention + 1].recompute, 0.0);
    EXPECT_EQ(work.layers[attention].recompute, 0.0) << "the MLP's backward makes it, for both";
    EXPECT_EQ(work.layers[attention].leaving + work.layers[attention + 1].leaving, 0);
  }
  config.train.activations = {activations::Policy::Rule::recompute};
  StepScene const staying{config};
  EXPECT_EQ(workload_of(staying.config, staying.facts()).vertical->tensor, 0.0);
}

/// Wherever parameters live: ranks gather large layers into memory of their own.
TEST(StepForecast, LargeLayersHaveTheirSlotOnRanksToo) {
  auto config = tiny_step();
  config.model.vocab = 4096;
  StepScene const scene{config, 2};
  auto const schedule = schedule_of(scene.config, scene.facts());
  EXPECT_EQ(schedule.large_layers, (std::vector{0, 13})) << "the embedding and the head";
}

TEST(StepForecast, RanksGatherIntoAsManySlotsAsTheDeviceHasRoomFor) {
  auto config = tiny_step();
  config.train.activations = {activations::Policy::Rule::recompute};
  config.subgroup_size = 8192;
  StepScene scene{config, 2};
  auto const slots = [&](Bytes memory) {
    scene.room.device_memory = memory;
    scene.device = device_demand(scene.config, scene.map, 0, scene.room, 8192);
    return schedule_of(scene.config, scene.facts()).layer_slots;
  };
  EXPECT_EQ(slots(0), 3);
  EXPECT_EQ(slots(1), 2);
  StepScene const alone{config};
  EXPECT_EQ(schedule_of(alone.config, alone.facts()).layer_slots, 0);
}

TEST(StepForecast, LayersOfANodesCopyLieThereOrPassThroughSlots) {
  auto config = tiny_step();
  config.parameter_home = parameters::Home::node;
  StepScene scene{config, 4};
  auto const layers = static_cast<int>(scene.map.layers().size());
  auto const demand = [&](state::Route route) {
    return device_demand(config, scene.map, 0, {.route = route}, 8192);
  };
  scene.device = demand(state::Route::in_place);
  EXPECT_EQ(scene.device.working_copy, 0);
  auto const in_place = schedule_of(scene.config, scene.facts());
  EXPECT_EQ(in_place.home, plan::ParameterHome::node);
  EXPECT_EQ(in_place.layer_slots, layers);
  EXPECT_TRUE(in_place.large_layers.empty());
  scene.device = demand(state::Route::staged);
  EXPECT_EQ(schedule_of(scene.config, scene.facts()).layer_slots, 4);
  EXPECT_EQ(workload_of(scene.config, scene.facts()).nodes, 1);
  scene.room.ranks_per_node = 3;
  EXPECT_EQ(workload_of(scene.config, scene.facts()).nodes, 2);
}

TEST(StepForecast, LayersThatStayWholeAreGatheredOnceAStep) {
  auto config = tiny_step();
  config.platform_products = 1e12;
  config.platform_passes.rank_link = 1e8;
  // What takes time is layers on their way: there are no rates of updates.
  auto const foresee = [&](parameters::Sharding sharding) {
    config.sharding = sharding;
    StepScene scene{config, 2};
    scene.device = device_demand(config, scene.map, 0, scene.room, 8192);
    EXPECT_EQ(schedule_of(scene.config, scene.facts()).gathers_once,
              sharding == parameters::Sharding::zero2);
    return foresee_step(scene.config, scene.facts());
  };
  auto const each_use = foresee(parameters::Sharding::zero3);
  auto const once = foresee(parameters::Sharding::zero2);
  auto const gathered = [](plan::Prediction const& step) {
    auto const found = std::ranges::find(step.uses, plan::Resource{plan::Resource::Kind::rank_link},
                                         &plan::ResourceUse::resource);
    return found == step.uses.end() ? 0.0 : found->busy.count();
  };
  EXPECT_LT(once.step, each_use.step);
  EXPECT_LT(gathered(once), gathered(each_use));
}

TEST(StepForecast, SumsOfBlocksTakeAdditionsAndRoom) {
  auto config = tiny_step();
  config.platform_passes.host_sum = 1e8;
  auto const step = [&](std::int64_t block) {
    config.numerics.sum_block = block;
    StepScene const scene{config, 2};
    return foresee_step(scene.config, scene.facts()).step;
  };
  EXPECT_GT(step(2), step(1));
  EXPECT_EQ(step(config.train.global_batch), step(1)) << "one block is no block";
  config.numerics.sum_block = 2;
  StepScene const scene{config, 2};
  auto const work = workload_of(scene.config, scene.facts());
  EXPECT_EQ(work.bytes_of_extents(), 2 * work.gradient_bytes);
}

TEST(StepForecast, AutomaticOverlapIsTheQuickerWay) {
  auto config = tiny_step();
  config.platform_products = 1e8;
  // Cores so slow that forward does not hide all that is done again.
  config.platform = {
      .cpu_update = 5e5, .device_update = 1e6, .host_to_device = 1e7, .device_to_host = 1e7};
  StepScene scene{config};
  scene.memory.spares = 30;
  auto const step = [&](config::Switch overlap, double clip_rate) {
    scene.config.overlap = overlap;
    scene.config.plan.clip_rate = clip_rate;
    return foresee_step(scene.config, scene.facts()).step.count();
  };
  EXPECT_LT(step(config::Switch::on, 0.0), step(config::Switch::off, 0.0));
  EXPECT_GE(step(config::Switch::on, 1.0), step(config::Switch::on, 0.0));
  EXPECT_EQ(step(config::Switch::off, 1.0), step(config::Switch::off, 0.0));
  EXPECT_EQ(step(config::Switch::automatic, 0.0), step(config::Switch::on, 0.0));
  EXPECT_EQ(step(config::Switch::automatic, 1.0),
            std::min(step(config::Switch::on, 1.0), step(config::Switch::off, 1.0)));
  scene.device.buffers_are_lent = true;
  EXPECT_EQ(step(config::Switch::automatic, 0.0), step(config::Switch::off, 0.0))
      << "backward needs the memory of the device's update";
}

}  // namespace
}  // namespace offstage::train
