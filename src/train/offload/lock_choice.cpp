#include "train/offload/lock_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <limits>
#include <memory>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/rate.hpp"
#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "probe/median.hpp"
#include "tiers/spill_file.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {
namespace {

/// Limits of the time for which one kind of access is tried at a time. A turn costs the more the
/// smaller the transfers are, so the longest slice is long enough for the transfers of a run on a
/// usual disk.
constexpr Seconds shortest_slice{0.01};
constexpr Seconds longest_slice{0.1};
/// Transfers of each thread in a slice, if that is long enough.
constexpr double transfers_in_slice = 3.0;
/// Slices of each kind; the median counts.
constexpr int trial_rounds = 3;
/// With smaller pieces the trial would measure how soon threads wake.
constexpr Bytes least_piece = 256 * KiB;
/// Longest time of a round, one transfer of each thread of all ranks. A slower path is not tried,
/// because there are several rounds.
constexpr Seconds longest_round{1.0};

Bytes aligned(Bytes bytes) {
  return std::max<Bytes>(1, bytes / aio::direct_alignment) * aio::direct_alignment;
}

/// The part that a thread reads and writes in turn, as a pipeline's does.
struct Part {
  memory::HugeBuffer memory;
  Bytes begin{};        ///< offset in the file
  bool writes = false;  ///< the next transfer is a write
};

/// A trial of one path by the node's ranks.
class PathTrial {
 public:
  /// `turns` and `crowd` are the paths in turns and all at once. Collective over the node, as all
  /// members are. A problem of any rank is every rank's.
  PathTrial(config::RunConfig const& config, std::size_t path, mpi::Communicator const& node,
            LockTrial const& settings, tiers::PathSet const& turns, tiers::PathSet const& crowd)
      : settings_{config.paths[path]}, node_{node}, turns_{*turns[path]}, crowd_{*crowd[path]} {
    attempt([&] { prepare(config, settings); });
  }

  /// Writes the node's results to `choice`.
  void run(LockChoice& choice) {
    fill();
    std::vector<double> in_turn;
    std::vector<double> at_once;
    for (int round = 0; round < trial_rounds && !failed_; ++round) {
      in_turn.push_back(rate(turns_));
      at_once.push_back(rate(crowd_));
    }
    if (!failed_) {
      choice.in_turn = probe::median(in_turn);
      choice.at_once = probe::median(at_once);
    }
    choice.problem = problem_;
  }

 private:
  void attempt(std::function<void()> const& work) {
    try {
      work();
    } catch (std::exception const& error) {
      problem_ = error.what();
    }
    failed_ = node_.maximum(std::int64_t{problem_.empty() ? 0 : 1}) > 0;
  }
  void prepare(config::RunConfig const& config, LockTrial const& settings);
  void fill();
  /// Takes the time of a round, the same on all ranks of the node.
  void look_at(Seconds round);
  /// Makes a round of writes. Returns its time.
  Seconds write(Bytes piece);
  /// Rough rate of all parts together, bytes per second.
  [[nodiscard]] double first_rate(Bytes parts, Bytes most);
  /// Rate of all ranks of the node, bytes per second.
  [[nodiscard]] double rate(tiers::StoragePath& path);
  /// Calls `work` on each part, all at the same time. Throws the first part's error.
  void on_parts(std::function<void(Part&)> const& work);
  /// Calls `work` on all ranks, from a common start until the last is done. Returns the time.
  [[nodiscard]] Seconds together(std::function<void()> const& work);

