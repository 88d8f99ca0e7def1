#include "train/forecast/run_forecast.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/small_runs.hpp"

namespace offstage::train {
namespace {

using testing::ElementsAre;

config::RunConfig tiny_run() {
  auto config = small_run(2, 4);
  config.share.device_chunk = 4096;
  config.overlap = config::Switch::off;
  config.device.kind = config::DeviceKind::cuda;
  return config;
}

struct Scene {
  config::RunConfig config = tiny_run();
  state::ShardMap map{state::layers_of(tiny_run().model), 1};
  plan::MemoryPlan memory{.subgroup_elements = 8192, .subgroups = 14};
  DeviceDemand device{};
  Room room{.route = state::Route::staged};

  [[nodiscard]] std::optional<RunForecast> foresee(ReachedRates const* reached = nullptr) const {
    StepFacts const facts{.map = map, .room = room, .memory = memory, .device = device};
    return foresee_run(config, facts, reached);
  }
};

plan::UpdateRates measured_rates() {
  return {.cpu_update = 1e6, .host_to_device = 1e8, .device_to_host = 1e8};
}

TEST(RunForecast, IsThereWithoutAStepWhereAllRatesAreGiven) {
  Scene scene;
  EXPECT_FALSE(scene.foresee());
  scene.config.platform = measured_rates();
  EXPECT_FALSE(scene.foresee()) << "products are missing";
  scene.config.platform_products = 1e9;
  auto const forecast = scene.foresee();
  ASSERT_TRUE(forecast);
  EXPECT_TRUE(forecast->given);
  EXPECT_GT(forecast->step.step, Seconds{});
  scene.config.platform_products = 2e9;
  EXPECT_LT(scene.foresee()->step.step, forecast->step.step);
}

TEST(RunForecast, TakesOtherRatesFromTheFirstSteps) {
  Scene scene;
  ReachedRates reached{.forward = Seconds{0.5}, .backward = Seconds{1e6}};
  auto const some = scene.foresee(&reached);
  ASSERT_TRUE(some);
  EXPECT_FALSE(some->given);
  EXPECT_THAT(some->unknown, ElementsAre("updates on the cores", "the link to the device",
                                         "the link from the device"));
  EXPECT_NEAR(some->step.forward.count(), 0.5, 1e-9) << "nothing else takes time";
  EXPECT_EQ(some->step.update, Seconds{});
  reached.update = measured_rates();
  auto const all = scene.foresee(&reached);
  EXPECT_TRUE(all->unknown.empty());
  EXPECT_GT(all->step.update, Seconds{});
  scene.config.platform.cpu_update = 2e6;
  EXPECT_LT(scene.foresee(&reached)->step.update, all->step.update) << "a given rate counts";
}

TEST(RunForecast, DoesUpdatesAgainAsOftenAsNormsWereAboveTheLimit) {
  Scene scene;
  scene.config.platform = measured_rates();
  scene.config.platform_products = 1e9;
  scene.config.overlap = config::Switch::on;
  scene.memory.spares = scene.memory.subgroups;
  ReachedRates reached{.steps = 2};
  auto const kept = scene.foresee(&reached)->step.step;
  EXPECT_EQ(scene.foresee()->step.step, kept);
  reached.clipped = 1;
  auto const some = scene.foresee(&reached)->step.step;
  reached.clipped = 2;
  auto const all = scene.foresee(&reached)->step.step;
  EXPECT_LT(kept, some);
  EXPECT_NEAR(some.count(), (kept + all).count() / 2, 1e-9);
}

TEST(RunForecast, NeedsTheRatesOfPathsThatAreUsed) {
  Scene scene;
  scene.config.platform = measured_rates();
  scene.config.platform_products = 1e9;
  scene.config.paths.emplace_back().directory = "/nvme";
  scene.memory.buffers = 3;
  scene.memory.cached = 1000;
  EXPECT_TRUE(scene.foresee()) << "all has a place in memory";
  scene.memory.cached = 2;
  ReachedRates reached{.forward = Seconds{0.5}, .backward = Seconds{1.0}};
  EXPECT_FALSE(scene.foresee());
  EXPECT_FALSE(scene.foresee(&reached));
  reached.paths = {{1e8, 1e8, false}};
  auto const forecast = scene.foresee(&reached);
  ASSERT_TRUE(forecast);
  EXPECT_FALSE(forecast->given);
  ASSERT_EQ(forecast->step.paths.size(), 1U);
  EXPECT_GT(forecast->step.paths[0].read, 0);
  EXPECT_GT(forecast->step.paths[0].written, 0);
  EXPECT_EQ(forecast->paths[0].read, 1e8);
}

TEST(RunForecast, ThatCannotBeMadeIsSaid) {
  Scene scene;
  scene.config.platform = measured_rates();
  scene.config.platform_products = 1e9;
  scene.config.share.device_chunk = 0;
  EXPECT_THROW((void)scene.foresee(), PreconditionError);
}

TEST(RunForecast, KnowsVerticalSchedules) {
  Scene scene;
  scene.config.platform = measured_rates();
  scene.config.platform_products = 1e9;
  scene.config.train.activations = {activations::Policy::Rule::recompute};
  auto const horizontal = scene.foresee();
  scene.config.train.together = 2;
  auto const vertical = scene.foresee();
  ASSERT_TRUE(horizontal && vertical);
  EXPECT_GT(vertical->step.step, Seconds{});
  EXPECT_GT(vertical->step.backward, vertical->step.forward);
  EXPECT_LE(vertical->step.step, 1.5 * horizontal->step.step) << "the same products";
}

}  // namespace
}  // namespace offstage::train
