#include "train/step/schedule.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

config::OptimizerConfig optimizer(config::RateSchedule schedule) {
  return {
      .lr = 1.0, .schedule = schedule, .warmup_steps = 4, .min_lr = 0.2, .decay_fraction = 0.25};
}

TEST(Schedule, WarmUpRisesLinearlyToTheRate) {
  for (auto schedule : {config::RateSchedule::constant, config::RateSchedule::linear,
                        config::RateSchedule::cosine, config::RateSchedule::wsd,
                        config::RateSchedule::cooldown, config::RateSchedule::inverse_sqrt}) {
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 20, 1), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 20, 3), 0.75);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 20, 4), 1.0);
  }
}

TEST(Schedule, ConstantStaysAtTheRate) {
  EXPECT_EQ(learning_rate(optimizer(config::RateSchedule::constant), 20, 5), 1.0);
  EXPECT_EQ(learning_rate(optimizer(config::RateSchedule::constant), 20, 20), 1.0);
}

TEST(Schedule, LinearFallsToTheLeastRateAtTheLastStep) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::linear), 20, 12), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::linear), 20, 20), 0.2);
}

TEST(Schedule, CosineIsHalfWayInTheMiddle) {
  EXPECT_NEAR(learning_rate(optimizer(config::RateSchedule::cosine), 20, 12), 0.6, 1e-15);
  EXPECT_GT(learning_rate(optimizer(config::RateSchedule::cosine), 20, 8), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::cosine), 20, 20), 0.2);
}

TEST(Schedule, WsdFallsInItsLastPartAlone) {
  EXPECT_EQ(learning_rate(optimizer(config::RateSchedule::wsd), 20, 15), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::wsd), 20, 16), 1.0 - 0.8 / 5);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::wsd), 20, 20), 0.2);
}

TEST(Schedule, WsdBeginsToFallAfterTheWarmUp) {
  auto wsd = optimizer(config::RateSchedule::wsd);
  wsd.decay_fraction = 1.0;
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 20, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 20, 12), 0.6);
}

TEST(Schedule, CooldownFallsByOneMinusTheRootOfWhatIsOver) {
  auto const cooldown = optimizer(config::RateSchedule::cooldown);  // 4 of 16 steps fall
  EXPECT_EQ(learning_rate(cooldown, 16, 12), 1.0);
  // 1/4, 1/2, 3/4 and all of the fall are over; 1 - sqrt(1/2) and 1 - sqrt(3/4) to 16 digits by
  // hand.
  EXPECT_DOUBLE_EQ(learning_rate(cooldown, 16, 13), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(cooldown, 16, 14), 0.2 + 0.8 * 0.2928932188134524);
  EXPECT_DOUBLE_EQ(learning_rate(cooldown, 16, 15), 0.2 + 0.8 * 0.1339745962155614);
  EXPECT_DOUBLE_EQ(learning_rate(cooldown, 16, 16), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(cooldown, 16, 30), 0.2);
}

TEST(Schedule, AFallOfGivenStepsIsTheSameInALongerRun) {
  for (auto const schedule : {config::RateSchedule::wsd, config::RateSchedule::cooldown}) {
    auto fixed = optimizer(schedule);
    fixed.decay_steps = 4;
    auto const by_fraction = optimizer(schedule);
    for (std::int64_t step = 1; step <= 16; ++step) {
      EXPECT_EQ(learning_rate(fixed, 16, step), learning_rate(by_fraction, 16, step)) << step;
    }
    // Longer: equal up to where the shorter one began to fall, and the fall is the same later.
    for (std::int64_t step = 1; step <= 12; ++step) {
      EXPECT_EQ(learning_rate(fixed, 100, step), learning_rate(fixed, 16, step)) << step;
    }
    for (std::int64_t step = 13; step <= 16; ++step) {
      EXPECT_EQ(learning_rate(fixed, 100, step), 1.0);
      EXPECT_DOUBLE_EQ(learning_rate(fixed, 100, step + 84), learning_rate(fixed, 16, step));
    }
  }
}

TEST(Schedule, AFallLongerThanTheRunBeginsAfterTheWarmUp) {
  auto wsd = optimizer(config::RateSchedule::wsd);
  wsd.decay_steps = 1000;
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 20, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 20, 12), 0.6);
}

