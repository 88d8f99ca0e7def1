#include "train/forecast/remedies.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/dtype.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

/// A model of some 35,000 parameters whose state goes through one slow path; all else takes no
/// time.
config::RunConfig stored() {
  config::RunConfig config;
  config.model = {.layers = 2,
                  .hidden = 32,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn_hidden = 64,
                  .vocab = 256,
                  .max_sequence = 24};
  config.train.sequence = 24;
  config.train.micro_batch = config.train.global_batch = 2;
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.subgroup_size = 4096;
  config.share.device_chunk = 4096;
  config.storage.most_cache = 0;
  config.overlap = config::Switch::off;
  config.device.kind = config::DeviceKind::cuda;
  config.device.attention = config::Attention::own;
  config.platform_products = 1e15;
  config.platform = {
      .cpu_update = 1e15, .device_update = 1e15, .host_to_device = 1e15, .device_to_host = 1e15};
  config.paths.emplace_back();
  config.paths[0].directory = "/nvme";
  config.paths[0].read_rate = config.paths[0].write_rate = 1e6;
  return config;
}

constexpr ForecastScope remedied_rank{.ranks = 1, .ranks_per_node = 1, .host_memory = GiB};

Seconds step_of(config::RunConfig const& config) {
  return forecast(config, remedied_rank).step.step;
}

TEST(Advice, NamesThePathThatBoundsTheStepAndWhatASecondOneWouldSave) {
  auto const config = stored();
  Seconds const step = step_of(config);
  auto const advice = advise(config, remedied_rank, step, true);
  ASSERT_THAT(advice, SizeIs(::testing::AllOf(::testing::Ge(2U), ::testing::Le(4U))));
  EXPECT_THAT(advice[0], AllOf(HasSubstr("the step is bound by /nvme: busy "),
                               HasSubstr(fmt::format("% of {:.3g} s", step.count()))));
  auto two = config;
  two.paths.push_back(config.paths[0]);
  two.paths[1].directory = "/nvme-more";
  EXPECT_THAT(advice, Contains(fmt::format("one more path like /nvme would save {:.3g} of {:.3g} s",
                                           (step - step_of(two)).count(), step.count())));
}

TEST(Advice, IsNotGivenWhereStepsAreFarFromTheirSimulation) {
  auto const config = stored();
  Seconds const step = step_of(config);
  for (double const factor : {0.5, 2.0}) {
    EXPECT_THAT(
        advise(config, remedied_rank, factor * step, true),
        ElementsAre(AllOf(HasSubstr("steps took"), HasSubstr("by the rates at the run's end"))));
  }
  EXPECT_THAT(advise(config, remedied_rank, 1.2 * step, true), SizeIs(::testing::Gt(1U)));
}

TEST(Advice, IsNotGivenWhereRatesAreMissingOrNothingFits) {
  auto config = stored();
  config.platform_products = 0.0;
  EXPECT_THAT(advise(config, remedied_rank, Seconds{1.0}, true), IsEmpty());
  EXPECT_THAT(
      advise(stored(), {.ranks = 1, .ranks_per_node = 1, .host_memory = 1}, Seconds{1.0}, true),
      IsEmpty());
}

TEST(Advice, IsNotGivenWhereNoStepWasCounted) {
  EXPECT_THAT(advise(stored(), remedied_rank, Seconds{}, true), IsEmpty());
}

TEST(WhatHelps, IsSortedByWhatItGains) {
  auto const config = stored();
  Seconds before = step_of(config);
  auto const all = what_helps(config, remedied_rank, before, true);
  EXPECT_THAT(all, SizeIs(::testing::Ge(2U)));
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(all[i - 1].forecast.step.step, all[i].forecast.step.step);
  }
}

/// The words of the changes that make a step shorter.
std::vector<std::string> helping(config::RunConfig const& config, ForecastScope const& scope) {
  std::vector<std::string> words;
  for (Help const& help : what_helps(config, scope, forecast(config, scope).step.step, true)) {
    words.push_back(help.words);
  }
  return words;
}

/// The same model with its state in host memory, on a machine that takes no time.
config::RunConfig quick() {
  auto config = stored();
  config.paths.clear();
  config.train.global_batch = 8;
  return config;
}

TEST(UntimedKeys, NameTheRatesThatAStepOfSeveralRanksNeeds) {
  auto config = quick();
  constexpr ForecastScope ranks{.ranks = 2, .ranks_per_node = 2, .host_memory = GiB};
  EXPECT_THAT(untimed_keys(forecast(config, ranks)), Contains("platform.rank-link"));
  EXPECT_THAT(untimed_keys(forecast(config, remedied_rank)),
              ::testing::Not(Contains("platform.rank-link")));
  config.platform_passes = {.host_sum = 1e9, .rank_link = 1e9};
  EXPECT_THAT(untimed_keys(forecast(config, ranks)), IsEmpty());
}

TEST(WhatHelps, DoublesEveryRateOfWhatItNames) {
  auto config = quick();
  config.platform_passes.block_forward = config.platform_passes.block_backward = 1e6;
  EXPECT_THAT(helping(config, remedied_rank), Contains("a device of twice the products"))
      << "a block's own rates, as probe measures them";
  config = quick();
  config.share.device_share = 0.0;
  config.share.device_gradients = 0;
  config.platform_passes.host_sum = 1e3;
  EXPECT_THAT(helping(config, remedied_rank), Contains("twice the cores")) << "they add gradients";
}

TEST(WhatHelps, NamesTheLinkBetweenRanks) {
  auto config = quick();
  config.platform_passes.rank_link = 1e3;
  EXPECT_THAT(helping(config, {.ranks = 2, .ranks_per_node = 2, .host_memory = GiB}),
              Contains("a link between ranks of twice the rate"));
}

std::vector<std::string> ways_to_fit(config::RunConfig const& config, Bytes host = GiB) {
  std::vector<std::string> words;
  for (Help const& help : what_helps(config, {.host_memory = host}, std::nullopt, true)) {
    words.push_back(help.words);
  }
  return words;
}

TEST(WhatHelps, NamesKeysWithWhichARunFits) {
  auto config = stored();
  config.train.activations = {activations::Policy::Rule::keep};
  config.train.micro_batch = config.train.global_batch = 64;
  config.device.memory = forecast(config, remedied_rank).device.total() * 9 / 10;
  EXPECT_THAT(ways_to_fit(config),
              IsSupersetOf({"train.activations=auto",
                            "train.micro-batch=1 (other bits: sums are rounded elsewhere)"}));
  config = stored();
  config.model.layers = 64;
  config.device.memory = forecast(config, remedied_rank).device.total() / 2;
  EXPECT_THAT(ways_to_fit(config), Contains("parameters.home=host"));
  config = stored();
  config.comm_backend = config::CommBackend::mpi;
  config.sharding = parameters::Sharding::zero2;
  constexpr ForecastScope two_ranks{.ranks = 2, .ranks_per_node = 2, .host_memory = GiB};
  config.device.memory = forecast(config, two_ranks).device.total() - 1;
  EXPECT_THAT(what_helps(config, two_ranks, std::nullopt, true),
              Contains(Field(&Help::words, "parameters.sharding=zero3")));
  config = stored();
  config.paths.clear();
  config.subgroup_is_default = true;
  Bytes const needed = forecast(config, remedied_rank).memory.node_total;
  EXPECT_THAT(ways_to_fit(config, needed - 64 * KiB), Contains("a tiers.path"));
}

}  // namespace
}  // namespace offstage::train
