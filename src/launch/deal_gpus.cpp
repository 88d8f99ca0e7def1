#include "launch/deal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::launch {
namespace {

using topology::VisibleGpu;

/// Distance outweighs evenness: costs are distance * this + the GPU's number within its domain.
constexpr int distance_weight = 10'000;
constexpr int invisible = std::numeric_limits<int>::max();
constexpr int none = -1;

/// The assignment of least total cost that serves most ranks: shortest augmenting paths.
class Matching {
 public:
  Matching(topology::Topology const& node, std::vector<RankOnNode> const& ranks);

  [[nodiscard]] std::vector<int> assign();
  /// Any further rank takes the GPU with the fewest users, then the nearest.
  void share(std::vector<int>& gpu_of);
  /// The rank that holds a GPU which `rank` sees, and that GPU.
  [[nodiscard]] std::pair<int, int> rival_of(int rank) const;
  [[nodiscard]] bool sees_any(int rank) const;
  [[nodiscard]] int gpus() const { return static_cast<int>(gpus_.size()); }
  [[nodiscard]] VisibleGpu const& gpu(int index) const { return gpus_[at(index)]; }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  [[nodiscard]] int cost(int rank, int gpu) const { return cost_[at(rank)][at(gpu)]; }
  bool serve(int rank);

  std::vector<VisibleGpu> gpus_;        ///< each once, as the first rank that sees it names it
  std::vector<std::vector<int>> cost_;  ///< [rank][gpu]
  std::vector<int> holder_;             ///< of each GPU
};

/// From the NUMA domain of a rank's mask that is nearest to the GPU.
int distance_to(topology::Topology const& node, std::vector<int> const& domains, int numa) {
  int nearest = topology::distance(node, -1, -1);
  for (int const domain : domains) {
    nearest = std::min(nearest, topology::distance(node, domain, numa));
  }
  return nearest;
}

std::vector<int> domains_of(topology::Topology const& node, std::vector<int> const& cpus) {
  std::vector<int> domains;
  for (int const cpu : cpus) {
    int const numa = topology::numa_of_cpu(node, cpu);
    if (std::ranges::find(domains, numa) == domains.end()) {
      domains.push_back(numa);
    }
  }
  return domains;
}

Matching::Matching(topology::Topology const& node, std::vector<RankOnNode> const& ranks) {
  for (RankOnNode const& rank : ranks) {
    for (VisibleGpu const& gpu : rank.gpus) {
      bool const known =
          std::ranges::any_of(gpus_, [&](VisibleGpu const& other) { return other.same_as(gpu); });
      if (!known) {
        gpus_.push_back(gpu);
      }
    }
  }
  holder_.assign(gpus_.size(), none);
  std::vector<int> numa;
  std::vector<int> number;  // within its domain: what deals GPUs evenly over the domains
  for (VisibleGpu const& gpu : gpus_) {
    int const domain = numa_of_gpu(node, gpu);
    number.push_back(static_cast<int>(std::ranges::count(numa, domain)));
    numa.push_back(domain);
  }
  for (RankOnNode const& rank : ranks) {
    auto const domains = domains_of(node, rank.allowed_cpus);
    auto& row = cost_.emplace_back();
    for (std::size_t g = 0; g < gpus_.size(); ++g) {
      bool const sees = std::ranges::any_of(
          rank.gpus, [&](VisibleGpu const& gpu) { return gpu.same_as(gpus_[g]); });
      row.push_back(sees ? distance_to(node, domains, numa[g]) * distance_weight + number[g]
                         : invisible);
    }
  }
}

/// Finds the cheapest way to give `rank` a GPU, moving others to another one if need be.
bool Matching::serve(int rank) {
  std::vector<int> length = cost_[at(rank)];
  std::vector<int> before(gpus_.size(), none);  // the GPU that the holder is moved from
  for (bool changed = true; changed;) {
    changed = false;
    for (int from = 0; from < gpus(); ++from) {
      int const holder = holder_[at(from)];
      if (holder == none || length[at(from)] == invisible) {
        continue;
      }
      for (int to = 0; to < gpus(); ++to) {
        if (to == from || cost(holder, to) == invisible) {
          continue;
        }
        int const moved = length[at(from)] - cost(holder, from) + cost(holder, to);
        if (moved < length[at(to)]) {
          length[at(to)] = moved;
          before[at(to)] = from;
          changed = true;
        }
      }
    }
  }
  int best = none;
  for (int gpu = 0; gpu < gpus(); ++gpu) {
    bool const free = holder_[at(gpu)] == none && length[at(gpu)] != invisible;
    if (free && (best == none || length[at(gpu)] < length[at(best)])) {
      best = gpu;
    }
  }
  if (best == none) {
    return false;
  }
  while (before[at(best)] != none) {
    holder_[at(best)] = holder_[at(before[at(best)])];
    best = before[at(best)];
  }
  holder_[at(best)] = rank;
  return true;
}

std::vector<int> Matching::assign() {
  for (int rank = 0; rank < static_cast<int>(cost_.size()); ++rank) {
    serve(rank);
  }
  std::vector<int> gpu_of(cost_.size(), none);
  for (int gpu = 0; gpu < gpus(); ++gpu) {
    if (holder_[at(gpu)] != none) {
      gpu_of[at(holder_[at(gpu)])] = gpu;
    }
  }
  return gpu_of;
}

void Matching::share(std::vector<int>& gpu_of) {
  for (int rank = 0; rank < static_cast<int>(gpu_of.size()); ++rank) {
    if (gpu_of[at(rank)] != none || !sees_any(rank)) {
      continue;
    }
    auto const rating = [&](int gpu) {
      return std::pair{std::ranges::count(gpu_of, gpu), cost(rank, gpu)};
    };
    int best = none;
    for (int gpu = 0; gpu < gpus(); ++gpu) {
      if (cost(rank, gpu) != invisible && (best == none || rating(gpu) < rating(best))) {
        best = gpu;
      }
    }
    gpu_of[at(rank)] = best;
  }
}

std::pair<int, int> Matching::rival_of(int rank) const {
  int gpu = 0;
  while (cost(rank, gpu) == invisible) {
    ++gpu;
  }
  return {holder_[at(gpu)], gpu};
}

bool Matching::sees_any(int rank) const {
  return std::ranges::any_of(cost_[at(rank)], [](int one) { return one != invisible; });
}

bool see_the_same(RankOnNode const& one, RankOnNode const& two) {
  return one.allowed_cpus == two.allowed_cpus &&
         std::ranges::equal(one.gpus, two.gpus, [](VisibleGpu const& a, VisibleGpu const& b) {
           return a.ordinal == b.ordinal && a.same_as(b);
         });
}

/// Ranks that nothing tells apart take their GPUs in CUDA's order, which costs the same.
void put_in_order(std::vector<RankOnNode> const& ranks, std::vector<int>& gpu_of) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      if (gpu_of[i] > gpu_of[j] && gpu_of[j] != none && see_the_same(ranks[i], ranks[j])) {
        std::swap(gpu_of[i], gpu_of[j]);
      }
    }
  }
}

