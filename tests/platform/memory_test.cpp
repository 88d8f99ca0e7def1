#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "environment_variable.hpp"
#include "limits.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"
#include "platform/memory/room.hpp"
#include "temporary_directory.hpp"

namespace offstage::memory {
namespace {

std::uintptr_t address_of(HugeBuffer const& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.bytes().data());
}

TEST(HugeBuffer, IsZeroedAndAlignedForDirectIo) {
  for (Bytes const size : {Bytes{1}, 4 * KiB, 4 * KiB + 1, MiB, 2 * MiB, 3 * MiB + 5, 8 * MiB}) {
    HugeBuffer const buffer{size};
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(address_of(buffer) % static_cast<std::uintptr_t>(size >= 2 * MiB ? 2 * MiB : 4 * KiB),
              0U);
    EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer.bytes().data(), 0xFF, static_cast<std::size_t>(size));
  }
}

TEST(HugeBuffer, FirstTouchIsProgress) {
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  Stopwatch const watch;
  HugeBuffer const buffer{MiB};
  Seconds const idle = since_progress();  // first: time goes on in between
  EXPECT_LE(idle, watch.elapsed());
}

TEST(HugeBuffer, ViewsHoldWholeElements) {
  HugeBuffer const buffer{4 * 100 + 3};
  EXPECT_EQ(buffer.as<float>().size(), 100U);
}

TEST(HugeBuffer, MovesWithoutCopiesAndLeavesTheSourceEmpty) {
  HugeBuffer first{MiB};
  auto const address = address_of(first);
  HugeBuffer second{std::move(first)};
  EXPECT_EQ(address_of(second), address);
  HugeBuffer third{4 * KiB};
  third = std::move(second);
  EXPECT_EQ(address_of(third), address);
  EXPECT_EQ(third.size(), MiB);
  third.reset();
  EXPECT_EQ(third.size(), 0);
  EXPECT_TRUE(third.bytes().empty());
}

TEST(HugeBuffer, NothingIsFineAndLessIsNot) {
  EXPECT_TRUE(HugeBuffer{0}.bytes().empty());
  EXPECT_THROW(HugeBuffer{-1}, PreconditionError);
}

TEST(HugeBuffer, SaysHowMuchIsNotToBeHad) {
  try {
    HugeBuffer const buffer{Bytes{1} << 56};
    FAIL() << "must throw";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ExitCode::other);
    EXPECT_STREQ(error.what(), "out of memory: cannot map 64.0 PiB");
  }
}

TEST(ProcessMemory, FollowsWhatIsAllocated) {
  Bytes const before = resident_bytes();
  EXPECT_GT(before, MiB);
  {
    HugeBuffer const buffer{64 * MiB};
    EXPECT_GE(resident_bytes(), before + 60 * MiB);
  }
  EXPECT_LT(resident_bytes(), before + 60 * MiB);
  EXPECT_GE(peak_resident_bytes(), before + 60 * MiB);
}

TEST(ProcessMemory, TheNodeHasSomeLeft) {
  EXPECT_GT(available_bytes(), 0);
  EXPECT_LT(available_bytes(), Bytes{1} << 50);
}

TEST(ProcessMemory, PrivateMemoryIsAPartOfTheResident) {
  HugeBuffer const buffer{16 * MiB};
  EXPECT_GE(private_bytes(), 15 * MiB);
  EXPECT_LE(private_bytes(), resident_bytes());
}

