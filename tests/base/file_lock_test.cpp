#include "base/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "temporary_directory.hpp"

namespace offstage {
namespace {

/// A file that is open, and a root directory whose mounts have it on a file system of these options.
class LocalLocks : public testing::Test {
 protected:
  LocalLocks() {
    std::filesystem::create_directories(directory_.path() / "root/proc/self");
    EXPECT_EQ(::fstat(file_, &here_), 0);
  }
  ~LocalLocks() override { ::close(file_); }

  std::string option_of(std::string const& options) {
    unsigned const number = major(here_.st_dev);
    directory_.write(
        "root/proc/self/mountinfo",
        fmt::format("22 1 0:{0} / /proc rw shared:5 - proc proc rw,nolock\n"
                    "36 22 {1}:{2} / /a\\040place rw,noatime shared:1 - nfs server:/a {3}\n"
                    "37 22 {1}:{0} / /b rw - lustre server:/b rw,localflock\n",
                    minor(here_.st_dev) + 1, number, minor(here_.st_dev), options));
    return local_lock_option(file_, (directory_.path() / "root").string());
  }

 private:
  TemporaryDirectory directory_;
  int file_ = ::open(directory_.write("lock", "").c_str(), O_RDWR | O_CLOEXEC);
  struct stat here_ {};
};

TEST_F(LocalLocks, AreNamedByTheOptionOfTheFilesOwnMount) {
  EXPECT_EQ(option_of("rw,vers=3,nolock,local_lock=none"), "nolock");
  EXPECT_EQ(option_of("rw,local_lock=all"), "local_lock=all");
  EXPECT_EQ(option_of("rw,local_lock=posix,addr=10.0.0.1"), "local_lock=posix");
  EXPECT_EQ(option_of("rw,localflock"), "localflock");
}

TEST_F(LocalLocks, AreNoneWhereLocksReachOtherNodes) {
  EXPECT_EQ(option_of("rw,flock"), "");
  EXPECT_EQ(option_of("rw,vers=4.2,local_lock=none,addr=10.0.0.1"), "");
  EXPECT_EQ(option_of("rw,local_lock=flock"), "") << "those of fcntl go to the server";
}

TEST_F(LocalLocks, AreNoneWhereMountsAreNotToBeSeen) {
  int const file = ::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(local_lock_option(file, "/nowhere"), "");
  EXPECT_EQ(local_lock_option(-1), "");
  ::close(file);
}

}  // namespace
}  // namespace offstage
