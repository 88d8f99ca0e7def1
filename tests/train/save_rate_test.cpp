#include "train/saves/save_rate.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "platform/scratch_directory.hpp"

namespace offstage::train {
namespace {

TEST(RateOfARank, IsItsPartOfTheNodes) {
  config::CheckpointConfig config;
  config.rate = 6e9;
  auto const given = rate_of_rank(config, 4, 0.0);
  EXPECT_DOUBLE_EQ(given.bytes_per_second, 1.5e9);
  EXPECT_EQ(given.of_paths, 0.0);
  EXPECT_EQ(rate_of_rank(config::CheckpointConfig{}, 4, 1e9).bytes_per_second, 0.0);
}

TEST(RateOfARank, AsAShareIsThatOfTheDirectoryAndOfEachPath) {
  config::CheckpointConfig config;
  config.rate_part = 0.2;
  auto const share = rate_of_rank(config, 2, 4e9);
  EXPECT_DOUBLE_EQ(share.bytes_per_second, 0.4e9);
  EXPECT_DOUBLE_EQ(share.of_paths, 0.1);
}

class PathOn : public ::testing::Test {
 protected:
  [[nodiscard]] tiers::PathSettings path(std::string const& name, bool emulated) const {
    tiers::PathSettings settings;
    settings.directory = scratch / name;
    std::filesystem::create_directories(settings.directory);
    if (emulated) {
      settings.emulation = tiers::Emulation{.read_rate = 1e9, .write_rate = 1e9};
    }
    return settings;
  }
  ScratchDirectory scratch;
};

TEST_F(PathOn, IsTheOneInWhoseDirectoryItIs) {
  auto const paths =
      tiers::make_paths({.paths = {path("a", true), path("b", true), path("b-too", true)}});
  std::filesystem::create_directories(scratch / "b/run/checkpoints");
  EXPECT_EQ(path_on(*paths, scratch / "b/run/checkpoints"), (*paths)[1].get());
  EXPECT_EQ(path_on(*paths, scratch / "b-too"), (*paths)[2].get());
  EXPECT_EQ(path_on(*paths, scratch.path()), nullptr) << "an emulated path is a device of its own";
  EXPECT_THROW((void)path_on(*paths, scratch / "missing"), IoError);
}

TEST_F(PathOn, IsElseOneOnTheDevice) {
  auto const paths = tiers::make_paths({.paths = {path("a", true), path("b", false)}});
  std::filesystem::create_directories(scratch / "c");
  EXPECT_EQ(path_on(*paths, scratch / "c"), (*paths)[1].get());
  EXPECT_EQ(path_on({}, scratch / "c"), nullptr);
}

}  // namespace
}  // namespace offstage::train
