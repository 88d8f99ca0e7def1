#include "platform/topology/topology.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "environment_variable.hpp"
#include "platform/cpu/affinity.hpp"
#include "temporary_directory.hpp"

namespace offstage::topology {
namespace {

Topology from_file(std::string const& name) {
  EnvironmentVariable const invented{"HWLOC_XMLFILE", std::string{OFFSTAGE_TOPOLOGIES "/"} + name};
  return discover();
}

TEST(Topology, KnowsThisMachine) {
  Topology const here = discover();
  EXPECT_TRUE(here.real);
  EXPECT_FALSE(here.numa.empty());
  EXPECT_FALSE(here.cores.empty());
  for (int const cpu : cpu::allowed_cpus()) {
    EXPECT_GE(numa_of_cpu(here, cpu), 0);
    EXPECT_TRUE(std::ranges::any_of(here.cores, [&](std::vector<int> const& core) {
      return std::ranges::find(core, cpu) != core.end();
    }));
  }
}

TEST(Topology, ReadsSocketsGpusAndDrivesOfAFile) {
  Topology const node = from_file("two_socket_4gpu.xml");
  EXPECT_FALSE(node.real);
  ASSERT_EQ(node.numa.size(), 2U);
  EXPECT_EQ(node.numa[1].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_NE(node.numa[0].package, node.numa[1].package);
  EXPECT_EQ(node.cores.size(), 8U);
  ASSERT_EQ(node.gpus.size(), 4U);
  EXPECT_EQ(node.gpus[0].bus, "0000:11:00.0");
  EXPECT_EQ(node.gpus[0].name, "cuda0");
  EXPECT_EQ(node.gpus[1].numa, 0);
  EXPECT_EQ(node.gpus[2].numa, 1);
  ASSERT_EQ(node.drives.size(), 2U);
  EXPECT_EQ(node.drives[1].name, "nvme1n1");
  EXPECT_EQ(node.drives[1].bus, "0000:58:00.0");
  EXPECT_EQ(node.drives[1].numa, 1);
}

TEST(Topology, ReadsGpusThatAreNumberedAgainstTheNumaOrder) {
  Topology const node = from_file("gpus_against_numa.xml");
  ASSERT_EQ(node.gpus.size(), 4U);
  EXPECT_EQ(node.gpus[0].numa, 1);
  EXPECT_EQ(node.gpus[3].numa, 0);
}

TEST(Topology, KnowsNoDomainOfWhatHangsBelowTheWholeMachine) {
  std::ifstream file{OFFSTAGE_TOPOLOGIES "/two_socket_4gpu.xml"};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  // The second socket ends before its bridge.
  text.insert(text.find("<object type=\"Bridge\" gp_index=\"1008\""), "</object>");
  std::string const end = "</object>";
  text.erase(text.rfind(end), end.size());
  TemporaryDirectory const directory;
  EnvironmentVariable const invented{"HWLOC_XMLFILE", directory.write("bridge.xml", text)};
  Topology const node = discover();
  ASSERT_EQ(node.gpus.size(), 4U);
  EXPECT_EQ(node.gpus[1].numa, 0);
  EXPECT_EQ(node.gpus[2].numa, -1);
  ASSERT_EQ(node.drives.size(), 2U);
  EXPECT_EQ(node.drives[1].numa, -1);
}

TEST(Topology, ReadsSyntheticNodesWithSiblings) {
  EnvironmentVariable const invented{"HWLOC_SYNTHETIC", "pack:2 group:2 [numa] core:3 pu:2"};
  Topology const node = discover();
  EXPECT_FALSE(node.real);
  ASSERT_EQ(node.numa.size(), 4U);
  EXPECT_EQ(node.numa[1].cpus.size(), 6U);
  EXPECT_EQ(node.cores.size(), 12U);
  EXPECT_EQ(node.cores[0].size(), 2U);
  EXPECT_TRUE(node.gpus.empty());
  EXPECT_EQ(distance(node, 0, 0), 0);
  EXPECT_EQ(distance(node, 0, 1), 1);
  EXPECT_EQ(distance(node, 0, 2), 2);
  EXPECT_EQ(distance(node, 0, -1), 3);
  EXPECT_EQ(numa_of_cpu(node, 6), 1);
  EXPECT_EQ(numa_of_cpu(node, 1000), -1);
}

TEST(Topology, TakesNoTwoDomainsForNearWhoseSocketsAreUnknown) {
  Topology node;
  node.numa = {{.index = 0, .package = -1, .cpus = {0}}, {.index = 1, .package = -1, .cpus = {1}}};
  EXPECT_EQ(distance(node, 0, 0), 0);
  EXPECT_EQ(distance(node, 0, 1), 2);
}

TEST(Topology, KnowsMemoryWithoutCpusFromDomains) {
  // Such as CXL memory beside both sockets, or beside each.
  for (auto const& [description, domains] :
       {std::pair{"[numa] pack:2 [numa] core:4 pu:1", 2U},
        std::pair{"pack:2 [numa] group:2 [numa] core:2 pu:1", 4U}}) {
    EnvironmentVariable const invented{"HWLOC_SYNTHETIC", description};
    Topology const node = discover();
    ASSERT_EQ(node.numa.size(), domains) << description;
    for (NumaNode const& numa : node.numa) {
      EXPECT_EQ(numa.cpus.size(), 8 / domains) << description;
    }
    for (int cpu = 0; cpu < 8; ++cpu) {
      EXPECT_GE(numa_of_cpu(node, cpu), 0) << description;
    }
  }
}

TEST(Topology, IsThisMachinesWhereADescriptionCannotBeRead) {
  TemporaryDirectory const directory;
  for (std::string const& file : {directory.write("torn.xml", "<topology><object type=\"Mach"),
                                  std::string{"/nonexistent"}}) {
    EnvironmentVariable const invented{"HWLOC_XMLFILE", file};
    EXPECT_TRUE(discover().real) << file;
  }
}

/// Folders and links as in sysfs: two drives, a partition, and devices made of others.
class Sysfs {
 public:
  Sysfs() {
    for (char const* device : {"nvme0n1", "nvme0n1/nvme0n1p2", "nvme1n1", "dm-0", "dm-1", "md0",
                               "dm-2", "loop0", "sda"}) {
      std::filesystem::create_directories(at(device));
    }
    directory_.write("devices/nvme0n1/nvme0n1p2/partition", "2");
    combine("dm-0", {"nvme0n1/nvme0n1p2"});
    combine("md0", {"nvme0n1", "nvme1n1"});
    combine("dm-1", {"dm-0", "nvme0n1"});
    combine("dm-2", {"nvme1n1", "sda"});
    combine("loop0", {"loop0"});
  }
  [[nodiscard]] std::string at(std::string const& device) const {
    return (directory_.path() / "devices" / device).string();
  }

 private:
  void combine(std::string const& device, std::vector<std::string> const& parts) const {
    std::filesystem::create_directory(at(device) + "/slaves");
    for (std::string const& part : parts) {
      std::filesystem::create_directory_symlink(
          at(part), at(device) + "/slaves/" + std::filesystem::path{part}.filename().string());
    }
  }
  TemporaryDirectory directory_;
};

TEST(NumaOfBlockDevice, FollowsPartitionsAndStackedDevicesToTheirDrives) {
  Topology const node = from_file("two_socket_4gpu.xml");
  Sysfs const sysfs;
  EXPECT_EQ(numa_of_block_device(node, sysfs.at("nvme1n1")), 1);
  EXPECT_EQ(numa_of_block_device(node, sysfs.at("nvme0n1/nvme0n1p2")), 0);
  EXPECT_EQ(numa_of_block_device(node, sysfs.at("dm-0")), 0);
  EXPECT_EQ(numa_of_block_device(node, sysfs.at("dm-1")), 0);
}

TEST(NumaOfBlockDevice, IsUnknownWherePartsDisagreeOrNothingIsKnown) {
  Topology const node = from_file("two_socket_4gpu.xml");
  Sysfs const sysfs;
  for (char const* device : {"md0", "dm-2", "loop0", "sda", "missing"}) {
    EXPECT_EQ(numa_of_block_device(node, sysfs.at(device)), -1) << device;
  }
}

TEST(NumaOfPath, IsUnknownWithoutADrive) {
  Topology const node = from_file("two_socket_4gpu.xml");
  EXPECT_EQ(numa_of_path(node, "/proc"), -1);
  EXPECT_EQ(numa_of_path(node, "/nonexistent"), -1);
}

TEST(BindThread, RestrictsThisThreadAndThoseItStarts) {
  auto const inherited = cpu::allowed_cpus();
  std::vector<int> later;
  bool bound = false;
  std::thread{[&] {
    bound = bind_thread({inherited.back()});
    prefer_memory_of(0);
    prefer_memory_of(-1);
    std::thread{[&] { later = cpu::allowed_cpus(); }}.join();
  }}.join();
  EXPECT_TRUE(bound);
  EXPECT_EQ(later, std::vector<int>{inherited.back()});
  EXPECT_EQ(cpu::allowed_cpus(), inherited);
}

TEST(BindThread, RefusesCpusOutsideTheInheritedMask) {
  std::thread{[] {
    auto const inherited = cpu::allowed_cpus();
    EXPECT_TRUE(bind_thread({inherited.front()}));
    EXPECT_THROW(bind_thread({inherited.front() + 1}), PreconditionError);
    EXPECT_THROW(bind_thread({-1}), PreconditionError);
    EXPECT_THROW(bind_thread({100'000}), PreconditionError);
    EXPECT_THROW(bind_thread({}), PreconditionError);
  }}.join();
}

TEST(VisibleGpus, AreNumberedInOrderWithABusEach) {
  int ordinal = 0;
  for (VisibleGpu const& gpu : visible_gpus()) {
    EXPECT_EQ(gpu.ordinal, ordinal++);
    EXPECT_EQ(gpu.bus.size(), std::string{"0000:17:00.0"}.size());
  }
}

}  // namespace
}  // namespace offstage::topology