/// A root directory with 64 GiB of memory and a process in the given cgroups.
class FakeRoot {
 public:
  explicit FakeRoot(std::string const& membership) {
    write("/proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:        1 kB\nMemAvailable:   33554432 kB\n");
    write("/proc/self/cgroup", membership);
  }
  void write(std::string const& path, std::string const& text) const {
    auto const file = std::filesystem::path{root() + path};
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  [[nodiscard]] std::string root() const { return directory_.path().string(); }

 private:
  TemporaryDirectory directory_;
};

TEST(MemoryLimit, IsTheNodesMemoryWithoutACgroup) {
  FakeRoot const fake{"0::/\n"};
  EXPECT_EQ(memory_limit(fake.root()).bytes, 64 * GiB);
  EXPECT_FALSE(memory_limit(fake.root()).of_job);
}

TEST(MemoryLimit, IsTheTightestCgroupsUpToTheRoot) {
  FakeRoot const fake{"0::/slurm/job_7/step_0\n"};
  fake.write("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  fake.write("/sys/fs/cgroup/slurm/job_7/memory.max", "8589934592\n");
  fake.write("/sys/fs/cgroup/slurm/memory.max", "17179869184\n");
  EXPECT_EQ(memory_limit(fake.root()).bytes, 8 * GiB);
  EXPECT_TRUE(memory_limit(fake.root()).of_job);
}

TEST(MemoryLimit, ReadsTheFirstVersionAndItsUnlimitedValue) {
  FakeRoot const fake{"9:name=systemd:/\n4:memory:/slurm/job_7\n3:cpuset:/slurm\n0::/\nnonsense\n"};
  fake.write("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(memory_limit(fake.root()).of_job);
  fake.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  EXPECT_EQ(memory_limit(fake.root()).bytes, 4 * GiB);
}

// Slurm's default: no cgroup holds a job to its memory.
TEST(MemoryLimit, IsWhatSlurmGrantedIfThatIsLess) {
  FakeRoot const fake{"0::/\n"};
  {
    EnvironmentVariable const granted{"SLURM_MEM_PER_NODE", "16384"};
    EXPECT_EQ(memory_limit(fake.root()).bytes, 16 * GiB);
    EXPECT_TRUE(memory_limit(fake.root()).of_job);
    EXPECT_EQ(available_bytes(fake.root()), 16 * GiB);
  }
  EnvironmentVariable const of_a_cpu{"SLURM_MEM_PER_CPU", "2048"};
  EXPECT_EQ(memory_limit(fake.root()).bytes, 64 * GiB) << "of how many is not known";
  EnvironmentVariable const cpus{"SLURM_CPUS_ON_NODE", "6"};
  EXPECT_EQ(memory_limit(fake.root()).bytes, 12 * GiB);
  for (char const* const other : {"0", "-1", "all", "", "9223372036854775807", "999999999"}) {
    EnvironmentVariable const nonsense{"SLURM_MEM_PER_NODE", other};
    EnvironmentVariable const none{"SLURM_MEM_PER_CPU", "0"};
    EXPECT_EQ(memory_limit(fake.root()).bytes, 64 * GiB) << other;
  }
}

TEST(AvailableMemory, IsTheNodesWithoutALimit) {
  FakeRoot const fake{"0::/\n"};
  EXPECT_EQ(available_bytes(fake.root()), 32 * GiB);
}

TEST(AvailableMemory, IsWhatTheTightestCgroupLeavesBesideThePageCache) {
  FakeRoot const fake{"0::/slurm/job_7\n"};
  fake.write("/sys/fs/cgroup/slurm/job_7/memory.max", "max\n");
  fake.write("/sys/fs/cgroup/slurm/memory.max", "8589934592\n");
  fake.write("/sys/fs/cgroup/slurm/memory.current", "6442450944\n");
  fake.write("/sys/fs/cgroup/slurm/memory.stat",
             "anon 1\ninactive_file 1073741824\nactive_file 2147483648\n");
  EXPECT_EQ(available_bytes(fake.root()), 5 * GiB);
}

TEST(AvailableMemory, ReadsTheFirstVersionsTotals) {
  FakeRoot const fake{"4:memory:/job_7\n"};
  std::string const folder = "/sys/fs/cgroup/memory/job_7/";
  fake.write(folder + "memory.limit_in_bytes", "4294967296\n");
  fake.write(folder + "memory.usage_in_bytes", "5368709120\n");
  fake.write(folder + "memory.stat", "inactive_file 7\ntotal_inactive_file 3221225472\n");
  EXPECT_EQ(available_bytes(fake.root()), 2 * GiB);
  fake.write(folder + "memory.stat", "total_inactive_file 0\n");
  EXPECT_EQ(available_bytes(fake.root()), 0);
}

TEST(AvailableMemory, IsTheNodesWhereTheCacheOfAGroupWithoutALimitGrowsMeanwhile) {
  FakeRoot const fake{"4:memory:/job_7\n"};
  std::string const folder = "/sys/fs/cgroup/memory/job_7/";
  fake.write(folder + "memory.limit_in_bytes", "9223372036854771712\n");
  fake.write(folder + "memory.usage_in_bytes", "1073741824\n");
  fake.write(folder + "memory.stat", "total_inactive_file 2147483648\n");
  EXPECT_EQ(available_bytes(fake.root()), 32 * GiB);
}

TEST(MemoryLimit, IsThatOfTheNodesOfACpuset) {
  FakeRoot fake{""};
  for (int const node : {0, 1, 2}) {
    auto const name = std::to_string(node);
    fake.write("/sys/devices/system/node/node" + name + "/meminfo",
               "Node " + name + " MemTotal:       16777216 kB\nNode " + name +
                   " MemFree:        1048576 kB\nNode " + name + " Active(file):   2097152 kB\n");
  }
  fake.write("/sys/devices/system/node/has_memory", "0-2\n");
  fake.write("/proc/self/status", "Name:\tx\nMems_allowed:\t7\nMems_allowed_list:\t0-2\n");
  EXPECT_EQ(memory_limit(fake.root()).bytes, 64 * GiB) << "all of them: MemTotal counts";
  EXPECT_EQ(available_bytes(fake.root()), 32 * GiB);
  fake.write("/proc/self/status", "Name:\tx\nMems_allowed:\t5\nMems_allowed_list:\t0,2\n");
  EXPECT_EQ(memory_limit(fake.root()).bytes, 32 * GiB);
  EXPECT_TRUE(memory_limit(fake.root()).of_job);
  EXPECT_EQ(available_bytes(fake.root()), 6 * GiB);
}

TEST(MemoryLimit, IsNotZeroButAnErrorWhereTheKernelDoesNotTell) {
  FakeRoot const fake{"0::/\n"};
  fake.write("/proc/meminfo", "MemFree:        1 kB\nMemTotal: none\n");
  for (bool const total : {true, false}) {
    try {
      total ? static_cast<void>(memory_limit(fake.root()))
            : static_cast<void>(available_bytes(fake.root()));
      FAIL() << "must throw";
    } catch (IoError const& error) {
      EXPECT_NE(std::string{error.what()}.find(total ? "/proc/meminfo does not tell MemTotal"
                                                     : "/proc/meminfo does not tell MemAvailable"),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW((void)memory_limit("/nowhere"), IoError);
}

TEST(AddressSpaceLeft, IsWhatTheLimitLeaves) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  EXPECT_EQ(address_space_left(), std::numeric_limits<Bytes>::max());
  AddressSpace const space{64 * MiB};
  EXPECT_LE(address_space_left(), 64 * MiB);
  EXPECT_GE(address_space_left(), 60 * MiB);
}

TEST(Room, IsRefusedWhereItCannotBeMapped) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  {
    AddressSpace const space{8 * MiB};
    require_room(4 * MiB, "oneDNN");
    try {
      require_room(16 * MiB, "oneDNN");
      FAIL();
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ExitCode::other);
      std::string const text = error.what();
      EXPECT_TRUE(text.starts_with("out of memory: oneDNN may need 16.0 MiB")) << text;
      EXPECT_NE(text.find("ulimit -v"), std::string::npos) << text;
    }
  }
  require_room(16 * MiB, "oneDNN");
}

TEST(MemoryLimit, HoldsOnThisMachine) {
  EXPECT_GT(memory_limit().bytes, 0);
  EXPECT_GE(memory_limit().bytes, resident_bytes());
}

}  // namespace
}  // namespace offstage::memory
