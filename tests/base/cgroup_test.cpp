#include "base/cgroup.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "temporary_directory.hpp"

namespace offstage {
namespace {

/// The folders of a controller's groups, where /proc/self/cgroup says `membership`.
std::vector<std::string> folders(std::string const& membership, std::string const& controller) {
  TemporaryDirectory const root;
  std::filesystem::create_directories(root.path() / "proc/self");
  root.write("proc/self/cgroup", membership);
  std::vector<std::string> found;
  for (Cgroup const& group : cgroups_of(controller, root.path().string())) {
    found.push_back(group.folder.substr(root.path().string().size()));
  }
  return found;
}

TEST(Cgroups, AreThoseOfTheProcessAndAboveIt) {
  using Folders = std::vector<std::string>;
  EXPECT_EQ(folders("0::/slurm/job_7\n", "pids"),
            (Folders{"/sys/fs/cgroup/slurm/job_7/", "/sys/fs/cgroup/slurm/", "/sys/fs/cgroup/"}));
  EXPECT_EQ(folders("5:pids:/job_7\n4:memory:/other\n", "pids"),
            (Folders{"/sys/fs/cgroup/pids/job_7/", "/sys/fs/cgroup/pids/"}));
  EXPECT_EQ(folders("4:memory:/other\n", "pids"), Folders{});
  EXPECT_EQ(folders("", "pids"), Folders{});
}

TEST(Cgroups, HaveNumbersOrNone) {
  TemporaryDirectory const folder;
  EXPECT_EQ(number_in(folder.write("a", "512\n")), 512);
  EXPECT_EQ(number_in(folder.write("b", "max\n")), std::nullopt);
  EXPECT_EQ(number_in(folder.path() / "c"), std::nullopt);
}

TEST(CpuQuota, IsTheLeastOfTheGroups) {
  TemporaryDirectory const root;
  auto const quota = [&] { return cpu_quota(root.path().string()); };
  for (auto const* const folder :
       {"proc/self", "sys/fs/cgroup/pod/box", "sys/fs/cgroup/cpu/box", "sys/fs/cgroup/cpu/other"}) {
    std::filesystem::create_directories(root.path() / folder);
  }
  EXPECT_EQ(quota(), std::nullopt);
  root.write("proc/self/cgroup", "0::/pod/box\n");
  root.write("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  root.write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  root.write("sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  root.write("proc/self/cgroup", "9:cpu,cpuacct:/box\n8:cpuset:/other\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "50000\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), std::nullopt);
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "25000\n");
  root.write("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "50000\n");
  root.write("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "5000\n");
  EXPECT_EQ(quota(), 0.5) << "that of another controller's group is not this process's";
}

}  // namespace
}  // namespace offstage