  tiers::PathSettings const& settings_;
  mpi::Communicator const& node_;
  tiers::StoragePath& turns_;
  tiers::StoragePath& crowd_;
  tiers::SpillFile file_;
  std::vector<Part> parts_;
  Bytes piece_{};  ///< bytes that each part moves at a time
  Seconds slice_ = longest_slice;
  bool failed_ = false;
  std::string problem_;  ///< this rank's
};

/// Makes as many parts as threads may use the path, with pieces of the run's extents.
void PathTrial::prepare(config::RunConfig const& config, LockTrial const& settings) {
  int const count = settings_.transfers_at_once();
  Bytes const full =
      std::min<Bytes>(tiers::path_turn_bytes / settings_.threads,
                      2 * settings_.engine.request_bytes * settings_.engine.queue_depth);
  Bytes const extent = config.optimizer.layout().bytes(config.subgroup_size);
  Bytes const room = aio::free_bytes(settings_.directory) / (2 * node_.size());
  piece_ = aligned(std::min({full, extent, settings.memory / count, room / count}));
  file_ = tiers::make_spill_file(settings_.directory, settings.spill, count * piece_);
  if (!file_.direct()) {
    throw IoError{fmt::format("tiers.path = {}: its file system has no direct transfers",
                              settings_.directory)};
  }
  for (int i = 0; i < count; ++i) {
    parts_.push_back({memory::HugeBuffer{piece_}, i * piece_, i % 2 == 0});
  }
}

void PathTrial::on_parts(std::function<void(Part&)> const& work) {
  std::vector<std::exception_ptr> errors(parts_.size());
  {
    std::vector<NamedThread> threads;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      threads.emplace_back("locks", [&, i] {
        try {
          work(parts_[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (std::exception_ptr const& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

Seconds PathTrial::together(std::function<void()> const& work) {
  node_.barrier();
  Stopwatch const watch;
  attempt(work);
  return Seconds{node_.maximum(watch.elapsed().count())};
}

void PathTrial::look_at(Seconds round) {
  if (!failed_ && round > longest_round) {
    problem_ = "the path is slow";
    failed_ = true;
  }
}

Seconds PathTrial::write(Bytes piece) {
  Seconds const taken = together([&] {
    on_parts([&](Part& part) {
      turns_.write(file_, part.memory.bytes().first(static_cast<std::size_t>(piece)), part.begin);
    });
  });
  look_at(taken);
  return taken;
}

/// The fastest write counts, because a busy machine, or one that has just begun, makes some slow.
/// Pieces below the least only tell whether usual ones would take too long.
double PathTrial::first_rate(Bytes parts, Bytes most) {
  Bytes const least = std::min(least_piece, most);
  if (settings_.rates_known()) {
    double const given = 2.0 / (1.0 / settings_.read_rate + 1.0 / settings_.write_rate);
    look_at(Seconds{static_cast<double>(parts * least) / given});
    return given;
  }
  double found = 1.0;
  Seconds all{};
  for (Bytes piece = std::min(aio::direct_alignment, most); !failed_;
       piece = std::min(4 * piece, most)) {
    Seconds const taken = write(piece);
    if (piece < least) {
      continue;
    }
    found = std::max(found, static_cast<double>(parts * piece) / std::max(1e-9, taken.count()));
    all += taken;
    if (piece == most || all > longest_slice) {
      break;
    }
  }
  return found;
}

/// Finds a slice's length, and a piece so small that each part moves one at least in a slice.
/// Writes the bytes that will be read.
void PathTrial::fill() {
  Bytes const most = node_.minimum(piece_);
  Bytes const parts = static_cast<Bytes>(settings_.transfers_at_once()) * node_.size();
  double const found = first_rate(parts, most);
  Seconds const one_of_each{static_cast<double>(parts * most) / found};
  slice_ = std::clamp(transfers_in_slice * one_of_each, shortest_slice, longest_slice);
  double const fits =
      std::min(static_cast<double>(most), found * slice_.count() / static_cast<double>(parts));
  piece_ = std::max(std::min(least_piece, most), aligned(static_cast<Bytes>(fits)));
  if (!failed_) {
    write(piece_);
  }
}

double PathTrial::rate(tiers::StoragePath& path) {
  if (failed_) {
    return 0.0;
  }
  std::atomic<Bytes> moved = 0;
  Seconds const taken = together([&] {
    Stopwatch const watch;
    on_parts([&](Part& part) {
      auto const bytes = part.memory.bytes().first(static_cast<std::size_t>(piece_));
      do {
        if (part.writes) {
          path.write(file_, bytes, part.begin);
        } else {
          path.read(file_, bytes, part.begin);
        }
        part.writes = !part.writes;
        moved += piece_;
      } while (watch.elapsed() < slice_);
    });
  });
  return static_cast<double>(node_.sum(moved.load())) / std::max(1e-9, taken.count());
}

/// Warns where paths are on one device on some nodes alone, as where a drive is not mounted.
void compare_devices(std::vector<std::size_t> const& owners, config::RunConfig const& config,
                     mpi::Communicator const& comm, mpi::Communicator const& node) {
  for (std::size_t i = 0; i < owners.size(); ++i) {
    auto const here = static_cast<std::int64_t>(owners[i]);
    auto const first = comm.broadcast_value(here, 0);
    if (here == first || node.rank() != 0) {
      continue;
    }
    bool const alone = owners[i] == i;
    auto const other = static_cast<std::size_t>(alone ? first : here);
    log::warning(
        "{}: tiers.path={} is {} the device of {}, otherwise than on rank 0's node; is a drive "
        "missing?",
        cpu::host_name(), config.paths[i].directory, alone ? "not on" : "on",
        config.paths[other].directory);
  }
}

/// The same on all ranks: the mean of the nodes that have measured, or the first problem.
LockChoice agree_on(LockChoice const& here, bool measures, mpi::Communicator const& comm) {
  struct Figures {
    double in_turn, at_once;
    bool counts;
  };
  LockChoice choice;
  int nodes = 0;
  for (Figures const& each : comm.all_gather_value(Figures{here.in_turn, here.at_once, measures})) {
    choice.in_turn += each.counts ? each.in_turn : 0.0;
    choice.at_once += each.counts ? each.at_once : 0.0;
    nodes += each.counts ? 1 : 0;
  }
  choice.in_turn /= std::max(1, nodes);
  choice.at_once /= std::max(1, nodes);
  int const none = comm.size();
  auto const first =
      static_cast<int>(comm.minimum(std::int64_t{here.problem.empty() ? none : comm.rank()}));
  choice.exclusive = first < none || turns_pay(choice.in_turn, choice.at_once);
  if (first < none) {
    choice.in_turn = choice.at_once = 0.0;
    choice.problem = comm.broadcast(here.problem, first);
  }
  return choice;
}

}  // namespace

bool turns_pay(double in_turn, double at_once) {
  return in_turn >= at_once;
}

std::vector<LockChoice> choose_locks(config::RunConfig const& config, mpi::Communicator const& comm,
                                     mpi::Communicator const& node, LockTrial const& trial) {
  std::vector<LockChoice> choices(config.paths.size(),
                                  {.exclusive = config.storage.exclusive == config::Switch::on});
  if (config.storage.exclusive != config::Switch::automatic) {
    return choices;
  }
  std::vector<std::size_t> owners;
  mpi::agree(comm, [&] { owners = tiers::lock_owners(config.paths); });
  compare_devices(owners, config, comm, node);
  if (comm.maximum(std::int64_t{node.size()}) == 1) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      choices[i].exclusive = std::ranges::count(owners, owners[i]) > 1;
    }
    return choices;
  }
  std::string problem;
  std::shared_ptr<tiers::PathSet> turns;
  std::shared_ptr<tiers::PathSet> crowd;
  if (node.size() > 1) {
    try {
      turns = tiers::make_paths({.paths = config.paths, .shared = trial.shared});
      crowd = tiers::make_paths({.paths = config.paths,
                                 .exclusive = std::vector<bool>(config.paths.size(), false),
                                 .shared = trial.shared});
    } catch (IoError const& error) {  // two sets of paths need more requests than the run does
      problem = error.what();
    }
  }
  bool const tries = comm.maximum(std::int64_t{problem.empty() ? 0 : 1}) == 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    LockChoice here;
    bool const is_owner = owners[i] == i;  // on this node
    if (is_owner) {
      here.problem = problem;
    }
    if (is_owner && node.size() > 1 && tries) {
      PathTrial{config, i, node, trial, *turns, *crowd}.run(here);
    }
    auto const agreed = agree_on(here, is_owner && node.size() > 1 && node.rank() == 0, comm);
    choices[i] = is_owner ? agreed : choices[owners[i]];
  }
  turns.reset();
  crowd.reset();
  comm.barrier();  // the trial's requests are given back before any rank takes those of the run
  return choices;
}

std::string describe(LockChoice const& choice) {
  if (!choice.problem.empty()) {
    return fmt::format("processes take turns (not tried: {})", choice.problem);
  }
  if (choice.in_turn <= 0.0) {
    return {};
  }
  return choice.exclusive ? fmt::format("processes take turns ({}, {} all at once)",
                                        format_rate(choice.in_turn), format_rate(choice.at_once))
                          : fmt::format("processes all at once ({}, {} in turn)",
                                        format_rate(choice.at_once), format_rate(choice.in_turn));
}

}  // namespace offstage::train
