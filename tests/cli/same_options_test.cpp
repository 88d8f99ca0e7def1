#include "cli/same_options.hpp"

#include <gmock/gmock.h>

#include "cli/commit.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Settings = std::vector<config::Setting>;

std::string difference(Settings const& here, Settings const& first) {
  return difference_from(text_for_ranks(first), here);
}

TEST(SameOptions, OriginsMayDiffer) {
  EXPECT_EQ(difference({{"train.seed", "7", "--train.seed=7"}}, {{"train.seed", "7", "a.cfg:3"}}),
            "");
}

TEST(SameOptions, ADifferenceNamesKeyValuesAndOrigins) {
  EXPECT_THAT(
      difference({{"optimizer.kind", "adamw", "default"}, {"optimizer.lr", "1", "a.cfg:3"}},
                 {{"optimizer.kind", "adamw", "default"}, {"optimizer.lr", "3e-4", "default"}}),
      AllOf(HasSubstr("optimizer.lr is 1 (a.cfg:3) here"), HasSubstr("3e-4 (default) on rank 0")));
}

TEST(SameOptions, PlacesOnANodeMayDifferButNotWhetherThereIsOne) {
  for (char const* const key : {"tiers.path", "data.train", "data.valid", "run.threads"}) {
    EXPECT_EQ(difference({{key, "1", "a"}}, {{key, "2", "a"}}), "") << key;
    EXPECT_THAT(difference({{key, "", "default"}}, {{key, "2", "a"}}),
                HasSubstr("is empty (default)"));
  }
  EXPECT_THAT(difference({{"run.dir", "a", "x"}}, {{"run.dir", "b", "x"}}), HasSubstr("run.dir"));
}

TEST(SameOptions, PathsHaveTheSameAttributes) {
  EXPECT_EQ(
      difference({{"tiers.path", "/a,persistent", "x"}}, {{"tiers.path", "/b,persistent", "x"}}),
      "");
  EXPECT_THAT(difference({{"tiers.path", "/a,persistent", "x"}}, {{"tiers.path", "/a", "x"}}),
              HasSubstr("tiers.path is /a,persistent (x) here, but /a (x) on rank 0, and only its "
                        "directory may differ"));
  EXPECT_THAT(difference({{"tiers.path", "/a,read=1GB/s,write=1GB/s", "x"}},
                         {{"tiers.path", "/a,read=2GB/s,write=1GB/s", "x"}}),
              HasSubstr("tiers.path"));
}

TEST(SameOptions, PathsAreEquallyMany) {
  Settings const one{{"tiers.path", "/a", "x"}, {"tiers.split", "auto", "default"}};
  Settings const two{
      {"tiers.path", "/a", "x"}, {"tiers.path", "/b", "x"}, {"tiers.split", "auto", "default"}};
  EXPECT_THAT(difference(one, two), HasSubstr("tiers.path has another number of values"));
  EXPECT_THAT(difference(two, one), HasSubstr("tiers.path has another number of values"));
}

TEST(SameOptions, AnotherProgramIsNamed) {
  auto text = text_for_ranks({});
  text.replace(text.find('\0') + 1, 1, "x");
  EXPECT_THAT(difference_from(text, {}), HasSubstr("the program's version is"));
}

TEST(SameOptions, AnotherCommitIsAnotherProgram) {
  auto text = text_for_ranks({});
  text.insert(text.find(commit()), "x");
  EXPECT_THAT(difference_from(text, {}), HasSubstr(std::string{"commit x"} + commit()));
}

}  // namespace
}  // namespace offstage::cli
