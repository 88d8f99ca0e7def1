#include "train/run/plan_choice.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "base/dtype.hpp"
#include "state/link_support.hpp"
#include "temporary_directory.hpp"
#include "train/forecast/configuration_choice.hpp"

namespace offstage::train {
namespace {

constexpr device::Emulation link_rates{.host_to_device = 1e8, .device_to_host = 1e8};

/// 0.4 M parameters; all rates are given, so that nothing is measured.
class PlanChoiceOfRanks : public ::testing::Test {
 protected:
  PlanChoiceOfRanks() {
    config.run_dir = directory.path();
    config.model = {.layers = 6,
                    .hidden = 64,
                    .heads = 4,
                    .kv_heads = 4,
                    .ffn_hidden = 192,
                    .vocab = 256,
                    .max_sequence = 64};
    config.train.steps = 100;
    config.train.sequence = 64;
    config.train.micro_batch = 1;
    config.train.global_batch = 6;
    config.numerics.dtype = DType::bf16;
    config.numerics.accumulate_fp32 = true;
    config.subgroup_size = 32768;
    config.share.device_chunk = 8192;
    config.device.attention = config::Attention::own;
    config.host_memory = 64 * MiB;
    config.platform_products = 5e9;
    config.platform = {
        .cpu_update = 5e6, .device_update = 5e7, .host_to_device = 1e8, .device_to_host = 1e8};
    config.platform_passes.rank_link = 1e9;
    config.device.emulation = link_rates;
    map.emplace(state::layers_of(config.model), comm.size());
  }

  [[nodiscard]] Room room(Bytes device_memory) const {
    return {.ranks_per_node = comm.size(),
            .route = state::Route::staged,
            .device_memory = device_memory,
            .host_memory = config.host_memory};
  }
  /// A run of `config` that has not made a step.
  [[nodiscard]] std::unique_ptr<StepRunner<bfloat16>> runner() {
    auto own = device::make_host_device(0, link_rates);
    auto usual = state::make_link(state::LinkKind::usual, comm, own->host_visible());
    return std::make_unique<StepRunner<bfloat16>>(config, comm, std::move(own), std::move(usual),
                                                  [](launch::Needs const&) {});
  }

  mpi::Communicator comm = mpi::Communicator::world();
  TemporaryDirectory directory;
  config::RunConfig config;
  std::optional<state::ShardMap> map;
  std::unique_ptr<device::Device> device = device::make_host_device(0, link_rates);
  std::unique_ptr<state::RankLink> link =
      state::make_link(state::LinkKind::usual, comm, device->host_visible());
  StopSignals signals;
  Cadence cadence{config, comm, signals};
};

TEST_F(PlanChoiceOfRanks, IsRankZerosOnAllRanksWhateverTheirsWouldBe) {
  config.plan.choose = config.home_is_open = true;
  config::RunConfig const given = config;
  auto const words_of = [&](Bytes device_memory) {
    return describe(choose_configuration(config, *map, room(device_memory)).chosen, given);
  };
  Bytes const roomy = GiB;
  Bytes const tight = MiB;
  auto const expected = words_of(roomy);
  ASSERT_NE(words_of(tight), expected);
  PlanChoice<bfloat16> choice{config, comm, cadence};
  auto const why = choice.choose(*device, *link, *map, room(comm.rank() == 0 ? roomy : tight));
  EXPECT_EQ(why.empty(), comm.rank() != 0);
  EXPECT_EQ(words_of(roomy), expected) << "of what is no longer open";
}

TEST_F(PlanChoiceOfRanks, IsMadeByTheLinkBetweenRanksWhoseRateNobodyGave) {
  config.platform_passes.rank_link = 0.0;
  PlanChoice<bfloat16> choice{config, comm, cadence};
  static_cast<void>(choice.choose(*device, *link, *map, room(GiB)));
  double const rate = config.platform_passes.rank_link;
  EXPECT_EQ(rate > 0.0, comm.size() > 1);
  EXPECT_EQ(comm.minimum(rate), comm.maximum(rate));
}

TEST_F(PlanChoiceOfRanks, LooksAtRatesAfterEightStepsAndThenEveryThirtyTwo) {
  PlanChoice<bfloat16> choice{config, comm, cadence};
  static_cast<void>(choice.choose(*device, *link, *map, room(GiB)));
  auto const steps = runner();
  // All steps were clipped, which none was said to be: whoever looks notes it.
  for (std::int64_t step = 1; step < 100; ++step) {
    config.plan.clip_rate = 0.0;
    // A start that takes for ever is worth nothing.
    static_cast<void>(choice.look_at_rates(
        {.step = step, .steps = step, .clipped = step, .start = Seconds{1e9}}, *steps));
    EXPECT_EQ(config.plan.clip_rate, step == 8 || step % 32 == 0 ? 1.0 : 0.0) << step;
  }
  config.plan.clip_rate = 0.0;
  EXPECT_FALSE(choice.look_at_rates({.step = 100, .steps = 32, .clipped = 32}, *steps));
  EXPECT_EQ(config.plan.clip_rate, 0.0) << "nothing is left to do";
}

TEST(PlanChoice, ANewStartKnowsTheCheckpointThatTheUserNamed) {
  config::CheckpointConfig checkpoint;
  checkpoint.resume = "step-000000100";
  for (int starts = 0; starts < 2; ++starts) {
    go_on_from_newest(checkpoint);
    EXPECT_EQ(checkpoint.resume, "auto");
    EXPECT_EQ(checkpoint.first_resume, "step-000000100");
  }
  checkpoint = {};
  checkpoint.resume = "none";
  go_on_from_newest(checkpoint);
  EXPECT_EQ(checkpoint.first_resume, "none");
  checkpoint = {};
  checkpoint.resume = "auto";
  go_on_from_newest(checkpoint);
  EXPECT_EQ(checkpoint.first_resume, "");
}

TEST_F(PlanChoiceOfRanks, StaysWhereNothingHasMoved) {
  PlanChoice<bfloat16> choice{config, comm, cadence};
  auto const steps = runner();
  EXPECT_FALSE(choice.look_at_rates({.step = 8, .steps = 8}, *steps));
  EXPECT_EQ(config.plan.clip_rate, 0.0);
}

TEST_F(PlanChoiceOfRanks, HasNoAdviceAfterFewSteps) {
  PlanChoice<bfloat16> const choice{config, comm, cadence};
  auto const steps = runner();
  EXPECT_TRUE(choice.advice({.step = 7, .steps = 7}, *steps, Seconds{1.0}).empty());
}

}  // namespace
}  // namespace offstage::train
