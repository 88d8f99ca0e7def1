#include "train/saves/pace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace offstage::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Seconds day{86400.0};

TEST(DalysInterval, IsYoungsForSmallCosts) {
  // sqrt(2 * 10 * 86400) = 1314.5; the higher terms add 3.3 and 0.001, and the cost goes off.
  EXPECT_NEAR(daly_interval(Seconds{10}, day).count(), 1314.5 + 3.34 - 10.0, 0.1);
  EXPECT_EQ(daly_interval(Seconds{0}, day).count(), 0.0);
}

TEST(DalysInterval, LosesLessThanItsNeighbours) {
  // Daly's model of the run time, for exponentially distributed failures.
  for (double const cost : {1.0, 60.0, 900.0, 5000.0}) {
    double const mtbf = 7200.0;
    auto const slowdown = [&](double interval) {
      return mtbf * std::expm1((interval + cost) / mtbf) / interval;
    };
    double const best = daly_interval(Seconds{cost}, Seconds{mtbf}).count();
    EXPECT_LT(slowdown(best), slowdown(best * 1.3)) << cost;
    EXPECT_LT(slowdown(best), slowdown(best / 1.3)) << cost;
  }
}

TEST(DalysInterval, IsTheMtbfWhereASaveTakesTwiceThat) {
  EXPECT_EQ(daly_interval(Seconds{200}, Seconds{100}).count(), 100.0);
  EXPECT_EQ(daly_interval(Seconds{1e9}, Seconds{100}).count(), 100.0);
}

TEST(AutoInterval, KeepsSavesBelowATenthOfTheTime) {
  EXPECT_EQ(auto_interval(Seconds{600}, Seconds{60}).count(), 6000.0);
  EXPECT_EQ(auto_interval(Seconds{1e-3}, day).count(), 60.0);
  EXPECT_EQ(auto_interval(Seconds{10}, day), daly_interval(Seconds{10}, day));
}

SaveTime stood_still(double seconds) {
  return {.whole = Seconds{seconds}, .stood_still = Seconds{seconds}};
}

/// A run of 100 steps that never saves by itself.
class APace : public ::testing::Test {
 protected:
  APace() {
    config.train.steps = 100;
    config.checkpoint.mtbf = day;
  }
  [[nodiscard]] Pace measured(std::optional<Seconds> job_end = {}) const {
    Pace pace{config, job_end};
    pace.step_took(Seconds{10});
    pace.step_took(Seconds{4});
    pace.save_took(stood_still(20), Seconds{});
    pace.save_took(stood_still(5), Seconds{});
    pace.validation_took(Seconds{7});
    return pace;
  }
  static Stop stop(Pace const& pace, std::int64_t step, double now) {
    return pace.after(step, Seconds{now}, Stop::none).stop;
  }
  config::RunConfig config;
};

TEST_F(APace, StopsWhileAStepASaveAndTheMarginStillFitBeforeTheEndOfTheJob) {
  config.train.time_margin = Seconds{60};
  auto const pace = measured(Seconds{1000});
  EXPECT_EQ(stop(pace, 5, 910), Stop::none) << "1000 - 60 - 20 - 10";
  EXPECT_EQ(stop(pace, 5, 911), Stop::job_end);
  EXPECT_EQ(stop(measured(), 5, 1e9), Stop::none) << "an end that nobody knows";
}

TEST_F(APace, StopsBeforeMaxTimeWithoutAMargin) {
  config.train.time_margin = Seconds{60};
  config.train.max_time = Seconds{1000};
  EXPECT_EQ(stop(measured(), 5, 970), Stop::none);
  EXPECT_EQ(stop(measured(), 5, 971), Stop::max_time);
}

TEST_F(APace, NamesTheEarlierOfTwoLimits) {
  config.train.time_margin = Seconds{60};
  config.train.max_time = Seconds{1000};
  EXPECT_EQ(stop(measured(Seconds{1050}), 5, 2000), Stop::job_end);
  EXPECT_EQ(stop(measured(Seconds{1070}), 5, 2000), Stop::max_time);
  EXPECT_EQ(stop(measured(Seconds{-5}), 5, 0), Stop::job_end) << "over before it began";
}

