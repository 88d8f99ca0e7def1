#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "platform/topology/topology.hpp"

namespace offstage::topology {
namespace {

namespace fs = std::filesystem;

/// Stacked devices are a few deep; a loop among them ends here.
constexpr int deepest_stack = 8;

int numa_of_folder(Topology const& topology, fs::path const& folder, int depth) {
  std::error_code error;
  fs::path device = fs::canonical(folder, error);
  if (error || depth > deepest_stack) {
    return -1;
  }
  if (fs::exists(device / "partition", error)) {
    device = device.parent_path();
  }
  auto const drive = std::ranges::find(topology.drives, device.filename().string(), &Device::name);
  if (drive != topology.drives.end()) {
    return drive->numa;
  }
  std::optional<int> common;
  for (auto const& part : fs::directory_iterator{device / "slaves", error}) {
    int const numa = numa_of_folder(topology, part.path(), depth + 1);
    if (numa < 0 || numa != common.value_or(numa)) {
      return -1;
    }
    common = numa;
  }
  return common.value_or(-1);
}

NumaNode const* node_of(Topology const& topology, int index) {
  auto const found = std::ranges::find(topology.numa, index, &NumaNode::index);
  return found == topology.numa.end() ? nullptr : &*found;
}

}  // namespace

int numa_of_block_device(Topology const& topology, std::string const& folder) {
  return numa_of_folder(topology, folder, 0);
}

int numa_of_path(Topology const& topology, std::string const& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return -1;
  }
  return numa_of_block_device(
      topology, fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev)));
}

int numa_of_cpu(Topology const& topology, int cpu) {
  for (NumaNode const& node : topology.numa) {
    if (std::ranges::binary_search(node.cpus, cpu)) {
      return node.index;
    }
  }
  return -1;
}

int distance(Topology const& topology, int numa, int other) {
  NumaNode const* const one = node_of(topology, numa);
  NumaNode const* const two = node_of(topology, other);
  if (one == nullptr || two == nullptr) {
    return 3;
  }
  if (one == two) {
    return 0;
  }
  return one->package >= 0 && one->package == two->package ? 1 : 2;
}

}  // namespace offstage::topology
