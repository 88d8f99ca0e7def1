#include "cli/recorded_settings.hpp"

#include <gmock/gmock.h>

namespace offstage::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(RecordedSettings, HaveWhatAnyVersionWrote) {
  EXPECT_THAT(
      read_recorded_settings(
          "# What this run was told, with defaults.\n\n[train]\nsteps = 6\nof-tomorrow = a=b\n"
          "[tiers]\npath = /a,read=1GB/s\npath = \"/b c\"\n[new-section]\nkey = 1"),
      ElementsAre(Pair("new-section.key", "1"), Pair("tiers.path", "/a,read=1GB/s /b c"),
                  Pair("train.of-tomorrow", "a=b"), Pair("train.steps", "6")));
}

TEST(RecordedSettings, HaveDefaultsThatStandAsComments) {
  EXPECT_THAT(
      read_recorded_settings("[optimizer]\n# decay-steps = 100\n# eps = \n# A sentence = none.\n"),
      ElementsAre(Pair("optimizer.decay-steps", "100"), Pair("optimizer.eps", "")));
}

TEST(RecordedSettings, OfOtherTextAreNone) {
  EXPECT_THAT(read_recorded_settings(""), IsEmpty());
  EXPECT_THAT(read_recorded_settings("key = 1\n"), IsEmpty()) << "without a section";
  EXPECT_THAT(read_recorded_settings("[a]\n[\n]\n=\n = 1\n#\nnone\n"), IsEmpty());
}

}  // namespace
}  // namespace offstage::cli