TEST_F(APace, CountsTheSaveAndTheValidationThatComeFirst) {
  config.train.max_time = Seconds{1000};
  config.data.valid = {{.path = "v"}};
  config.train.valid_every = 5;
  config.checkpoint.every.steps = 5;
  EXPECT_EQ(stop(measured(), 5, 943), Stop::none) << "validation 7, save 20, step 10, save 20";
  EXPECT_EQ(stop(measured(), 5, 944), Stop::max_time);
  EXPECT_EQ(stop(measured(), 4, 970), Stop::none)
      << "the validation after step 5 would be left out";
  EXPECT_EQ(stop(measured(), 99, 963), Stop::none) << "but not the one after the last step";
  EXPECT_EQ(stop(measured(), 99, 964), Stop::max_time);
}

TEST_F(APace, MaxTimeEndsNoValidationThatAStartBeginsWith) {
  config.train.max_time = Seconds{10};
  config.checkpoint.keep_best = true;
  Pace pace{config, Seconds{100}};
  for (std::int64_t const step : {std::int64_t{0}, config.train.steps}) {
    pace.only_validates(true);
    EXPECT_EQ(pace.stop_under_validation(step, Seconds{20}, Stop::none), Stop::none);
    EXPECT_EQ(pace.stop_under_validation(step, Seconds{20}, Stop::file), Stop::file);
    EXPECT_EQ(pace.stop_under_validation(step, Seconds{101}, Stop::none), Stop::job_end);
    pace.only_validates(false);
    EXPECT_EQ(pace.stop_under_validation(step, Seconds{20}, Stop::none), Stop::max_time);
  }
}

TEST_F(APace, ExpectsASaveToTakeAsLongAsFillingTheStateUntilOneIsMeasured) {
  config.train.max_time = Seconds{100};
  Pace pace{config, {}};
  pace.expect_save(Seconds{30}, false);
  EXPECT_EQ(stop(pace, 1, 70), Stop::none);
  EXPECT_EQ(stop(pace, 1, 71), Stop::max_time);
  pace.save_took(stood_still(10), Seconds{71});
  EXPECT_EQ(stop(pace, 2, 71), Stop::none) << "a measured save counts more";
}

TEST_F(APace, WhoIsAskedToStopSavesAndLeavesOutTheValidation) {
  config.data.valid = {{.path = "v"}};
  config.train.valid_every = 1;
  auto const asked = measured().after(3, Seconds{1}, Stop::signal);
  EXPECT_EQ(asked.stop, Stop::signal);
  EXPECT_FALSE(asked.validate);
  EXPECT_TRUE(asked.save);
  auto const last = measured().after(100, Seconds{1}, Stop::signal);
  EXPECT_EQ(last.stop, Stop::none) << "nothing is left to stop";
  EXPECT_TRUE(last.validate);
  EXPECT_TRUE(last.save);
}

TEST_F(APace, SavesByStepsByTimeOrAtTheEndAlone) {
  auto const saves = [&](std::int64_t step, double now) {
    return measured().after(step, Seconds{now}, Stop::none).save;
  };
  EXPECT_FALSE(saves(50, 1e9));
  EXPECT_TRUE(saves(100, 1));
  config.checkpoint.every.steps = 7;
  EXPECT_TRUE(saves(14, 1));
  EXPECT_FALSE(saves(15, 1e9));
  config.checkpoint.every.steps = 0;
  config.checkpoint.every.time = Seconds{30};
  EXPECT_FALSE(saves(14, 29));
  EXPECT_TRUE(saves(14, 30));
  config.checkpoint.every.time = {};
  config.checkpoint.keep_every = 10;
  EXPECT_TRUE(saves(20, 1)) << "what is to be kept must be saved";
  EXPECT_FALSE(saves(21, 1));
}

