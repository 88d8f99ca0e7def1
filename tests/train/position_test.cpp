#include "train/run/position.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace offstage::train {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr StepResult good{.loss = 2.0, .counted_targets = 8};
/// The loss is finite, the gradient is not.
constexpr StepResult overflow{.loss = 2.0, .skipped = true, .counted_targets = 8};
constexpr StepResult infinite_loss{.loss = infinite, .skipped = true, .counted_targets = 8};
constexpr StepResult without_targets{.loss = infinite, .skipped = true};

/// Four sequences of 8 tokens a step; the scale begins at 4.
config::RunConfig with(DType dtype) {
  config::RunConfig config;
  config.train.global_batch = 4;
  config.train.sequence = 8;
  config.train.max_bad_steps = 2;
  config.numerics.dtype = dtype;
  config.numerics.loss_scale = {.dynamic = true, .start = 4.0};
  return config;
}

TEST(Position, CountsWhatAStepSees) {
  auto const config = with(DType::bf16);
  Position at{config};
  at.advance(good, 0.5);
  at.advance({.loss = 2.0, .clipped = true, .counted_targets = 8}, 0.25);
  at.advance(overflow, 0.125);
  EXPECT_EQ(at.step(), 3);
  EXPECT_EQ(at.tokens(), 3 * 32);
  EXPECT_EQ(at.meta().samples, 12);
  EXPECT_EQ(at.meta().optimizer_step, 2) << "a step that was skipped is none of the optimizer's";
  EXPECT_EQ(at.meta().learning_rate, 0.125);
  auto const progress = at.progress(Seconds{7.0});
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.steps, 3);
  EXPECT_EQ(progress.clipped, 2);
  EXPECT_EQ(progress.start.count(), 7.0);
}

TEST(Position, IsBadOnlyIfASmallerScaleDoesNotHelp) {
  auto const config = with(DType::fp16);
  Position at{config};
  at.advance(overflow, 0.1);
  at.advance(overflow, 0.1);
  EXPECT_EQ(at.loss_scale(), 1.0);
  EXPECT_EQ(at.meta().loss_scale, 1.0);
  EXPECT_EQ(at.meta().bad_steps, 0);
  at.advance(overflow, 0.1);
  EXPECT_EQ(at.meta().bad_steps, 1);
  at.advance(without_targets, 0.1);
  EXPECT_EQ(at.meta().bad_steps, 1) << "there was nothing to learn from";
  EXPECT_NO_THROW(at.require_good_steps());
  at.advance(infinite_loss, 0.1);
  EXPECT_THROW(at.require_good_steps(), DataError);
  at.advance(good, 0.1);
  EXPECT_NO_THROW(at.require_good_steps());
}

TEST(Position, HasNoScaleInOtherTypes) {
  auto const config = with(DType::bf16);
  Position at{config};
  EXPECT_EQ(at.loss_scale(), 1.0);
  at.advance(overflow, 0.1);
  EXPECT_EQ(at.meta().bad_steps, 1);
}

TEST(Position, GoesOnWithTheScaleOfTheSameTypeAlone) {
  auto const config = with(DType::fp16);
  checkpoint::Meta found;
  found.step = 10;
  found.loss_scale = 2.0;
  found.loss_scale_steps = 3;
  found.configuration = "numerics.dtype=fp16\nnumerics.loss-scale=dynamic\n";
  Position same{config};
  same.go_on_from(found);
  EXPECT_EQ(same.loss_scale(), 2.0);
  EXPECT_EQ(same.progress({}).step, 10);
  EXPECT_EQ(same.progress({}).steps, 0);
  same.advance(good, 0.1);
  EXPECT_EQ(same.meta().loss_scale_steps, 4) << "the window goes on";
  for (char const* const before : {"numerics.dtype=fp32\nnumerics.loss-scale=dynamic\n",
                                   "numerics.dtype=fp16\nnumerics.loss-scale=2\n"}) {
    found.configuration = before;
    Position other{config};
    other.go_on_from(found);
    EXPECT_EQ(other.loss_scale(), 4.0) << before;
  }
}

TEST(Position, SaysWhatMayHelpAgainstBadSteps) {
  auto config = with(DType::fp16);
  auto const two_bad_steps = [&] {
    Position at{config};
    at.advance(infinite_loss, 0.1);
    at.advance(infinite_loss, 0.1);
    at.require_good_steps();
  };
  EXPECT_THAT(two_bad_steps,
              ThrowsMessage<DataError>(HasSubstr("; lower optimizer.lr or look at the data, ")));
  config.numerics.loss_scale.dynamic = false;
  config.train.init_from = "/tuned";
  EXPECT_THAT(two_bad_steps, ThrowsMessage<DataError>(HasSubstr(
                                 "; let numerics.loss-scale be dynamic, lower optimizer.lr or look "
                                 "at the data and the weights in train.init-from=/tuned, ")));
}

TEST(Position, GoesOnCountingTheTokensThatItsCheckpointSays) {
  auto const config = with(DType::bf16);
  Position before{config};
  before.advance(good, 0.1);
  before.write_configuration();
  Position after{config};
  after.go_on_from(before.meta());
  after.advance(good, 0.1);
  EXPECT_EQ(after.tokens(), 64);
}

TEST(Position, KeepsTheLongestSequenceOfItsCheckpointUnlessOneIsGiven) {
  auto config = with(DType::bf16);
  config.model.max_sequence = 32;
  checkpoint::Meta found;
  found.configuration = "model.max-sequence=64\n";
  found.model.max_sequence = 64;
  auto const longest = [&](std::string const& origin) {
    Position at{config};
    at.go_on_from(found);
    at.set_start({}, "", 1, 1, {{.key = "model.max-sequence", .value = "32", .origin = origin}});
    return at.meta().model.max_sequence;
  };
  EXPECT_EQ(longest("default"), 64);
  EXPECT_EQ(longest("command line"), 32);
}

}  // namespace
}  // namespace offstage::train
