#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "launch/launcher.hpp"
#include "plan/memory.hpp"
#include "plan/split.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/lock_choice.hpp"
#include "train/run_config.hpp"
#include "train/storage_report.hpp"

namespace offstage::train {

/// Slots on one storage path, this rank.
struct SlotFacts {
  std::string what;  ///< they are for: "state", "gradient"
  std::int64_t slots{};
  Bytes slot_bytes{};
};

/// What the header says of one storage path beside its tiers.path.
struct PathFacts {
  plan::PathRate rate{};           ///< as given or measured
  std::vector<SlotFacts> slots{};  ///< none: all stays in host memory
  Bytes needed{};                  ///< all slots there of the ranks of this node
  Bytes free{};                    ///< before they were allocated
  LockChoice lock{};               ///< how the node's processes share it
};

/// Facts that the header shows beside the configuration.
struct HeaderFacts {
  launch::RankPlace const& place;  ///< of this rank
  int nodes{};
  std::int64_t parameters{};
  std::string device;
  std::string libraries{};            ///< on whose versions the device's bits depend; may be empty
  std::string attention{};            ///< who computes it; empty: not on GPUs
  std::vector<std::string> chosen{};  ///< by plan.choose=on: what and why; else empty
  std::string activations{};  ///< why train.activations=auto has chosen so; empty: without rates
  std::string link{};         ///< how layers get from rank to rank; empty for one rank
  plan::MemoryPlan memory;
  int parameter_slots{};  ///< layers that are brought to the device at a time; 0: none has to be
  bool large_slot{};      ///< beside them, for layers that are larger (state::SlotSizes)
  Bytes host_memory_limit{};
  std::int64_t subgroups{};                 ///< of rank 0
  std::vector<PathFacts> paths{};           ///< in the order of tiers.path
  std::vector<std::string> memory_table{};  ///< of rank 0 (memory_table.hpp)
};

/// The nodes of the ranks in the order of ranks, each once; `mine` is this rank's. Collective.
[[nodiscard]] std::vector<std::string> node_names(std::string const& mine,
                                                  mpi::Communicator const& comm);

/// Prints, on rank 0, what a reader of the log needs to repeat the run: version, build, MPI,
/// instruction set, the Slurm job with its end, each rank's host, GPU, NUMA domain, cores and
/// threads, a line for each storage path, memory plan, every key with its origin. Collective.
void print_header(RunConfig const& config, HeaderFacts const& facts, mpi::Communicator const& comm);

/// Where the wall time of a run went.
struct PhaseTimes {
  Seconds forward{}, backward{}, update{}, validation{}, total{};
  Seconds checkpoint{};          ///< that training stood still for
  Seconds saving{};              ///< of all saves, what went on under steps included
  Bytes update_bytes{};          ///< storage traffic of the updates, this rank
  std::int64_t overlapped{};     ///< steps whose update began under backward
  std::int64_t redone{};         ///< of those, steps that were done again or undone
  Seconds redoing{};             ///< of these, what came after backward
  std::int64_t clipped{};        ///< steps whose norm was above optimizer.clip
  Bytes checkpoint_bytes{};      ///< written by this rank
  ActivationStep activations{};  ///< this rank's
  std::int64_t steps{};
  std::int64_t tokens{};     ///< of this start
  double flops{};            ///< likewise, of the model
  Bytes host_memory_peak{};  ///< of rank 0's node, beside tiers.host-memory
  Bytes host_memory_limit{};
  Bytes device_memory_peak{};   ///< of the rank with most, beside device.memory
  Bytes device_memory_limit{};  ///< 0: none
  Bytes host_memory_planned{}, device_memory_planned{};  ///< what the peaks were expected to be
  Bytes host_memory_libraries{};                         ///< beside the plan (usual_library_bytes)
};

/// A sentence on what helps where most steps were clipped and their updates could not begin under backward for that; empty:
/// there is no need. Pure.
[[nodiscard]] std::string advice_on_clipping(PhaseTimes const& times, RunConfig const& config);

/// The end table on rank 0: phase, seconds, share, GB/s; activations that left; the storage paths; host and device memory against
/// their limits.
void print_end_table(PhaseTimes const& times, StorageTotals const& storage);

}  // namespace offstage::train