TEST_F(APace, SavesAutomaticallyByTheMedianOfWhatSavesCost) {
  config.checkpoint.every.automatic = true;
  Pace pace{config, {}};
  EXPECT_EQ(pace.automatic(), Seconds{300}) << "to find out what a save costs";
  pace.expect_save(Seconds{1000}, false);
  EXPECT_EQ(pace.automatic(), Seconds{300}) << "first weights do not tell";
  pace.expect_save(Seconds{40}, true);
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{40}, day));
  for (double const cost : {1000.0, 1000.0, 10.0, 1000.0, 10.0, 11.0, 11.0}) {
    pace.save_took(stood_still(cost), Seconds{100});
  }
  Seconds const interval = auto_interval(Seconds{11}, day);
  EXPECT_EQ(pace.automatic(), interval);
  EXPECT_FALSE(pace.after(1, Seconds{99} + interval, Stop::none).save);
  EXPECT_TRUE(pace.after(1, Seconds{101} + interval, Stop::none).save);
}

// A scheduler suspended the job for an hour. The first of a kind may be all that is known.
TEST_F(APace, ADurationInWhichTheProcessWasStoppedCountsOnlyIfItIsTheFirst) {
  config.checkpoint.every.automatic = true;
  SaveTime stopped = stood_still(3600);
  stopped.was_stopped = true;
  Pace first{config, {}};
  first.step_took(Seconds{3600}, true);
  first.save_took(stopped, Seconds{});
  EXPECT_EQ(first.figures(), "a step takes 1 h 00 min, a save 1 h 00 min");
  Pace later = measured();
  Seconds const interval = later.automatic();
  later.step_took(Seconds{3600}, true);
  later.validation_took(Seconds{3600}, true);
  later.save_began(Seconds{10});
  later.save_took(stopped, Seconds{3610});
  EXPECT_EQ(later.figures(), "a step takes 10.0 s, a save 20.0 s, a validation 7.0 s");
  EXPECT_EQ(later.automatic(), interval);
  later.save_took(stopped, Seconds{5000});
  EXPECT_FALSE(later.after(1, Seconds{4999} + interval, Stop::none).save) << "it has ended";
}

TEST_F(APace, ASaveUnderStepsCostsTheTimeThatTheyStoodStillButNoMoreThanATenthOfTheTimeIsWritten) {
  config.checkpoint.every.automatic = true;
  Pace pace{config, {}};
  pace.save_took({.whole = Seconds{40}, .stood_still = Seconds{10}}, Seconds{});
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{10}, day));
  EXPECT_THAT(pace.figures(), HasSubstr("a save 40.0 s")) << "nothing hides the last one";
  Pace slow{config, {}};
  slow.save_took({.whole = Seconds{4000}, .stood_still = Seconds{10}}, Seconds{});
  EXPECT_EQ(slow.automatic(), Seconds{40000});
}

TEST_F(APace, ASaveThatGoesOnIsDueAgainOnlySoLongAfterItBegan) {
  config.checkpoint.every.time = Seconds{30};
  Pace pace = measured();
  pace.save_began(Seconds{30});
  EXPECT_FALSE(pace.after(1, Seconds{59}, Stop::none).save) << "it began a moment ago";
  EXPECT_TRUE(pace.after(2, Seconds{60}, Stop::none).save);
  pace.save_took(stood_still(1), Seconds{55});
  EXPECT_FALSE(pace.after(3, Seconds{59}, Stop::none).save);
  EXPECT_TRUE(pace.after(3, Seconds{60}, Stop::none).save);
  pace.save_took(stood_still(1), Seconds{70});
  EXPECT_FALSE(pace.after(4, Seconds{99}, Stop::none).save) << "one between steps: after its end";
}

TEST_F(APace, ASaveThatGoesOnHasToEndBeforeTheRun) {
  config.train.max_time = Seconds{1000};
  Pace pace = measured();
  pace.save_began(Seconds{900});
  EXPECT_EQ(stop(pace, 5, 950), Stop::none) << "the rest of it 20, step 10, save 20";
  EXPECT_EQ(stop(pace, 5, 951), Stop::max_time);
  pace.save_took({.whole = Seconds{1}, .stood_still = {}}, Seconds{952});
  EXPECT_EQ(stop(pace, 5, 970), Stop::none);
}

TEST_F(APace, TellsItsFigures) {
  EXPECT_EQ(measured().figures(), "a step takes 10.0 s, a save 20.0 s, a validation 7.0 s");
  EXPECT_THAT((Pace{config, {}}.figures()), Not(HasSubstr("validation")));
}

