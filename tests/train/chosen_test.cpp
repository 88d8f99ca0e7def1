#include "train/forecast/chosen.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

Chosen const last_choice{.home = parameters::Home::host,
                         .schedule = config::LayerSchedule::vertical,
                         .activations = {activations::Policy::Rule::recompute},
                         .overlap = config::Switch::automatic,
                         .share = 0.25,
                         .resident = 0.5};

config::RunConfig all_open() {
  config::RunConfig config;
  config.home_is_open = config.sharding_is_open = config.share.resident_is_open = true;
  config.train.schedule = config::LayerSchedule::automatic;
  config.train.activations.rule = activations::Policy::Rule::automatic;
  config.overlap = config::Switch::automatic;
  return config;
}

config::RunConfig all_given() {
  config::RunConfig config;
  config.home_is_open = config.sharding_is_open = config.share.resident_is_open = false;
  config.parameter_home = parameters::Home::storage;
  config.train.schedule = config::LayerSchedule::horizontal;
  config.train.activations.rule = activations::Policy::Rule::keep;
  config.overlap = config::Switch::off;
  config.share.device_share = 0.125;
  return config;
}

TEST(Chosen, IsWrittenToKeysThatAreLeftToThePlan) {
  auto config = all_open();
  take(config, last_choice);
  EXPECT_EQ(config.parameter_home, parameters::Home::host);
  EXPECT_FALSE(leaves_home(config)) << "nobody chooses a second time";
  EXPECT_EQ(config.train.schedule, config::LayerSchedule::vertical);
  EXPECT_EQ(config.train.activations.rule, activations::Policy::Rule::recompute);
  EXPECT_EQ(config.share.device_share, 0.25);
  EXPECT_EQ(config.share.device_resident, 0.5);
}

TEST(Chosen, LeavesKeysThatWereGiven) {
  auto config = all_given();
  take(config, last_choice);
  EXPECT_EQ(config.parameter_home, parameters::Home::storage);
  EXPECT_EQ(config.train.schedule, config::LayerSchedule::horizontal);
  EXPECT_EQ(config.train.activations.rule, activations::Policy::Rule::keep);
  EXPECT_EQ(config.overlap, config::Switch::off);
  EXPECT_EQ(config.share.device_share, 0.125);
}

TEST(Chosen, IsDescribedByTheKeysThatWereOpen) {
  EXPECT_EQ(describe(last_choice, all_open()),
            "parameters.home=host, train.schedule=vertical, train.activations=recompute, "
            "update.overlap=auto, update.device-share=0.250, update.device-resident=0.50");
  EXPECT_EQ(describe(last_choice, all_given()), "all keys are given");
}

}  // namespace
}  // namespace offstage::train
