#include "train/step/step_numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace offstage::train {
namespace {

config::OptimizerConfig clipped_at(double limit) {
  config::OptimizerConfig optimizer;
  optimizer.clip = limit;
  return optimizer;
}

TEST(StepNumbers, ClipAsPyTorchDoes) {
  EXPECT_EQ(clip_factor(clipped_at(1.0), 4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_factor(clipped_at(1.0), 0.5), 1.0);
  EXPECT_EQ(clip_factor(clipped_at(1.0), 0.0), 1.0);
  EXPECT_EQ(clip_factor(clipped_at(0.0), 1e30), 1.0) << "no limit";
}

// Sums of squares below it never clip by more than roundings, and those above it do.
TEST(StepNumbers, TheSumOfSquaresAtWhichClippingBegins) {
  for (double const limit : {1e-3, 1.0, 37.0}) {
    for (double const scale : {1.0, 1.0 / 1024, 0.3}) {
      double const squares = most_squares(clipped_at(limit), scale);
      double const norm = std::sqrt(squares) * scale;
      EXPECT_EQ(clip_factor(clipped_at(limit), norm * (1 - 1e-9)), 1.0);
      EXPECT_LT(clip_factor(clipped_at(limit), norm * (1 + 1e-9)), 1.0);
    }
  }
}

TEST(StepNumbers, AnInfiniteOrUndefinedSumIsNeverBelowTheLimit) {
  double const infinite = std::numeric_limits<double>::infinity();
  for (double const limit : {0.0, 1.0}) {
    EXPECT_FALSE(infinite <= most_squares(clipped_at(limit), 1.0));
    EXPECT_FALSE(std::nan("") <= most_squares(clipped_at(limit), 1.0));
    EXPECT_TRUE(0.0 <= most_squares(clipped_at(limit), 1.0));
  }
}

TEST(StepNumbers, MeansAreOverCountedTargets) {
  config::TrainConfig train;
  train.micro_batch = 2;
  train.sequence = 8;
  EXPECT_EQ(targets_per_counted(train, 3, 48), 1.0);
  EXPECT_EQ(targets_per_counted(train, 3, 24), 2.0);
}

/// Counted by hand: a block has 8 x 24 weights of queries, keys and values, 8 x 8 behind attention,
/// 8 x 32 and 16 x 8 of the feed-forward network; 1 + 2 + 3 + 4 pairs of tokens see each other.
TEST(StepNumbers, ModelFlopsAreThoseOfAllProducts) {
  config::RunConfig config;
  config.model = {.layers = 3,
                  .hidden = 8,
                  .heads = 2,
                  .kv_heads = 2,
                  .ffn_hidden = 16,
                  .vocab = 32,
                  .max_sequence = 4};
  config.train.sequence = 4;
  config.train.micro_batch = 1;
  config.train.global_batch = 2;
  double const forward =
      3 * (2.0 * 4 * (192 + 64 + 256 + 128) + 2 * 2.0 * 10 * 8) + 2.0 * 4 * 32 * 8;
  EXPECT_EQ(model_flops(config), 2 * 3 * forward);
  double const attention = 3 * 2 * 2.0 * 10 * 8;
  config.data.attended = 0.25;
  EXPECT_DOUBLE_EQ(model_flops(config), 2 * 3 * (forward - 0.75 * attention))
      << "of pairs that documents leave";
  config.data.attended = 1.0;
  config.train.activations = {activations::Policy::Rule::recompute};
  EXPECT_EQ(model_flops(config), 2 * 3 * forward) << "what is computed again does not count";
}

}  // namespace
}  // namespace offstage::train
