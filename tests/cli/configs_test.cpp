#include <filesystem>

#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

std::vector<std::string> files_of(std::string const& kind) {
  std::vector<std::string> files;
  for (auto const& entry :
       std::filesystem::directory_iterator{std::string{OFFSTAGE_CONFIGS} + "/" + kind}) {
    files.push_back(entry.path().string());
  }
  return files;
}

TEST(Configs, EveryModelLacksOnlyRunDataAndSteps) {
  auto const files = files_of("models");
  EXPECT_FALSE(files.empty());
  for (std::string const& file : files) {
    EXPECT_NO_THROW(static_cast<void>(parse_train_options(
        {"--config", file, "--run.dir=r", "--data.train=t", "--train.steps=2"})))
        << file;
  }
}

TEST(Configs, EveryRunLacksOnlyPaths) {
  auto const files = files_of("runs");
  EXPECT_FALSE(files.empty());
  for (std::string const& file : files) {
    EXPECT_NO_THROW(
        static_cast<void>(parse_train_options({"--config", file, "--run.dir=r", "--data.train=t"})))
        << file;
  }
}

}  // namespace
}  // namespace offstage::cli
