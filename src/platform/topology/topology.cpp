#include "platform/topology/topology.hpp"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>

#include "base/error.hpp"

namespace offstage::topology {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

void check(int status, char const* action) {
  if (status != 0) {
    throw Error{ExitCode::internal, fmt::format("hwloc: cannot {}: {}", action,
                                                std::generic_category().message(errno))};
  }
}

Handle load() {
  hwloc_topology_t made = nullptr;
  check(hwloc_topology_init(&made), "start");
  Handle handle{made};
  // These plugins ask drivers or an X server for what PCI shows as well; absent ones are no error.
  for (char const* component : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"}) {
    hwloc_topology_set_components(made, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  check(hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), "set flags");
  check(hwloc_topology_set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_IMPORTANT), "set filters");
  check(hwloc_topology_load(made),
        "read the machine's topology (HWLOC_XMLFILE and HWLOC_SYNTHETIC name another source)");
  return handle;
}

std::vector<int> members_of(hwloc_const_bitmap_t set) {
  std::vector<int> members;
  if (set == nullptr || hwloc_bitmap_weight(set) < 0) {
    return members;
  }
  for (int one = hwloc_bitmap_first(set); one >= 0; one = hwloc_bitmap_next(set, one)) {
    members.push_back(one);
  }
  return members;
}

/// True for memory that hwloc names another kind than the ordinary one: HBM, CXL-DRAM, GPUMemory.
bool is_special(hwloc_obj_t node) {
  return node->subtype != nullptr && std::string_view{node->subtype} != "DRAM";
}

/// hwloc gives memory without CPUs those of the place where it lies: of a core, a socket, the
/// machine. So a CPU belongs to the node with the fewest around it; of two kinds of memory at the
/// same CPUs the ordinary one, then the first.
std::vector<NumaNode> numa_of(hwloc_topology_t topology) {
  std::vector<hwloc_obj_t> objects;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    objects.push_back(object);
  }
  std::ranges::sort(objects, {}, [](hwloc_obj_t object) {
    return std::tuple{hwloc_bitmap_weight(object->cpuset), is_special(object), object->os_index};
  });
  std::set<int> owned;
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t const object : objects) {
    auto const package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
    NumaNode node{static_cast<int>(object->os_index),
                  package != nullptr ? static_cast<int>(package->logical_index) : -1,
                  {}};
    for (int const cpu : members_of(object->cpuset)) {
      if (owned.insert(cpu).second) {
        node.cpus.push_back(cpu);
      }
    }
    if (!node.cpus.empty()) {
      nodes.push_back(std::move(node));
    }
  }
  std::ranges::sort(nodes, {}, &NumaNode::index);
  return nodes;
}

std::vector<std::vector<int>> cores_of(hwloc_topology_t topology) {
  std::vector<std::vector<int>> cores;
  bool const has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  auto const type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
    cores.push_back(members_of(object->cpuset));
  }
  return cores;
}

/// The first domain that an I/O object hangs below, unless that says nothing: -1.
int nearest_numa(hwloc_topology_t topology, hwloc_obj_t object, Topology const& known) {
  auto const* const near = hwloc_get_non_io_ancestor_obj(topology, object);
  if (near == nullptr || near->nodeset == nullptr) {
    return -1;
  }
  std::vector<int> found;
  for (NumaNode const& node : known.numa) {
    if (hwloc_bitmap_isset(near->nodeset, static_cast<unsigned>(node.index)) != 0) {
      found.push_back(node.index);
    }
  }
  bool const anywhere = found.size() == known.numa.size() && found.size() > 1;
  return found.empty() || anywhere ? -1 : found.front();
}

std::string bus_of(hwloc_obj_t pci) {
  auto const& at = pci->attr->pcidev;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", static_cast<unsigned>(at.domain), at.bus, at.dev,
                     at.func);
}

/// The PCI device that a device of the operating system belongs to, or null.
hwloc_obj_t pci_above(hwloc_obj_t object) {
  while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) {
    object = object->parent;
  }
  return object;
}

/// The name of the first device of this kind below a PCI device; empty if there is none.
std::string name_below(hwloc_obj_t pci, hwloc_obj_osdev_type_t kind) {
  for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == kind) {
      return child->name != nullptr ? child->name : "";
    }
  }
  return {};
}

/// Compute nodes show their GPUs as bare PCI devices; a board's video chip is none.
std::vector<Device> gpus_of(hwloc_topology_t topology, Topology const& known) {
  constexpr unsigned display_class = 0x03;
  constexpr unsigned nvidia = 0x10de;
  std::vector<Device> gpus;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_pcidev(topology, object)) != nullptr) {
    auto const& pci = object->attr->pcidev;
    std::string name = name_below(object, HWLOC_OBJ_OSDEV_COPROC);
    bool const computes = !name.empty();
    if (!computes && (pci.class_id >> 8 != display_class || pci.vendor_id != nvidia)) {
      continue;
    }
    if (!computes) {
      name = name_below(object, HWLOC_OBJ_OSDEV_GPU);
    }
    gpus.push_back(
        {bus_of(object), name.empty() ? "gpu" : name, nearest_numa(topology, object, known)});
  }
  std::ranges::sort(gpus, {}, &Device::bus);
  return gpus;
}

std::vector<Device> drives_of(hwloc_topology_t topology, Topology const& known) {
  std::vector<Device> drives;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_BLOCK || object->name == nullptr) {
      continue;
    }
    auto* const pci = pci_above(object);
    drives.push_back(
        {pci != nullptr ? bus_of(pci) : "", object->name, nearest_numa(topology, object, known)});
  }
  return drives;
}

}  // namespace

Topology discover() {
  Handle const handle = load();
  Topology topology;
  topology.numa = numa_of(handle.get());
  topology.cores = cores_of(handle.get());
  topology.gpus = gpus_of(handle.get(), topology);
  topology.drives = drives_of(handle.get(), topology);
  topology.real = hwloc_topology_is_thissystem(handle.get()) != 0;
  return topology;
}

}  // namespace offstage::topology
