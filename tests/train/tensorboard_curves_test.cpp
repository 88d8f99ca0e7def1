#include "train/report/tensorboard_curves.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "train/storage_fixture.hpp"

namespace offstage::train {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::vector<std::string> tags(std::vector<tensorboard::Scalar> const& curves) {
  std::vector<std::string> tags;
  for (auto const& curve : curves) {
    tags.push_back(curve.tag);
  }
  return tags;
}

double value_of(std::vector<tensorboard::Scalar> const& curves, std::string const& tag) {
  for (auto const& curve : curves) {
    if (curve.tag == tag) {
      return curve.value;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

TEST(Curves, LeaveOutWhatAStepHasNoFigureFor) {
  auto const none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(tags(curves_of({.loss = 2.0}, none, 0.0)),
              ElementsAre("loss/train", "optimizer/norm", "optimizer/rate", "seconds/step",
                          "seconds/forward", "seconds/backward", "seconds/update"));
}

TEST(Curves, HaveAGapInTheMeanWhereTheLossIsNoNumber) {
  auto const none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(tags(curves_of({.loss = none}, 2.0, 0.0)), Not(Contains("loss/smoothed")));
  EXPECT_THAT(tags(curves_of({.loss = 2.0}, 2.0, 0.0)), Contains("loss/smoothed"));
}

TEST(Curves, HaveTheFiguresOfTheStep) {
  StepRecord record{.loss = 2.0, .grad_norm = 3.0, .learning_rate = 0.5, .loss_scale = 8.0};
  record.step_seconds = Seconds{4.0};
  record.tflops = 1.5;
  record.mfu = 0.25;
  record.predicted = Seconds{3.5};
  auto const curves = curves_of(record, 2.5, 100.0);
  EXPECT_EQ(value_of(curves, "loss/train"), 2.0);
  EXPECT_EQ(value_of(curves, "loss/smoothed"), 2.5);
  EXPECT_EQ(value_of(curves, "optimizer/norm"), 3.0);
  EXPECT_EQ(value_of(curves, "optimizer/rate"), 0.5);
  EXPECT_EQ(value_of(curves, "optimizer/loss_scale"), 8.0);
  EXPECT_EQ(value_of(curves, "speed/tokens_per_s"), 100.0);
  EXPECT_EQ(value_of(curves, "speed/tflop_per_s"), 1.5);
  EXPECT_EQ(value_of(curves, "speed/mfu"), 0.25);
  EXPECT_EQ(value_of(curves, "seconds/step"), 4.0);
  EXPECT_EQ(value_of(curves, "seconds/step_predicted"), 3.5);
}

TEST(Curves, HaveEachStoragePathByItsName) {
  auto const curves = curves_of({.storage = one_step()}, 1.0, 1.0);
  EXPECT_EQ(value_of(curves, "storage/read_gb_per_s/nvme"), 500.0 / 1e9);
  EXPECT_EQ(value_of(curves, "storage/busy/nvme"), 0.75);
  EXPECT_THAT(tags(curves), Contains("storage/busy/pfs"));
}

TEST(Curves, HaveOneOfValidations) {
  auto const curves = validation_curves({.all = {1.25, 4}, .sources = {{"a", {1.25, 4}}}});
  EXPECT_THAT(tags(curves), ElementsAre("loss/validation"));
  EXPECT_EQ(value_of(curves, "loss/validation"), 1.25);
}

TEST(Curves, HaveOneOfEachSourceOfValidationsThatHasATarget) {
  auto const curves = validation_curves(
      {.all = {2.0, 8}, .sources = {{"x/a", {1.0, 4}}, {"x/none", {NAN, 0}}, {"y/b*", {3.0, 4}}}});
  EXPECT_THAT(tags(curves),
              ElementsAre("loss/validation", "loss/validation/a", "loss/validation/b*"));
  EXPECT_EQ(value_of(curves, "loss/validation/b*"), 3.0);
}

TEST(SourceNames, AreWholePathsWhereTheLastPartsAreAlike) {
  EXPECT_THAT(short_names({{"x/a", {}}, {"y/b", {}}}), ElementsAre("a", "b"));
  EXPECT_THAT(short_names({{"x/a", {}}, {"y/a", {}}}), ElementsAre("x/a", "y/a"));
}

}  // namespace
}  // namespace offstage::train