TEST(Schedule, InverseSqrtHalvesWithFourTimesTheSteps) {
  auto const inverse = optimizer(config::RateSchedule::inverse_sqrt);  // 4 steps of warm-up
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 200, 9), 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 200, 16), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 200, 64), 0.25);
  EXPECT_EQ(learning_rate(inverse, 200, 101), 0.2) << "the least rate";
  for (std::int64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(learning_rate(inverse, 20, step), learning_rate(inverse, 200, step)) << step;
  }
}

TEST(Schedule, WithoutWarmUpTheFirstStepTrains) {
  auto linear = optimizer(config::RateSchedule::linear);
  linear.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(linear, 10, 1), 1.0 - 0.8 / 10);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 1, 1), 0.2);
}

TEST(Schedule, StaysAtTheLeastRatePastTheEnd) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::RateSchedule::cosine), 20, 30), 0.2);
}

TEST(Schedule, CountsFromItsBegin) {
  for (auto const schedule : {config::RateSchedule::constant, config::RateSchedule::linear,
                              config::RateSchedule::cosine, config::RateSchedule::wsd,
                              config::RateSchedule::cooldown, config::RateSchedule::inverse_sqrt}) {
    config::OptimizerConfig const first{
        .lr = 1.0, .schedule = schedule, .warmup_steps = 10, .min_lr = 0.1, .decay_fraction = 0.3};
    auto second = first;
    second.schedule_begin = 50;
    for (std::int64_t step = 1; step <= 100; ++step) {
      EXPECT_EQ(learning_rate(second, 150, 50 + step), learning_rate(first, 100, step)) << step;
    }
    EXPECT_THROW((void)learning_rate(second, 150, 50), PreconditionError);
    require_begun(second, 50);
    EXPECT_THROW(require_begun(second, 49), UsageError);
  }
}

TEST(Schedule, AStartWhoseStepsAllHaveRateZeroIsWarnedOf) {
  auto cosine = optimizer(config::RateSchedule::cosine);
  cosine.warmup_steps = 0;
  cosine.min_lr = 0.0;
  EXPECT_THAT(warning_of_rates(cosine, 1, 0),
              AllOf(HasSubstr("learns nothing"), HasSubstr("optimizer.schedule=constant"),
                    HasSubstr("optimizer.min-lr")));
  EXPECT_THAT(warning_of_rates(cosine, 10, 9), HasSubstr("at step 10"));
  EXPECT_THAT(warning_of_rates(cosine, 2, 0), IsEmpty());
  EXPECT_THAT(warning_of_rates(cosine, 10, 10), IsEmpty());
  cosine.min_lr = 0.1;
  EXPECT_THAT(warning_of_rates(cosine, 1, 0), IsEmpty());
  EXPECT_THAT(warning_of_rates(optimizer(config::RateSchedule::constant), 1, 0), IsEmpty());
}

TEST(Schedule, ADecayThatWarmUpShortensIsWarnedOf) {
  auto wsd = optimizer(config::RateSchedule::wsd);
  wsd.warmup_steps = 4;
  wsd.decay_steps = 8;
  EXPECT_THAT(warning_of_decay(wsd, 10, 0),
              AllOf(HasSubstr("warmup-steps=4 leaves 6 of 10"), HasSubstr("fall in 8")));
  EXPECT_THAT(warning_of_decay(wsd, 12, 0), IsEmpty());
  EXPECT_THAT(warning_of_decay(wsd, 10, 10), IsEmpty());
  wsd.decay_steps = 0;
  wsd.decay_fraction = 0.8;
  EXPECT_THAT(warning_of_decay(wsd, 10, 0), HasSubstr("fall in 8"));
  wsd.schedule_begin = 100;
  EXPECT_THAT(warning_of_decay(wsd, 110, 0), HasSubstr("leaves 6 of 10"));
  wsd.schedule = config::RateSchedule::cosine;
  EXPECT_THAT(warning_of_decay(wsd, 110, 0), IsEmpty());
}

TEST(Schedule, StepsCountFromOne) {
  EXPECT_THROW(static_cast<void>(learning_rate(optimizer(config::RateSchedule::linear), 20, 0)),
               PreconditionError);
}

}  // namespace
}  // namespace offstage::train
