#include "train/forecast/configuration_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "config/split_parameters.hpp"
#include "state/shard.hpp"
#include "train/forecast/attention_room.hpp"
#include "train/forecast/forecast.hpp"
#include "train/forecast/machine_rates.hpp"
#include "train/settle/schedule_choice.hpp"

namespace offstage::train {
namespace {

using activations::Policy;
using parameters::Home;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Four micro-batches of 0.4 M parameters; everything is left to the plan. The device has no room
/// for all.
config::RunConfig open() {
  config::RunConfig config;
  config.model = {.layers = 6,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn_hidden = 192,
                  .vocab = 256,
                  .max_sequence = 64};
  config.train.sequence = 64;
  config.train.micro_batch = 2;
  config.train.global_batch = 8;
  config.train.schedule = config::LayerSchedule::automatic;
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.subgroup_size = 32768;
  config.share.device_chunk = 8192;
  config.device.kind = config::DeviceKind::cuda;
  config.device.attention = config::Attention::own;
  config.device.memory = 4 * MiB;
  config.host_memory = 40 * MiB;
  config.home_is_open = config.share.resident_is_open = true;
  config.plan.choose = true;
  config.platform_products = 5e9;
  config.platform = {
      .cpu_update = 5e6, .device_update = 5e7, .host_to_device = 1e8, .device_to_host = 1e8};
  config.paths = {
      {.directory = "/a", .read_rate = 6e7, .write_rate = 6e7, .engine = {}, .emulation = {}}};
  return config;
}

constexpr ForecastScope one_rank{.ranks = 1, .ranks_per_node = 1, .host_memory = 40 * MiB};

Choice choose(config::RunConfig const& config) {
  state::ShardMap const map{state::layers_of(config.model), 1};
  return choose_configuration(config, map,
                              {.route = state::Route::staged,
                               .device_memory = config.device.memory,
                               .host_memory = config.host_memory});
}

TEST(ConfigurationChoice, SaysWhetherTheOthersAreBoundToTakeLonger) {
  auto const config = open();
  Choice choice = choose(config);
  for (bool const cut_short : {false, true}) {
    choice.cut_short = cut_short;
    auto const lines = describe(choice, config, 512);
    auto const* const words = cut_short ? "left out, as there are so many" : "bound to take longer";
    EXPECT_THAT(lines, Contains(HasSubstr(words)));
  }
}

/// Steps of all values of the keys that fit, each given.
std::vector<double> all_steps(config::RunConfig const& config) {
  std::vector<double> steps;
  for (Home const home : {Home::device, Home::host, Home::storage}) {
    for (config::LayerSchedule const schedule :
         {config::LayerSchedule::horizontal, config::LayerSchedule::vertical}) {
      for (Policy const& policy :
           {Policy{Policy::Rule::keep}, Policy{Policy::Rule::part, 0.5},
            Policy{Policy::Rule::part, 1.0}, Policy{Policy::Rule::recompute},
            Policy{Policy::Rule::swap, 0.0, true}, Policy{Policy::Rule::swap, 0.5, true},
            Policy{Policy::Rule::swap, 1.0, true}}) {
        for (config::Switch const overlap : {config::Switch::off, config::Switch::on}) {
          for (double const share : {0.0, 0.3, 0.6}) {
            for (double const resident : {0.0, 0.1, 0.3}) {
              config::RunConfig each = config;
              each.plan.choose = each.home_is_open = each.share.resident_is_open = false;
              each.parameter_home = home;
              each.train.schedule = schedule;
              each.train.activations = policy;
              each.overlap = overlap;
              each.share.device_share = share;
              each.share.device_resident = resident;
              bool const possible =
                  schedule == config::LayerSchedule::horizontal || suits_vertical(policy);
              try {
                auto const found = possible ? forecast(each, one_rank) : Forecast{};
                if (possible && found.device.total() <= each.device.memory) {
                  steps.push_back(found.step.step.count());
                }
              } catch (UsageError const&) {
              }
            }
          }
        }
      }
    }
  }
  return steps;
}

TEST(ConfigurationChoice, IsNoSlowerThanAnyOfHundredsThatAreGiven) {
  // Bound by the device, by the path, by the cores, and by the link.
  std::vector<config::RunConfig> machines(4, open());
  machines[0].platform_products = 1e9;
  machines[1].paths[0].read_rate = machines[1].paths[0].write_rate = 1e7;
  machines[1].host_memory = 6 * MiB;
  machines[2].platform.cpu_update = 1e6;
  machines[3].platform.host_to_device = machines[3].platform.device_to_host = 1e7;
  for (std::size_t i = 0; i < machines.size(); ++i) {
    auto const steps = all_steps(machines[i]);
    ASSERT_GT(steps.size(), 60U) << i;
    double const best = std::ranges::min(steps);
    auto const found = forecast(machines[i], one_rank);
    EXPECT_LE(found.step.step.count(), 1.05 * best) << i;
    EXPECT_LE(found.device.total(), machines[i].device.memory) << i;
    EXPECT_LE(found.memory.node_total, machines[i].host_memory) << i;
    EXPECT_THAT(found.chosen.size(), ::testing::Le(10U));
    EXPECT_THAT(found.chosen, Contains(HasSubstr("plan.choose=on: parameters.home=")));
  }
}

TEST(ConfigurationChoice, HasNoneBesideItThatSeemsQuicker) {
  // Coarse times of others, and bounds of those left out, were two to four percent shorter here.
  auto config = open();
  config.model.layers = 24;
  config.train.global_batch = 30;
  config.subgroup_is_open = true;
  config.subgroup_size = 65536;
  config.device.memory = 2434965;
  config.host_memory = 33664516;
  config.platform_products = 9.037e9;
  config.platform.host_to_device = config.platform.device_to_host = 2.5e8;
  config.platform_passes.host_sum = 1.444e8;
  config.paths[0].read_rate = config.paths[0].write_rate = 1.009e8;
  Choice const choice = choose(config);
  EXPECT_FALSE(choice.others.empty());
  for (Alternative const& other : choice.others) {
    EXPECT_GE(other.step.count(), 0.99 * choice.step.step.count()) << other.what;
  }
}

TEST(ConfigurationChoice, KeepsAPartOfTheActivationsWhereAllHaveNoRoomAndTheLinkIsSlow) {
  auto config = open();
  config.platform_products = 1e9;
  config.platform.host_to_device = config.platform.device_to_host = 1e7;
  auto given = config;
  given.train.activations = {Policy::Rule::keep};
  auto const has_room = [&] {
    try {
      (void)forecast(given, one_rank);
      return true;
    } catch (UsageError const&) {
      return false;
    }
  };
  while (has_room()) {
    given.device.memory -= 256 * KiB;
  }
  config.device.memory = given.device.memory;
  auto const found = forecast(config, one_rank);
  EXPECT_EQ(found.config.train.activations.rule, Policy::Rule::part);
  given.train.activations = {Policy::Rule::recompute};
  EXPECT_LT(found.step.step, 0.97 * forecast(given, one_rank).step.step);
}

TEST(ConfigurationChoice, KeepsParametersWholeWhereRanksHaveRoomForThem) {
  auto config = open();
  config.sharding_is_open = true;
  config.platform_products = 1e12;
  config.platform_passes.rank_link = 1e7;  // so slow that nothing else counts
  config.device.memory = 16 * MiB;
  config.host_memory = 0;  // that of the scope, in which ranks share nothing
  ForecastScope const four{.ranks = 4, .ranks_per_node = 4, .host_memory = 40 * MiB};
  auto const roomy = forecast(config, four);
  EXPECT_EQ(roomy.config.sharding, parameters::Sharding::zero2);
  EXPECT_THAT(roomy.chosen, Contains(HasSubstr("parameters.sharding=zero2")));
  EXPECT_THAT(roomy.chosen, Contains(HasSubstr("with parameters.sharding=zero3 ")));
  EXPECT_LE(roomy.device.total(), config.device.memory);
  config.device.memory = roomy.device.working_copy;  // for nothing beside them
  EXPECT_EQ(forecast(config, four).config.sharding, parameters::Sharding::zero3);
  config.sharding_is_open = false;
  config.sharding = parameters::Sharding::zero2;
  config.device.memory = 16 * MiB;
  EXPECT_EQ(forecast(config, four).config.parameter_home, Home::device);
  EXPECT_EQ(forecast(config, four).config.sharding, parameters::Sharding::zero2);
}

TEST(ConfigurationChoice, SharesParametersOnANodeWhereRanksAreSlowToGatherThem) {
  auto config = open();
  config.platform_products = 1e12;
  config.platform_passes.rank_link = 1e7;  // so slow that nothing else counts
  config.host_memory = 0;
  ForecastScope four{
      .ranks = 4, .ranks_per_node = 4, .host_memory = 40 * MiB, .shared_memory = 40 * MiB};
  auto const shared = forecast(config, four);
  EXPECT_EQ(shared.config.parameter_home, Home::node);
  EXPECT_THAT(shared.chosen, Contains(HasSubstr("plan.choose=on: parameters.home=node")));
  four.shared_memory = 512 * KiB;  // 0.4 M parameters of 2 bytes have no room
  auto const own = forecast(config, four);
  EXPECT_NE(own.config.parameter_home, Home::node);
  EXPECT_THAT(own.chosen, Contains(HasSubstr("parameters.home=node is left out: it takes ")));
  EXPECT_THAT(shared.chosen, Not(Contains(HasSubstr("left out"))));
  EXPECT_EQ(own.node_home, "");
  EXPECT_EQ(shared.node_home, "");
  auto given = config;
  given.parameter_home = Home::node;
  given.plan.choose = false;
  EXPECT_THAT(forecast(given, four).node_home,
              HasSubstr("parameters.home=node ends such a run: it takes "));
  EXPECT_LT(shared.step.step, own.step.step);
  four = one_rank;
  four.shared_memory = 40 * MiB;
  EXPECT_NE(forecast(config, four).config.parameter_home, Home::node) << "it has no other rank";
  four.ranks = four.ranks_per_node = 4;
  four.shared_memory = 0;
  config.host_memory = 40 * MiB;  // of which a node shares the half
  EXPECT_EQ(forecast(config, four).config.parameter_home, Home::node);
}

TEST(ConfigurationChoice, LeavesRoomForAttentionWhereverParametersLive) {
  auto const config = open();
  state::ShardMap const map{state::layers_of(config.model), 1};
  Room room{
      .route = state::Route::staged, .device_memory = 4 * MiB, .host_memory = config.host_memory};
  EXPECT_EQ(first_that_fits(config, map, room).home, Home::device);
  EXPECT_TRUE(has_attention_room(config, map, room, 256 * KiB));
  EXPECT_FALSE(has_attention_room(config, map, room, 4 * MiB)) << "all of the device";
  while (first_that_fits(config, map, room).home == Home::device) {
    room.device_memory -= 64 * KiB;
  }
  EXPECT_TRUE(has_attention_room(config, map, room, 64 * KiB)) << "parameters have no room";
}

TEST(ConfigurationChoice, KeysThatAreGivenStay) {
  auto config = open();
  config.home_is_open = config.share.resident_is_open = false;
  config.parameter_home = Home::storage;
  config.share.device_share = 0.125;
  config.share.device_resident = 0.0;
  config.overlap = config::Switch::on;
  config.train.activations = {Policy::Rule::recompute};
  config.train.schedule = config::LayerSchedule::vertical;
  auto const found = forecast(config, one_rank);
  EXPECT_EQ(found.config.parameter_home, Home::storage);
  EXPECT_EQ(found.config.share.device_share, 0.125);
  EXPECT_EQ(found.config.share.device_resident, 0.0);
  EXPECT_EQ(found.config.overlap, config::Switch::on);
  EXPECT_EQ(found.config.train.together, 4);
  EXPECT_THAT(found.chosen, Contains(HasSubstr("all keys are given")));
  config.share.device_share.reset();
  EXPECT_THAT(forecast(config, one_rank).chosen, Contains(HasSubstr("on: update.device-share=")));
}

TEST(ConfigurationChoice, StepsThatAreClippedDoNotOverlap) {
  auto config = open();
  config.share.device_share = 0.0;
  config.platform.cpu_update = 1e6;  // an update is as long as a third of backward
  EXPECT_EQ(choose(config).chosen.overlap, config::Switch::automatic);
  config.plan.clip_rate = 1.0;
  EXPECT_EQ(choose(config).chosen.overlap, config::Switch::off);
}

TEST(ConfigurationChoice, IsTheSameForTheSameNumbers) {
  auto const config = open();
  auto const one = choose(config);
  auto const other = choose(config);
  EXPECT_EQ(describe(one.chosen, config), describe(other.chosen, config));
  EXPECT_EQ(one.step.step, other.step.step);
  EXPECT_LE(one.simulated, 100 + 2 * 60 + 8 + 2 * 24)
      << "candidates, two climbs, finals, the last climb twice";
}

TEST(ConfigurationChoice, ResidentsAreNoReasonThatNothingFits) {
  auto config = open();
  config.paths.clear();
  config.host_memory = 3 * MiB;  // the state alone takes more, and the device has no room for all
  try {
    (void)choose(config);
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("tiers.host-memory=3.00 MiB is too small"));
    EXPECT_THAT(error.what(), HasSubstr("set tiers.path"));
  }
}

TEST(ConfigurationChoice, MakesRoomInHostMemoryByResidents) {
  auto config = open();
  config.paths.clear();
  config.host_memory = 5 * MiB;
  config.share.resident_is_open = false;
  EXPECT_THROW((void)choose(config), UsageError);
  config.share.resident_is_open = true;
  config.device.memory = 8 * MiB;
  auto const found = choose(config).chosen;
  EXPECT_GT(found.resident, 0.0);
  config.device.memory = 0;  // unknown, so that nothing is placed there
  EXPECT_THROW((void)choose(config), UsageError);
}

/// 40 M parameters with much state on a path, whose buffers and cache take subgroups of their own
/// size.
config::RunConfig larger() {
  auto config = open();
  config.model.hidden = 512;
  config.model.ffn_hidden = 2048;
  config.model.layers = 8;
  config.subgroup_size = 32 * 1'048'576;
  config.subgroup_is_default = config.subgroup_is_open = true;
  config.device.memory = 400 * MiB;
  config.host_memory = 400 * MiB;
  config.platform_products = 5e11;
  config.platform = {
      .cpu_update = 5e8, .device_update = 5e9, .host_to_device = 1e10, .device_to_host = 1e10};
  return config;
}

TEST(ConfigurationChoice, MayTakeSmallerSubgroups) {
  auto config = larger();
  config.home_is_open = config.share.resident_is_open = false;
  config.parameter_home = Home::host;
  config.share.device_share = 0.0;
  config.overlap = config::Switch::off;
  config.train.schedule = config::LayerSchedule::horizontal;
  config.train.activations = {Policy::Rule::recompute};
  config.model.hidden = 1024;
  config.model.ffn_hidden = 4096;
  config.host_memory = 1600 * MiB;
  auto const found = choose(config).chosen;
  EXPECT_GT(found.subgroup, 0);
  EXPECT_LT(found.subgroup, config.subgroup_size);
  EXPECT_THAT(describe(found, config), HasSubstr("update.subgroup-size="));
  config.subgroup_is_open = false;
  EXPECT_EQ(choose(config).chosen.subgroup, 0);
}

TEST(ConfigurationChoice, WhatIsKeptIsNotChosenAgain) {
  auto config = larger();
  auto const found = choose(config);
  take(config, found.chosen);
  config::settle_split_parameters(config);
  keep(config);
  EXPECT_FALSE(leaves_home(config) || leaves_resident(config) || leaves_subgroup(config) ||
               leaves_split(config));
  auto const again = choose(config);
  EXPECT_NEAR(again.step.step / found.step.step, 1.0, 1e-9);
}

TEST(ConfigurationChoice, SplitsNoParametersWhereCheckpointsReferToExtents) {
  auto config = larger();
  config.train.activations = {Policy::Rule::recompute};
  config.overlap = config::Switch::on;
  ASSERT_EQ(choose(config).chosen.split, config::Switch::on);
  config.paths[0].persistent = true;
  EXPECT_EQ(choose(config).chosen.split, config::Switch::automatic);
  config.paths[0].persistent = false;
  config.checkpoint.local = "/local";
  EXPECT_EQ(choose(config).chosen.split, config::Switch::automatic);
}

TEST(ConfigurationChoice, WhatNeverFitsIsAnError) {
  auto config = open();
  config.device.memory = 64 * KiB;
  try {
    (void)choose(config);
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("device.memory=64.0 KiB is too small: the most frugal "));
  }
  config = open();
  config.host_memory = 100 * KiB;
  try {
    (void)choose(config);
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("tiers.host-memory=100 KiB is too small"));
  }
}

