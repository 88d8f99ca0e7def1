#include "launch/placement.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "launch/deal.hpp"

namespace offstage::launch {
namespace {

bool overlap(std::vector<int> const& one, std::vector<int> const& two) {
  return std::ranges::any_of(one, [&](int cpu) { return std::ranges::binary_search(two, cpu); });
}

/// The domain that holds all CPUs; -1 if they lie in several. The cores' updates take the memory
/// channels of all of them, so that the GPU's domain alone would be the wrong place.
int numa_of_part(topology::Topology const& node, std::vector<int> const& cpus) {
  int const first = topology::numa_of_cpu(node, cpus.front());
  bool const alone =
      std::ranges::all_of(cpus, [&](int cpu) { return topology::numa_of_cpu(node, cpu) == first; });
  return alone ? first : -1;
}

}  // namespace

int count_cores(topology::Topology const& node, std::vector<int> const& cpus) {
  std::ptrdiff_t cores = std::ranges::count_if(
      node.cores, [&](std::vector<int> const& core) { return overlap(core, cpus); });
  cores += std::ranges::count_if(cpus, [&](int cpu) {
    return std::ranges::none_of(node.cores, [&](std::vector<int> const& core) {
      return std::ranges::find(core, cpu) != core.end();
    });
  });
  return static_cast<int>(cores);
}

int threads_within(double quota, int ranks) {
  constexpr double most = 1e6;
  return std::max(1, static_cast<int>(std::lround(std::min(quota / ranks, most))));
}

std::vector<Placement> place(topology::Topology const& node, std::vector<RankOnNode> const& ranks,
                             PlacementRules const& rules) {
  for (RankOnNode const& rank : ranks) {
    require(!rank.allowed_cpus.empty(), "place: a rank's mask holds a CPU");
    require(std::ranges::is_sorted(rank.allowed_cpus), "place: masks are ascending");
  }
  auto const gpus = deal_gpus(node, ranks, rules.share_gpu);
  std::vector<int> near;
  near.reserve(gpus.size());
  for (auto const& gpu : gpus) {
    near.push_back(gpu ? numa_of_gpu(node, *gpu) : -1);
  }
  auto const parts = deal_cpus(node, ranks, near, rules.threads);
  std::vector<Placement> placements;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto const sharing = std::ranges::count_if(
        parts, [&](std::vector<int> const& other) { return overlap(other, parts[r]); });
    int cores = count_cores(node, parts[r]) / static_cast<int>(sharing);
    if (rules.quota > 0.0) {
      cores = std::min(cores, threads_within(rules.quota, static_cast<int>(ranks.size())));
    }
    auto const gpu_ranks = std::ranges::count_if(
        gpus, [&](auto const& other) { return gpus[r] && other && other->same_as(*gpus[r]); });
    placements.push_back({gpus[r], numa_of_part(node, parts[r]), parts[r],
                          rules.threads > 0 ? rules.threads : std::max(1, cores),
                          static_cast<int>(gpu_ranks)});
  }
  return placements;
}

}  // namespace offstage::launch
