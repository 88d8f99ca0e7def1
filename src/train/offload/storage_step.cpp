#include "train/offload/storage_step.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "base/error.hpp"
#include "platform/mpi/communicator.hpp"
#include "tiers/path_settings.hpp"

namespace offstage::train {

namespace {

using tiers::DirectionTraffic;
using tiers::PathTraffic;

void add_to(DirectionTraffic& sum, DirectionTraffic const& more) {
  sum.bytes += more.bytes;
  sum.transfers += more.transfers;
  sum.seconds += more.seconds;
  sum.waited += more.waited;
  sum.longest_wait = std::max(sum.longest_wait, more.longest_wait);
  sum.longest_transfer = std::max(sum.longest_transfer, more.longest_transfer);
}

DirectionTraffic since(DirectionTraffic const& before, DirectionTraffic const& after) {
  // Its longest wait and transfer are those since the start, because a maximum has no difference.
  DirectionTraffic step = after;
  step.bytes -= before.bytes;
  step.transfers -= before.transfers;
  step.seconds -= before.seconds;
  step.waited -= before.waited;
  return step;
}

double effective_rate(Bytes fetched, Seconds in_tiers, int workers) {
  double const seconds = in_tiers.count() / workers;
  return fetched > 0 && seconds > 0.0 ? 2.0 * static_cast<double>(fetched) / seconds : 0.0;
}

/// Figures that are sent between ranks as plain bytes.
struct PathFigures {
  PathTraffic traffic;
  Bytes resident{};
};
struct StepFigures {
  std::int64_t paths{};
  Seconds seconds{};
  std::int64_t hits{};
  std::int64_t misses{};
  Bytes host{};
  double effective{};
};
static_assert(std::is_trivially_copyable_v<PathFigures>);
static_assert(std::is_trivially_copyable_v<StepFigures>);

/// Gathers the figures of all ranks, rank by rank.
std::vector<PathFigures> gather_paths(StorageStep const& mine, mpi::Communicator const& comm) {
  std::size_t const count = mine.paths.size();
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<PathFigures> all(count * ranks);
  std::size_t const first = static_cast<std::size_t>(comm.rank()) * count;
  for (std::size_t i = 0; i < count; ++i) {
    all[first + i] = {mine.paths[i].traffic, mine.paths[i].resident_bytes};
  }
  comm.all_gather(std::as_writable_bytes(std::span{all}));
  return all;
}

}  // namespace

void add_to(PathTraffic& sum, PathTraffic const& more) {
  add_to(sum.read, more.read);
  add_to(sum.write, more.write);
}

StorageStep difference(tiers::Traffic const& before, tiers::Traffic const& after,
                       StorageFacts const& facts) {
  require(before.paths.size() == facts.paths.size() && after.paths.size() == facts.paths.size() &&
              facts.residence.paths.size() == facts.paths.size(),
          "counters, paths and residence are of the same paths");
  require(facts.workers > 0 && facts.nodes > 0, "a run has workers and nodes");
  StorageStep step{.nodes = facts.nodes,
                   .seconds = facts.seconds,
                   .hits = after.hits - before.hits,
                   .misses = after.misses - before.misses,
                   .host_bytes = facts.residence.host};
  step.effective_rate = effective_rate(
      after.fetched_bytes - before.fetched_bytes,
      after.fetch_seconds - before.fetch_seconds + after.flush_seconds - before.flush_seconds,
      facts.workers);
  for (std::size_t i = 0; i < facts.paths.size(); ++i) {
    tiers::PathSettings const& settings = facts.paths[i];
    step.paths.push_back({.directory = settings.directory,
                          .emulated = settings.emulation.has_value(),
                          .endurance = settings.endurance,
                          .transfers_at_once = settings.transfers_at_once(),
                          .sharing_transfers = settings.transfers(),
                          .traffic = {.read = since(before.paths[i].read, after.paths[i].read),
                                      .write = since(before.paths[i].write, after.paths[i].write)},
                          .resident_bytes = facts.residence.paths[i]});
  }
  return step;
}

StorageStep sum_over_ranks(StorageStep const& mine, mpi::Communicator const& comm) {
  auto const steps = comm.all_gather_value(StepFigures{.paths = std::ssize(mine.paths),
                                                       .seconds = mine.seconds,
                                                       .hits = mine.hits,
                                                       .misses = mine.misses,
                                                       .host = mine.host_bytes,
                                                       .effective = mine.effective_rate});
  StorageStep sum{.nodes = mine.nodes};
  for (StepFigures const& rank : steps) {
    require(rank.paths == steps.front().paths, "all ranks have the same paths");
    sum.seconds = std::max(sum.seconds, rank.seconds);
    sum.hits += rank.hits;
    sum.misses += rank.misses;
    sum.host_bytes += rank.host;
    sum.effective_rate += rank.effective;
  }
  sum.paths = mine.paths;
  for (PathStep& path : sum.paths) {
    path.traffic = {};
    path.resident_bytes = 0;
  }
  auto const all = gather_paths(mine, comm);
  for (std::size_t i = 0; i < all.size(); ++i) {
    PathStep& path = sum.paths[i % sum.paths.size()];
    add_to(path.traffic, all[i].traffic);
    path.resident_bytes += all[i].resident;
  }
  return sum;
}

double transfer_rate(DirectionTraffic const& traffic) {
  return traffic.seconds.count() > 0.0
             ? static_cast<double>(traffic.bytes) / traffic.seconds.count()
             : 0.0;
}

double busy_part(PathStep const& path, StorageStep const& step) {
  double const available = step.seconds.count() * step.nodes * path.transfers_at_once;
  Seconds const used = path.traffic.read.seconds + path.traffic.write.seconds;
  return available > 0.0 ? used.count() / available : 0.0;
}

double reached_rate(DirectionTraffic const& traffic, PathStep const& path,
                    StorageStep const& step) {
  return transfer_rate(traffic) * std::max(1.0, busy_part(path, step) * path.sharing_transfers);
}

Seconds lock_wait(PathStep const& path) {
  return path.traffic.read.waited + path.traffic.write.waited;
}

Seconds longest_wait(PathStep const& path) {
  return std::max(path.traffic.read.longest_wait, path.traffic.write.longest_wait);
}

}  // namespace offstage::train