TEST(ConfigurationChoice, WithoutRatesIsWhatFitsFirst) {
  auto config = open();
  config.platform.cpu_update = 0.0;
  auto const found = forecast(config, one_rank);
  EXPECT_THAT(found.missing, Contains("platform.cpu-update"));
  EXPECT_THAT(found.chosen, ElementsAre(HasSubstr("what moves least of all that fits; without "
                                                  "platform.cpu-update")));
  EXPECT_LE(found.device.total(), config.device.memory);
}

TEST(ConfigurationChoice, AVerticalScheduleTakesSoManyMicroBatchesAndNoMore) {
  auto config = open();
  config.plan.choose = config.home_is_open = config.share.resident_is_open = false;
  config.train.schedule = config::LayerSchedule::vertical;
  config.train.activations = {Policy::Rule::recompute};
  config.train.global_batch = std::int64_t{2} << 40;
  EXPECT_THROW((void)forecast(config, one_rank), UsageError);
  config.train.schedule = config::LayerSchedule::automatic;
  config.parameter_home = Home::host;
  EXPECT_EQ(forecast(config, one_rank).config.train.together, 0);
}

TEST(MachineRates, MoveWhereTheyDifferByMoreThanATenth) {
  plan::UpdateRates const planned{.cpu_update = 100,
                                  .host_to_device = 100,
                                  .host_to_device_both = 50,
                                  .paths = {{.read = 100, .write = 100}}};
  auto now = planned;
  EXPECT_THAT(moved(planned, now, open().paths), IsEmpty());
  now.cpu_update = 91;
  now.host_to_device_both = 54;
  now.device_update = 7;  // it was not known
  EXPECT_THAT(moved(planned, now, open().paths), IsEmpty());
  now.cpu_update = 80;
  now.paths[0].write = 150;
  auto const found = moved(planned, now, open().paths);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0], "updates on the cores 20 % slower than planned");
  EXPECT_EQ(found[1], open().paths[0].directory + ", writing 50 % faster than planned");
  config::RunConfig config = open();
  set_rates(config, now, 4);
  EXPECT_EQ(config.platform.cpu_update, 80);
  EXPECT_EQ(config.paths[0].write_rate, 600);
  EXPECT_EQ(config.platform.device_to_host, 1e8) << "what is not known stays";
}

}  // namespace
}  // namespace offstage::train
