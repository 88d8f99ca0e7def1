#include "config/effective_config.hpp"

#include <gmock/gmock.h>

#include <filesystem>

namespace offstage::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(EffectiveConfig, HasEveryKeyInItsSectionAndWhatIsBetterLeftOutAsAComment) {
  RunConfig config;
  config.optimizer.kind = kernels::Optimizer::sgd;
  config.subgroup_is_default = true;
  config.settings = {{"checkpoint.dir", "run/checkpoints", "default", true},
                     {"data.valid", "", "default"},
                     {"optimizer.beta1", "0.9", "default"},
                     {"optimizer.decay-steps", "0", "default"},
                     {"optimizer.lr", "0.1", "--optimizer.lr=0.1"},
                     {"run.dir", " x ", "a.cfg:1"},
                     {"tiers.path", "/a,read=1GB/s", "a.cfg:2"},
                     {"tiers.path", "/b", "a.cfg:3"},
                     {"update.subgroup-size", "100M", "default"}};
  EXPECT_THAT(effective_config(config),
              AllOf(HasSubstr("\n[checkpoint]\n# dir = run/checkpoints\n"),
                    HasSubstr("\n[data]\n# valid = \n"),
                    HasSubstr("\n[optimizer]\n# beta1 = 0.9\n# decay-steps = 0\nlr = 0.1\n"),
                    HasSubstr("\n[run]\ndir = \" x \"\n"),
                    HasSubstr("\n[tiers]\npath = /a,read=1GB/s\npath = /b\n"),
                    HasSubstr("\n[update]\n# subgroup-size = 100M\n")));
}

TEST(EffectiveConfig, SaysWhereCheckpointsAreWhereverItIsRead) {
  RunConfig config;
  config.settings = {{"checkpoint.dir", "../a", "a.cfg:1"}};
  auto const here = std::filesystem::current_path();
  EXPECT_THAT(effective_config(config),
              HasSubstr("\ndir = " + (here.parent_path() / "a").string() + "\n"));
}

}  // namespace
}  // namespace offstage::config
