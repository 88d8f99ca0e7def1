#include "launch/shortage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace offstage::launch {
namespace {

using Found = std::vector<Shortage>;

/// "ranks 0, 1 and 6 more", for lines that stay readable with hundreds.
std::string name_ranks(std::vector<int> const& ranks) {
  constexpr std::size_t shown = 4;
  auto const end = ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), shown));
  std::string text =
      fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks.begin(), end, ", "));
  if (ranks.size() > shown) {
    text += fmt::format(" and {} more", ranks.size() - shown);
  }
  return text;
}

void look_at_threads(NodeFigures const& node, Found& found) {
  std::set<int> cpus;
  int threads = 0;
  for (RankFigures const& rank : node.ranks) {
    cpus.insert(rank.cpus.begin(), rank.cpus.end());
    threads += rank.threads;
  }
  if (threads > static_cast<int>(cpus.size())) {
    found.push_back(
        {fmt::format(
             "{} threads share {} core{} on {}: expect a slow run; start fewer ranks, lower "
             "run.threads or ask for more cores (Slurm: --cpus-per-task)",
             threads, cpus.size(), cpus.size() == 1 ? "" : "s", node.host),
         {}});
  }
}

/// mpirun binds each of a few ranks to one core by default, and Slurm gives a task one. OpenMP,
/// told to bind, has put the first thread on its first place before the program begins.
void look_at_masks(NodeFigures const& node, Found& found) {
  std::vector<int> narrow;
  bool openmp_binds = false;
  std::set<int> used;
  for (RankFigures const& rank : node.ranks) {
    used.insert(rank.inherited.begin(), rank.inherited.end());
    if (rank.inherited_cores == 1 && !rank.threads_given) {
      narrow.push_back(rank.world_rank);
      openmp_binds = openmp_binds || rank.openmp_binds;
    }
  }
  if (!narrow.empty() && static_cast<int>(used.size()) < node.cpus) {
    found.push_back(
        {fmt::format(
             "{} may use one core of the {} CPUs of {}, so one thread does all work; give a "
             "rank more ({}), or set run.threads=1 if it is meant so",
             name_ranks(narrow), node.cpus, node.host,
             openmp_binds ? "unset OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY: ranks "
                            "bind themselves"
                          : "mpirun: --bind-to none; Slurm: --cpus-per-task"),
         {}});
  }
}

void look_at_memory(NodeFigures const& node, Needs const& needs, Found& found) {
  if (needs.host_memory > node.memory.bytes) {
    found.push_back(
        {fmt::format("the run plans {} of memory on {}, but {} {}; lower tiers.host-memory or "
                     "device.memory, start fewer ranks per node, or ask for more ({})",
                     format_bytes(needs.host_memory), node.host,
                     node.memory.of_job ? "the job's limit is" : "the node has",
                     format_bytes(node.memory.bytes),
                     node.memory.of_job ? "Slurm: --mem" : "more nodes"),
         ExitCode::usage});
  } else if (needs.allocation > node.memory_left) {
    found.push_back(
        {fmt::format("the run is to take {} of memory on {}, but {} is left; it may be killed: "
                     "lower tiers.host-memory, end other programs or ask for more (Slurm: --mem)",
                     format_bytes(needs.allocation), node.host, format_bytes(node.memory_left)),
         {}});
  }
}

void look_at_address_space(NodeFigures const& node, Needs const& needs, Found& found) {
  Bytes const part = needs.allocation / std::max<Bytes>(1, std::ssize(node.ranks));
  std::vector<int> low;
  Bytes lowest = part;
  for (RankFigures const& rank : node.ranks) {
    if (rank.address_space < part) {
      low.push_back(rank.world_rank);
      lowest = std::min(lowest, rank.address_space);
    }
  }
  if (!low.empty()) {
    found.push_back(
        {fmt::format("{} on {} may map {} more (ulimit -v), but a rank's part of the plan takes "
                     "{}; raise the limit (ulimit -v unlimited; Slurm: "
                     "PropagateResourceLimitsExcept=AS), or lower tiers.host-memory",
                     name_ranks(low), node.host, format_bytes(lowest), format_bytes(part)),
         ExitCode::usage});
  }
}

void look_at_asynchronous_io(NodeFigures const& node, Needs const& needs, Found& found) {
  if (node.aio_most < 0 || node.aio_used < 0) {
    return;
  }
  std::int64_t const wanted = needs.aio_requests * std::ssize(node.ranks);
  if (wanted > node.aio_most - node.aio_used) {
    found.push_back(
        {fmt::format("{} rank{} on {} want {} asynchronous I/O requests, but fs.aio-max-nr={} with "
                     "fs.aio-nr={} in use leaves {}; raise it as root: sysctl fs.aio-max-nr={}",
                     node.ranks.size(), node.ranks.size() == 1 ? "" : "s", node.host, wanted,
                     node.aio_most, node.aio_used,
                     std::max<std::int64_t>(0, node.aio_most - node.aio_used),
                     std::max<std::int64_t>(1'048'576, 2 * (node.aio_used + wanted))),
         ExitCode::io});
  }
}

void look_at_storage(NodeFigures const& node, std::string const& path, int numa, Found& found) {
  bool const near = std::ranges::any_of(
      node.ranks, [&](RankFigures const& rank) { return rank.numa < 0 || rank.numa == numa; });
  if (numa < 0 || near) {
    return;
  }
  std::set<int> domains;
  for (RankFigures const& rank : node.ranks) {
    domains.insert(rank.numa);
  }
  std::vector<std::string> nearer;
  for (topology::Device const& drive : node.drives) {
    if (domains.contains(drive.numa)) {
      nearer.push_back(drive.name);
    }
  }
  found.push_back(
      {fmt::format("tiers.path={} lies on a drive of NUMA domain {} of {}, but all ranks run on "
                   "domain {}: expect slower storage; {}",
                   path, numa, node.host, fmt::join(domains, ", "),
                   nearer.empty() ? "start ranks on that domain"
                                  : fmt::format("nearer drives: {}", fmt::join(nearer, ", "))),
       {}});
}

}  // namespace

std::vector<Shortage> find_shortages(NodeFigures const& node, Needs const& needs) {
  Found found;
  look_at_threads(node, found);
  look_at_masks(node, found);
  look_at_memory(node, needs, found);
  look_at_address_space(node, needs, found);
  look_at_asynchronous_io(node, needs, found);
  for (std::size_t path = 0; path < node.storage_numas.size(); ++path) {
    look_at_storage(node, needs.storage_paths.at(path), node.storage_numas[path], found);
  }
  return found;
}

}  // namespace offstage::launch