/// Whether the node shows fewer GPUs than it should, and would have enough. Slices by MIG count one
/// by one for Slurm, and a process sees one alone.
bool lacks_gpus(std::vector<RankOnNode> const& ranks, VisibleGpu const& gpu, int gpus) {
  int const given = ranks.front().given_gpus;
  return given > gpus && given >= std::ssize(ranks) && gpu.name.find("MIG") == std::string::npos;
}

[[noreturn]] void refuse(std::vector<RankOnNode> const& ranks, int first, int second,
                         VisibleGpu const& gpu, int gpus) {
  auto const [low, high] = std::minmax(ranks[static_cast<std::size_t>(first)].world_rank,
                                       ranks[static_cast<std::size_t>(second)].world_rank);
  if (lacks_gpus(ranks, gpu, gpus)) {
    throw IoError{fmt::format(
        "ranks {} and {} would both use GPU {} ({}): Slurm gave {} GPUs of their node, and CUDA "
        "shows {}; exclude the node (Slurm: --exclude), or correct CUDA_VISIBLE_DEVICES if it "
        "hides some",
        low, high, gpu.bus, gpu.name, ranks.front().given_gpus, gpus)};
  }
  throw UsageError{fmt::format(
      "ranks {} and {} would both use GPU {} ({}): the {} rank{} of their node see{} {} GPU{}; ask "
      "for one GPU per rank (Slurm: --gpus-per-node; of slices by MIG --gpu-bind=single:1; else "
      "another CUDA_VISIBLE_DEVICES for each rank), start fewer ranks, or set "
      "device.share-gpu=true",
      low, high, gpu.bus, gpu.name, ranks.size(), ranks.size() == 1 ? "" : "s",
      ranks.size() == 1 ? "s" : "", gpus, gpus == 1 ? "" : "s")};
}

}  // namespace

std::vector<VisibleGpu> fit_gpus(std::vector<VisibleGpu> gpus) {
  auto const is_fit = [](VisibleGpu const& gpu) {
    return gpu.major == 0 || gpu.major >= cuda::least_major;
  };
  if (std::ranges::any_of(gpus, is_fit)) {
    std::erase_if(gpus, [&](VisibleGpu const& gpu) { return !is_fit(gpu); });
  }
  return gpus;
}

int numa_of_gpu(topology::Topology const& node, VisibleGpu const& gpu) {
  auto const found = std::ranges::find(node.gpus, gpu.bus, &topology::Device::bus);
  return found == node.gpus.end() ? -1 : found->numa;
}

std::vector<std::optional<VisibleGpu>> deal_gpus(topology::Topology const& node,
                                                 std::vector<RankOnNode> const& ranks, bool share) {
  Matching matching{node, ranks};
  auto gpu_of = matching.assign();
  for (int rank = 0; rank < static_cast<int>(ranks.size()) && !share; ++rank) {
    if (gpu_of[static_cast<std::size_t>(rank)] == none && matching.sees_any(rank)) {
      auto const [rival, gpu] = matching.rival_of(rank);
      refuse(ranks, rival, rank, matching.gpu(gpu), matching.gpus());
    }
  }
  matching.share(gpu_of);
  put_in_order(ranks, gpu_of);

  std::vector<std::optional<VisibleGpu>> dealt(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (gpu_of[rank] != none) {
      // Its number is this rank's own: CUDA_VISIBLE_DEVICES may differ between ranks.
      VisibleGpu const& chosen = matching.gpu(gpu_of[rank]);
      dealt[rank] = *std::ranges::find_if(
          ranks[rank].gpus, [&](VisibleGpu const& gpu) { return gpu.same_as(chosen); });
    }
  }
  return dealt;
}

}  // namespace offstage::launch
