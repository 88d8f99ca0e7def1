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

/// A file that is open, and a root directory whose mounts have it on a file system of these
/// options.
class LocalLocks : public testing::Test {
 protected:
  LocalLocks() {
    std::filesystem::create_directories(directory_.path() / "root/proc/self");
    EXPECT_EQ(::fstat(file_, &here_), 0);
  }
  ~LocalLocks() override { ::close(file_); }

  std::string cause_of(std::string const& options, std::string const& type = "nfs") {
    unsigned const number = major(here_.st_dev);
    directory_.write(
        "root/proc/self/mountinfo",
        fmt::format("22 1 0:{0} / /proc rw shared:5 - proc proc rw,nolock\n"
                    "36 22 {1}:{2} / /a\\040place rw,noatime shared:1 - {4} server:/a {3}\n"
                    "37 22 {1}:{0} / /b rw - lustre server:/b rw,localflock\n",
                    minor(here_.st_dev) + 1, number, minor(here_.st_dev), options, type));
    return cause_of_local_locks(file_, (directory_.path() / "root").string());
  }

 private:
  TemporaryDirectory directory_;
  int file_ = ::open(directory_.write("lock", "").c_str(), O_RDWR | O_CLOEXEC);
  struct stat here_ {};
};

TEST_F(LocalLocks, AreThoseOfTheFilesOwnMount) {
  EXPECT_EQ(cause_of("rw,vers=3,nolock,local_lock=none"), "the mount option nolock");
  EXPECT_EQ(cause_of("rw,local_lock=all"), "the mount option local_lock=all");
  EXPECT_EQ(cause_of("rw,local_lock=posix,addr=10.0.0.1"), "the mount option local_lock=posix");
  EXPECT_EQ(cause_of("rw,localflock"), "the mount option localflock");
}

TEST_F(LocalLocks, AreThoseOfABeegfs) {
  EXPECT_EQ(cause_of("rw,cfgFile=/etc/beegfs", "beegfs"),
            "BeeGFS, unless its tuneUseGlobalFileLocks is on");
}

TEST_F(LocalLocks, AreNoneWhereLocksReachOtherNodes) {
  EXPECT_EQ(cause_of("rw,flock"), "");
  EXPECT_EQ(cause_of("rw,vers=4.2,local_lock=none,addr=10.0.0.1"), "");
  EXPECT_EQ(cause_of("rw,local_lock=flock"), "") << "those of fcntl go to the server";
}

TEST_F(LocalLocks, AreNoneWhereMountsAreNotToBeSeen) {
  int const file = ::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(cause_of_local_locks(file, "/nowhere"), "");
  EXPECT_EQ(cause_of_local_locks(-1), "");
  ::close(file);
}

TEST(ModeOfLock, IsTheGroupsWhereItMayWriteTheDirectory) {
  TemporaryDirectory const directory;
  auto const path = (directory.path() / "lock").string();
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
  EXPECT_EQ(mode_of_lock(path), 0600U);
  ASSERT_EQ(::chmod(directory.path().c_str(), 02770), 0);
  EXPECT_EQ(mode_of_lock(path), 0660U);
  if (::geteuid() == 0) {  // who alone can give a directory to any group
    constexpr gid_t other = 7000;
    ASSERT_EQ(::chown(directory.path().c_str(), -1, other), 0);
    ASSERT_EQ(::chmod(directory.path().c_str(), 0770), 0);
    EXPECT_EQ(mode_of_lock(path), 0600U) << "the file is of the process's group";
    ASSERT_EQ(::chmod(directory.path().c_str(), 02770), 0);
    EXPECT_EQ(mode_of_lock(path), 0660U);
  }
}

}  // namespace
}  // namespace offstage
