#include "train/effective_config.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
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
                     {"optimizer.lr", "0.1", "--optimizer.lr=0.1"},
                     {"run.dir", " x ", "a.cfg:1"},
                     {"tiers.path", "/a,read=1GB/s", "a.cfg:2"},
                     {"tiers.path", "/b", "a.cfg:3"},
                     {"update.subgroup-size", "100M", "default"}};
  EXPECT_THAT(effective_config(config),
              AllOf(HasSubstr("\n[checkpoint]\n# dir = run/checkpoints\n"),
                    HasSubstr("\n[data]\n# valid = \n"),
                    HasSubstr("\n[optimizer]\n# beta1 = 0.9\nlr = 0.1\n"),
                    HasSubstr("\n[run]\ndir = \" x \"\n"),
                    HasSubstr("\n[tiers]\npath = /a,read=1GB/s\npath = /b\n"),
                    HasSubstr("\n[update]\n# subgroup-size = 100M\n")));
}

TEST(EffectiveConfig, ARunFileIsWrittenOnlyWhereItDiffers) {
  TemporaryDirectory const folder;
  RunConfig config;
  config.run_dir = folder.path().string();
  auto const path = folder.path() / "x";
  auto const text = [&] {
    std::ostringstream all;
    all << std::ifstream{path}.rdbuf();
    return all.str();
  };
  write_run_file(config, "x", "one\n");
  EXPECT_EQ(text(), "one\n");
  auto const before = std::filesystem::last_write_time(path);
  write_run_file(config, "x", "one\n");
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  write_run_file(config, "x", "two\n");
  EXPECT_EQ(text(), "two\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.new"));
}

TEST(EffectiveConfig, ALinkInItsPlaceIsRefused) {
  TemporaryDirectory const folder;
  RunConfig config;
  config.run_dir = folder.path().string();
  std::filesystem::create_symlink(folder.write("other", "theirs"), folder.path() / "x");
  EXPECT_THROW(write_run_file(config, "x", "mine"), IoError);
  std::ifstream file{folder.path() / "other"};
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "theirs");
}

}  // namespace
}  // namespace offstage::train
