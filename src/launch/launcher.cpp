#include "launch/launcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/cgroup.hpp"
#include "base/team.hpp"
#include "launch/deal.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/process_memory.hpp"
#include "platform/slurm/job.hpp"

namespace offstage::launch {
namespace {

/// A rank as lines: its number and given_gpus, its CPUs, then ordinal, bus, UUID and name of each
/// GPU.
std::string text_of(RankOnNode const& rank) {
  std::string text = fmt::format("{} {}\n{}\n", rank.world_rank, rank.given_gpus,
                                 fmt::join(rank.allowed_cpus, " "));
  for (topology::VisibleGpu const& gpu : rank.gpus) {
    text += fmt::format("{} {} {} {}\n", gpu.ordinal, gpu.bus, gpu.uuid.empty() ? "-" : gpu.uuid,
                        gpu.name);
  }
  return text;
}

std::vector<int> numbers_in(std::string const& line) {
  std::istringstream words{line};
  std::vector<int> numbers;
  for (int number{}; words >> number;) {
    numbers.push_back(number);
  }
  return numbers;
}

RankOnNode rank_in(std::string const& text) {
  std::istringstream lines{text};
  RankOnNode rank;
  std::string line;
  std::getline(lines, line);
  auto const facts = numbers_in(line);
  rank.world_rank = facts.at(0);
  rank.given_gpus = facts.at(1);
  std::getline(lines, line);
  rank.allowed_cpus = numbers_in(line);
  while (std::getline(lines, line)) {
    std::istringstream words{line};
    topology::VisibleGpu gpu;
    words >> gpu.ordinal >> gpu.bus >> gpu.uuid >> std::ws;
    std::getline(words, gpu.name);
    if (gpu.uuid == "-") {
      gpu.uuid.clear();
    }
    rank.gpus.push_back(gpu);
  }
  return rank;
}

std::vector<int> all_cpus(topology::Topology const& node) {
  std::vector<int> cpus;
  for (std::vector<int> const& core : node.cores) {
    cpus.insert(cpus.end(), core.begin(), core.end());
  }
  std::ranges::sort(cpus);
  return cpus;
}

RankOnNode describe(int world_rank, RankPlace const& place) {
  auto visible = topology::visible_gpus();
  auto const seen = std::ssize(visible);
  RankOnNode rank{world_rank, place.inherited, fit_gpus(std::move(visible)),
                  slurm::given_gpus([](char const* name) { return std::getenv(name); })};
  int const left_out = static_cast<int>(seen - std::ssize(rank.gpus));
  rank.given_gpus = std::max(0, rank.given_gpus - left_out);
  // The mask is empty where the system does not tell it.
  if (!place.topology.real || rank.allowed_cpus.empty()) {
    rank.allowed_cpus = all_cpus(place.topology);
  }
  if (!place.topology.real && rank.gpus.empty()) {
    for (topology::Device const& gpu : place.topology.gpus) {
      rank.gpus.push_back({static_cast<int>(rank.gpus.size()), gpu.bus, gpu.name});
    }
  }
  return rank;
}

/// False if OpenMP leaves its threads on the CPUs of the thread that starts them.
bool openmp_binds() {
#ifdef _OPENMP
  return omp_get_proc_bind() != omp_proc_bind_false;
#else
  return false;
#endif
}

void go_to(RankPlace& place, PlacementRules const& rules) {
  place.threads = place.placement.threads;
  if (!place.topology.real) {
    // A rehearsal may show more CPUs than there are.
    int const real = static_cast<int>(place.inherited.size()) / place.local_ranks;
    place.threads = rules.threads > 0 ? rules.threads : std::max(1, real);
  } else if (!place.inherited.empty()) {
    place.bound = topology::bind_thread(place.placement.cpus);
    place.memory_given = topology::has_memory_policy();
    if (!place.memory_given) {
      topology::prefer_memory_of(place.placement.numa);
    }
  }
  if (rules.threads == 0) {
    place.threads = std::min(place.threads, most_of_team());
  }
  set_team_size(place.threads);
  place.bound = place.bound && !openmp_binds();
}

/// A rank's figures as lines: its numbers, the mask it had, the CPUs it runs on.
std::string figures_text(RankPlace const& place) {
  return fmt::format("{} {} {} {} {} {} {}\n{}\n{}\n", place.world_rank, place.threads,
                     place.threads_given ? 1 : 0, openmp_binds() ? 1 : 0, place.placement.numa,
                     memory::address_space_left(), count_cores(place.topology, place.inherited),
                     fmt::join(place.inherited, " "),
                     fmt::join(place.bound ? place.placement.cpus : place.inherited, " "));
}

RankFigures figures_in(std::string const& text) {
  std::istringstream lines{text};
  RankFigures rank;
  std::string line;
  std::getline(lines, line);
  std::istringstream numbers{line};
  numbers >> rank.world_rank >> rank.threads >> rank.threads_given >> rank.openmp_binds >>
      rank.numa >> rank.address_space >> rank.inherited_cores;
  std::getline(lines, line);
  rank.inherited = numbers_in(line);
  std::getline(lines, line);
  rank.cpus = numbers_in(line);
  return rank;
}

/// What this process alone sees of the node.
NodeFigures look_around(RankPlace const& place, Needs const& needs) {
  std::vector<int> storage_numas;
  storage_numas.reserve(needs.storage_paths.size());
  for (std::string const& path : needs.storage_paths) {
    storage_numas.push_back(topology::numa_of_path(place.topology, path));
  }
  return {.host = place.host,
          .ranks = {},
          .cpus = static_cast<int>(all_cpus(place.topology).size()),
          .memory = memory::memory_limit(),
          .memory_left = memory::available_bytes(),
          .aio_most = number_in("/proc/sys/fs/aio-max-nr").value_or(-1),
          .aio_used = number_in("/proc/sys/fs/aio-nr").value_or(-1),
          .storage_numas = std::move(storage_numas),
          .drives = place.topology.drives};
}

}  // namespace

RankPlace take_place(mpi::Communicator const& comm, PlacementRules const& given) {
  auto const node = comm.split_by_node();
  RankPlace place;
  place.host = cpu::host_name();
  place.world_rank = comm.rank();
  place.local_rank = node.rank();
  place.local_ranks = node.size();
  place.threads_given = given.threads > 0;
  constexpr double none = 1e9;  // cores
  double const least = node.minimum(cpu_quota().value_or(none));
  place.quota = least < none ? least : 0.0;
  PlacementRules rules = given;
  rules.quota = place.quota;
  RankOnNode mine;
  mpi::agree(comm, [&] {
    place.inherited = cpu::allowed_cpus();
    place.topology = topology::discover();
    mine = describe(comm.rank(), place);
  });
  auto const texts = node.all_gather_texts(text_of(mine));
  mpi::agree(comm, [&] {
    std::vector<RankOnNode> ranks;
    std::ranges::transform(texts, std::back_inserter(ranks), rank_in);
    place.placement =
        launch::place(place.topology, ranks, rules)[static_cast<std::size_t>(place.local_rank)];
    go_to(place, rules);
  });
  return place;
}

std::vector<Shortage> shortages(mpi::Communicator const& node, RankPlace const& place,
                                Needs const& needs) {
  // Read before any rank goes on to take what is counted here.
  NodeFigures figures = look_around(place, needs);
  for (std::string const& text : node.all_gather_texts(figures_text(place))) {
    figures.ranks.push_back(figures_in(text));
  }
  // Cgroups may differ between tasks, and figures move: the tightest holds for all.
  for (memory::MemoryLimit const& limit : node.all_gather_value(figures.memory)) {
    if (limit.bytes < figures.memory.bytes) {
      figures.memory = limit;
    }
  }
  figures.memory_left = node.minimum(figures.memory_left);
  figures.aio_used = node.maximum(figures.aio_used);
  return find_shortages(figures, needs);
}

}  // namespace offstage::launch
