#include "train/settle/run_length.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

config::TrainConfig epochs(double count) {
  config::TrainConfig train;
  train.epochs = count;
  train.sequence = 24;
  train.global_batch = 8;
  return train;
}

TEST(RunLength, TheLastStepSeesTheLastWindow) {
  EXPECT_EQ(steps_of_epochs(epochs(1), 40, 0, 0), 5);
  EXPECT_EQ(steps_of_epochs(epochs(1), 41, 0, 0), 6);
  EXPECT_EQ(steps_of_epochs(epochs(3), 41, 0, 0), 16) << "123 sequences";
  EXPECT_EQ(steps_of_epochs(epochs(0.1), 240, 0, 0), 3)
      << "24 sequences, whatever 0.1 is in binary";
  EXPECT_EQ(steps_of_epochs(epochs(0.001), 40, 0, 0), 1);
}

TEST(RunLength, IsTheSameFromEveryStep) {
  auto const train = epochs(2.5);
  for (std::int64_t done = 0; done <= 13; ++done) {
    EXPECT_EQ(steps_of_epochs(train, 41, done, done * 8 * 24), 13) << done;
  }
}

TEST(RunLength, CountsWhatOtherBatchesAndSequencesSaw) {
  // 80 sequences, of which 16 are seen, by whatever steps.
  EXPECT_EQ(steps_of_epochs(epochs(2), 40, 2, 16 * 24), 10);
  EXPECT_EQ(steps_of_epochs(epochs(2), 40, 4, 16 * 24), 12);
  EXPECT_EQ(steps_of_epochs(epochs(2), 40, 16, 16 * 24), 24);
}

TEST(RunLength, IsNotLessThanWhatIsDone) {
  EXPECT_EQ(steps_of_epochs(epochs(1), 40, 20, 160 * 24), 20);
}

TEST(RunLength, OfStepsStays) {
  config::RunConfig config;
  config.train.steps = 7;
  settle_length(config, 40);
  EXPECT_EQ(config.train.steps, 7);
}

}  // namespace
}  // namespace offstage::train
