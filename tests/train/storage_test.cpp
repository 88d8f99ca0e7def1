#include "train/offload/storage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(std::vector<std::string> const& directories, bool allow_tmpfs) {
  config::RunConfig config;
  config.allow_tmpfs = allow_tmpfs;
  for (std::string const& directory : directories) {
    config.paths.push_back({.directory = directory, .engine = {}, .emulation = {}});
  }
  try {
    require_storage(config);
  } catch (UsageError const& error) {
    return error.what();
  }
  return "none";
}

TEST(Storage, ADirectoryMayHaveOneNameOnly) {
  TemporaryDirectory const place;
  std::string const fast = place.path() / "fast";
  std::string const slow = place.path() / "slow";
  std::string const link = place.path() / "link";
  std::filesystem::create_directory(fast);
  std::filesystem::create_directory(slow);
  std::filesystem::create_directory_symlink(fast, link);
  EXPECT_EQ(refusal({fast, slow}, true), "none");
  EXPECT_EQ(refusal({fast, slow, link}, true),
            "tiers.path=" + fast + " and tiers.path=" + link + " are the same directory; keep one");
}

TEST(Storage, EveryPathIsLookedAtForHostMemory) {
  if (!std::filesystem::is_directory("/dev/shm")) {
    GTEST_SKIP() << "no /dev/shm";
  }
  EXPECT_THAT(
      refusal({"/nowhere", "/dev/shm"}, false),
      AllOf(HasSubstr("tiers.path=/dev/shm lies in host memory"), HasSubstr("allow-tmpfs")));
  EXPECT_EQ(refusal({"/nowhere", "/dev/shm"}, true), "none");
}

TEST(Storage, WhatIsNotThereIsLeftToTheTiersToReport) {
  EXPECT_EQ(refusal({"/nowhere/a", "/nowhere/b"}, false), "none");
}

TEST(Storage, ThousandsOfForgedSpillDirectoriesAreAFewPrintableLines) {
  TemporaryDirectory const place;
  config::RunConfig config;
  config.paths.push_back({.directory = place.path(), .engine = {}, .emulation = {}});
  for (int i = 0; i < 3000; ++i) {
    std::string const number = std::to_string(i);
    std::filesystem::create_directory(place.path() / ("offstage-1-run-elsewhere-1-" + number));
    std::filesystem::create_directory(
        place.path() / ("offstage-1\nforged " + number + "\x1b[2J-run-elsewhere-1-0"));
  }
  ::testing::internal::CaptureStderr();
  tidy_storage(config);
  std::string const said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), 5);
  EXPECT_THAT(said, HasSubstr("offstage: warning: tiers.path: left 2996 more"));
  EXPECT_THAT(said, AllOf(Not(HasSubstr("forged")), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace offstage::train
