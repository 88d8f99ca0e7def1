#include "train/report/records.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

TEST(Records, ARunFileIsWrittenOnlyWhereItDiffers) {
  TemporaryDirectory const folder;
  config::RunConfig config;
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

TEST(Records, AFileThatCannotGetItsNameIsNotLeftBehind) {
  TemporaryDirectory const folder;
  config::RunConfig config;
  config.run_dir = folder.path().string();
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit const small{4, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_run_file(config, "x", "longer"), IoError);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Records, ALinkInItsPlaceIsRefused) {
  TemporaryDirectory const folder;
  config::RunConfig config;
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
