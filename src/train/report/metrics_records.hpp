#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "platform/slurm/job.hpp"
#include "state/exchange.hpp"
#include "train/offload/storage_step.hpp"
#include "train/saves/best_loss.hpp"
#include "train/saves/continuation.hpp"
#include "train/step/share_step.hpp"

namespace offstage::train {

/// One line of metrics.jsonl.
struct StepRecord {
  std::int64_t step{};
  double loss{};       ///< nats per token, mean over the global batch
  double grad_norm{};  ///< norm of the mean gradient, before clipping
  double learning_rate{};
  std::int64_t tokens{};    ///< tokens seen so far
  bool skipped{};           ///< the update was skipped: loss or norm not finite
  double loss_scale = 1.0;  ///< loss scale with which the gradients were computed
  Seconds step_seconds{}, forward_seconds{}, backward_seconds{}, update_seconds{};
  Seconds elapsed{};  ///< from the start to the step's end
  StorageStep storage{};
  ShareStep share{};
  state::ActivationTraffic activations{};  ///< zeros: no activations leave
  Seconds predicted{};  ///< forecast of the step, made before it; 0: there was none
  double tflops{};      ///< model FLOPs of all ranks per second of the step, 10^12; 0: not counted
  double mfu{};         ///< part of the rate of products on as many devices; 0: not known
};

/// Memory of a run beside its limits. Host memory is rank 0's node's, device memory the rank's with
/// most.
struct MemoryRecord {
  Bytes host_limit{}, host_planned{};
  Bytes host_libraries{};  ///< bytes beside the plan (usual_library_bytes)
  Bytes device_limit{};    ///< 0: no limit
  Bytes device_planned{};
  Bytes host_peak{}, device_peak{};  ///< peaks of a run that has ended; 0 before
};

/// A storage path and the rates that a node was given or measured there, bytes per second; 0: not
/// known.
struct PathRecord {
  std::string directory;
  double read{}, write{};
  int sharing_transfers = 1;  ///< as PathStep's
};

/// The line that a start of the run writes before its first step.
struct StartRecord {
  std::int64_t step{};  ///< steps done before
  slurm::TimePoint time;
  std::string program{};            ///< checkpoint::Meta::program
  std::string working_directory{};  ///< rank 0's, from which relative paths count
  std::int64_t ranks{};
  std::vector<std::string> nodes;
  std::optional<slurm::Job> job{};
  std::int64_t parameters{};        ///< the model's; 0: left out, as is memory
  MemoryRecord memory{};            ///< without peaks
  std::vector<PathRecord> paths{};  ///< in the order of the configuration
  bool validations_begin_anew{};    ///< they are of other data than those before
  std::string from{};               ///< the checkpoint that the user named; empty: none
  std::vector<Change> changes{};    ///< keys on which weights depend, since the checkpoint
};

/// A checkpoint that has become complete.
struct SaveRecord {
  std::int64_t step{};
  int level{};  ///< 1, 2 or 3
  Seconds seconds{}, stood_still{};
  Bytes bytes{};      ///< bytes written by rank 0; at level 3 by all nodes
  Seconds elapsed{};  ///< since the start
};

/// A prediction of the steps after `step`, all ranks together.
struct ForecastRecord {
  std::int64_t step{};
  Seconds seconds{}, forward{}, backward{}, update{};
  bool given = true;  ///< all rates were given; else some are those of the first steps
  struct Path {
    std::string directory;
    Bytes read{}, write{};             ///< bytes of a step
    double read_rate{}, write_rate{};  ///< rates of a node, bytes per second
  };
  std::vector<Path> paths{};
};

/// The line of a start that has come to its end.
struct EndRecord {
  std::int64_t step{};
  std::string end{};      ///< in words: "done", the reason of a stop, or "failed: " with the error
  std::string reason{};   ///< in a word: name_of(Stop), "diverged" or "failed"
  ExitCode exit{};        ///< the program's
  Seconds elapsed{};      ///< since the start
  MemoryRecord memory{};  ///< as all below, not of a failure
  std::optional<Validation> best{};   ///< the best validation of all starts; none: there was none
  std::vector<std::string> advice{};  ///< sentences of the end report
};

}  // namespace offstage::train
