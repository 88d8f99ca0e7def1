#include "train/report/progress_line.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <string>

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr ProgressFigures half{.step = 50'000,
                               .steps = 100'000,
                               .loss = 3.0,
                               .smoothed_loss = 2.5,
                               .tokens_per_second = 123'456.0,
                               .left = Seconds{90.0}};

std::string line(std::size_t width, ProgressFigures const& progress = half) {
  std::string text;
  for (auto const& part : progress_line(progress, width, false)) {
    text += part.text;
  }
  return text;
}

TEST(ProgressLine, HasEverythingWhereThereIsRoom) {
  EXPECT_THAT(line(200),
              AllOf(StartsWith(std::string(12, '#') + std::string(12, '-') + "  50 %"),
                    HasSubstr("  step 50000/100000  loss 2.5000  123456 tokens/s  left ")));
}

TEST(ProgressLine, HasAShorterBarWhereThereIsLess) {
  auto const whole = line(200);
  for (std::size_t less = 1; less <= 20; ++less) {
    auto const text = line(whole.size() - less);
    EXPECT_EQ(text.size(), whole.size() - less);
    EXPECT_THAT(text, EndsWith(whole.substr(24)));
  }
}

TEST(ProgressLine, LosesWholePartsTheTimeLeftAndTheStepLast) {
  auto const whole = line(200);
  auto const left = whole.substr(whole.find("  left"));
  auto const step = std::string{"  step 50000/100000"}, loss = std::string{"  loss 2.5000"};
  EXPECT_THAT(line(whole.size() - 21),
              AllOf(HasSubstr("  50 %" + step + loss + left), Not(HasSubstr("tokens"))));
  EXPECT_EQ(line(step.size() + loss.size() + left.size()), step + loss + left);
  EXPECT_EQ(line(step.size() + loss.size() + left.size() - 1), step + left);
  EXPECT_EQ(line(step.size() + left.size() - 1), step);
  EXPECT_EQ(line(step.size() - 1), "");
  for (std::size_t width = 0; width < 120; ++width) {
    EXPECT_LE(line(width).size(), width);
  }
}

TEST(ProgressLine, FitsATerminalOf80ColumnsWithAllButHugeFigures) {
  EXPECT_THAT(line(79),
              AllOf(HasSubstr("  loss 2.5000"), HasSubstr("tokens/s"), HasSubstr("  left ")));
}

TEST(ProgressLine, ShowsALossThatIsNoNumberInThePlaceOfTheMean) {
  auto lost = half;
  lost.loss = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(line(200, lost), HasSubstr("  loss nan  "));
  lost.loss = std::numeric_limits<double>::infinity();
  EXPECT_THAT(line(200, lost), HasSubstr("  loss inf  "));
}

TEST(ProgressLine, HasABarOfBlanksWhereItIsColoured) {
  auto const parts = progress_line(half, 200, true);
  EXPECT_EQ(parts[0].text, std::string(12, ' '));
  EXPECT_EQ(parts[0].style, log::Style::bar);
  EXPECT_EQ(parts[1].style, log::Style::rest);
}

}  // namespace
}  // namespace offstage::train
