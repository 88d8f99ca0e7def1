#include <gmock/gmock.h>

#include <cstdlib>

#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using GivenPaths = OptionsFixture;

TEST_F(GivenPaths, TheHomeDirectoryIsFoundInPathsAlone) {
  setenv("HOME", "/home/me", 1);
  auto const config = parse({"--config", file("a.cfg", "data.valid = ~/b,/c, ~/d\n"),
                             "--run.dir=~/run", "--tiers.path=~/x,read=1GB/s,write=1GB/s"});
  EXPECT_EQ(config.run_dir, "/home/me/run");
  EXPECT_EQ(config.data.valid.front().path, "/home/me/b");
  EXPECT_EQ(config.data.valid.back().path, "/home/me/d");
  EXPECT_EQ(config.paths.front().directory, "/home/me/x");
  EXPECT_EQ(config.checkpoint.dir, "/home/me/run/checkpoints");
  EXPECT_EQ(parse({"--run.dir=a~/b"}).run_dir, "a~/b");
  EXPECT_EQ(error({"--run.dir=~you/run"}),
            "run.dir=~you/run: only ~/ is known, not ~user; write the whole path");
}

TEST_F(GivenPaths, VariablesOfTheShellAreNoPartOfAPath) {
  EXPECT_THAT(error({"--config", file("a.cfg", "[run]\ndir = $SCRATCH/run\n")}),
              AllOf(HasSubstr("a.cfg:2: run.dir: run.dir=$SCRATCH/run: variables are not expanded"),
                    HasSubstr("--run.dir=PATH on the command line")));
  EXPECT_THAT(error({"--data.train=/a,${HOME}/b"}), HasSubstr("variables are not expanded here"));
  EXPECT_EQ(parse({"--run.dir=a$/b$1"}).run_dir, "a$/b$1");
  auto const there = file("$there", "");
  EXPECT_EQ(parse({"--run.dir=" + there}).run_dir, there);
}

TEST_F(GivenPaths, ANoBreakSpaceIsNamed) {
  EXPECT_THAT(error({"--config", file("a.cfg", "[optimizer]\nlr\u00a0= 0.01\n")}),
              AllOf(HasSubstr("a.cfg:2"), HasSubstr("no-break space (U+00A0)")));
  parse({"--config", file("a.cfg", "# a\u00a0b\n")});
}

}  // namespace
}  // namespace offstage::cli
