#include "train/step/loss_scale.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

TEST(LossScale, HalvesOnOverflowAndDoublesAfterAWindowOfGoodSteps) {
  LossScale scale{{.start = 1024.0, .window = 3}};
  EXPECT_TRUE(scale.overflow());
  EXPECT_EQ(scale.value(), 512.0);
  scale.good_step();
  scale.good_step();
  EXPECT_EQ(scale.value(), 512.0);
  scale.good_step();
  EXPECT_EQ(scale.value(), 1024.0);
  EXPECT_EQ(scale.good_steps(), 0);
}

TEST(LossScale, AnOverflowBeginsTheWindowAgain) {
  LossScale scale{{.start = 4.0, .window = 2}};
  scale.good_step();
  EXPECT_TRUE(scale.overflow());
  scale.good_step();
  EXPECT_EQ(scale.value(), 2.0);
  scale.good_step();
  EXPECT_EQ(scale.value(), 4.0);
}

TEST(LossScale, AtOneAnOverflowIsNotAMatterOfScale) {
  LossScale scale{{.start = 2.0}};
  EXPECT_TRUE(scale.overflow());
  EXPECT_FALSE(scale.overflow());
  EXPECT_EQ(scale.value(), 1.0);
}

TEST(LossScale, StopsGrowingAtTheLargest) {
  LossScale scale{{.start = 16'777'216.0, .window = 1}};
  scale.good_step();
  EXPECT_EQ(scale.value(), 16'777'216.0);
}

TEST(LossScale, AFixedScaleNeverMoves) {
  LossScale scale{{.dynamic = false, .start = 128.0, .window = 1}};
  scale.good_step();
  EXPECT_FALSE(scale.overflow());
  EXPECT_EQ(scale.value(), 128.0);
}

TEST(LossScale, GoesOnFromACheckpoint) {
  LossScale scale{{.window = 3}, 256.0, 2};
  scale.good_step();
  EXPECT_EQ(scale.value(), 512.0);
}

}  // namespace
}  // namespace offstage::train