/// Level 1 beside level 2.
class APaceOfLevels : public APace {
 protected:
  APaceOfLevels() {
    config.checkpoint.local = "/local";
    config.checkpoint.every.automatic = config.checkpoint.local_every.automatic = true;
    config.checkpoint.node_mtbf = 1000.0 * day;
    config.checkpoint.nodes = 10;
  }
};

TEST_F(APaceOfLevels, SavesEachForTheFailuresThatNeedIt) {
  Pace pace{config, {}};
  pace.save_took(stood_still(50), Seconds{100});
  pace.local_save_took(stood_still(8), Seconds{100});
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{50}, 100.0 * day)) << "one of ten nodes";
  EXPECT_EQ(pace.local_automatic(), auto_interval(Seconds{8}, day));
  config.checkpoint.nodes = 100'000;
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{50}, day)) << "the job ends no more often";
  config.checkpoint.nodes = 10;
  pace.local_level_ended();
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{50}, day)) << "there is level 2 alone";
}

TEST_F(APaceOfLevels, SavesLevel2ForTwoNodesWherePartnersHaveCopies) {
  config.checkpoint.partner = true;
  Pace pace{config, {}};
  pace.save_took(stood_still(50), Seconds{100});
  // Ten nodes, each lost once in 1000 days: a first one after 100 days, and one of its two
  // neighbours within the day after that once in 500 such times.
  EXPECT_DOUBLE_EQ(partners_mtbf(1000.0 * day, 10).count(), (50'000.0 * day).count());
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{50}, 50'000.0 * day));
  pace.copies_ended();
  EXPECT_EQ(pace.automatic(), auto_interval(Seconds{50}, 100.0 * day)) << "one of ten nodes";
  EXPECT_EQ(partners_mtbf(0.5 * day, 10), 0.05 * day) << "never less than for one";
}

TEST_F(APaceOfLevels, SavesLevel1ByItsOwnCadence) {
  config.checkpoint.every.automatic = config.checkpoint.local_every.automatic = false;
  config.checkpoint.every.steps = 10;
  config.checkpoint.local_every.steps = 4;
  Pace const pace{config, {}};
  auto const after = [&](std::int64_t step) { return pace.after(step, Seconds{1}, Stop::none); };
  EXPECT_TRUE(after(4).save_local);
  EXPECT_FALSE(after(4).save);
  EXPECT_TRUE(after(10).save);
  EXPECT_FALSE(after(10).save_local);
  EXPECT_TRUE(after(20).save && after(20).save_local);
  EXPECT_FALSE(after(100).save_local) << "the last step is level 2's";
  EXPECT_TRUE(pace.after(5, Seconds{1}, Stop::signal).save_local);
}

TEST_F(APaceOfLevels, LeavesTimeForASaveOfEachAtTheEnd) {
  config.checkpoint.every.automatic = config.checkpoint.local_every.automatic = false;
  config.train.max_time = Seconds{1000};
  Pace pace = measured();
  pace.local_save_took(stood_still(3), Seconds{});
  pace.local_save_took(stood_still(2), Seconds{});
  EXPECT_EQ(stop(pace, 5, 967), Stop::none) << "step 10, save 20, and 3 of level 1";
  EXPECT_EQ(stop(pace, 5, 968), Stop::max_time);
}

TEST_F(APaceOfLevels, SavesLevel1ByTime) {
  config.checkpoint.local_every.automatic = false;
  config.checkpoint.local_every.time = Seconds{30};
  Pace pace{config, {}};
  EXPECT_FALSE(pace.after(1, Seconds{29}, Stop::none).save_local);
  EXPECT_TRUE(pace.after(1, Seconds{30}, Stop::none).save_local);
  pace.local_save_took(stood_still(1), Seconds{31});
  EXPECT_FALSE(pace.after(2, Seconds{60}, Stop::none).save_local);
  EXPECT_TRUE(pace.after(2, Seconds{61}, Stop::none).save_local);
}

TEST_F(APace, WithoutLevel1SavesNoneOfIt) {
  config.checkpoint.local_every.steps = 1;
  EXPECT_FALSE(measured().after(1, Seconds{1}, Stop::none).save_local);
  EXPECT_FALSE(measured().after(1, Seconds{1}, Stop::signal).save_local);
}

}  // namespace
}  // namespace offstage::train
