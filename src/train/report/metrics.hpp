#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/smoothed.hpp"
#include "base/units.hpp"
#include "platform/slurm/job.hpp"
#include "state/exchange.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {

/// Traffic of one step on one storage path, all ranks together.
struct PathStep {
  std::string directory;
  bool emulated{};
  int lanes = 1;  ///< transfers that the path takes at a time, both directions
  /// Sums over ranks; the longest wait and transfer are the longest of any rank since the start.
  tiers::PathTraffic traffic{};
  Bytes resident_bytes{};  ///< of state, at the step's end
};

/// Traffic of one step with storage, all ranks together; see storage_report.hpp.
struct StorageStep {
  std::vector<PathStep>
      paths{};  ///< in the order of the configuration; none: all is in host memory
  int nodes = 1;
  Seconds seconds{};        ///< wall time in which this was counted: the step's
  std::int64_t hits{};      ///< fetches that found their subgroup in host memory
  std::int64_t misses{};    ///< fetches that read it
  Bytes host_bytes{};       ///< of state in host memory, at the step's end
  double effective_rate{};  ///< effective I/O throughput, bytes per second; 0: there is none
};

/// How one step's update was shared between cores and device, rank 0's.
struct ShareStep {
  bool used{};     ///< a device took part, or received the cores' parameters
  double share{};  ///< of what is not resident, that the device updated
  Seconds
      expected{};  ///< of the whole update by itself, from the rates so far; 0: one is not known yet
  Bytes gradients_held{};  ///< gradients that waited for it on the device
  bool overlapped{};       ///< the update began under backward
  bool redone{};           ///< and was taken back, as the norm was another than presumed
};

/// Traffic of one step's activations that leave the device, all ranks together; `waited` is that of the rank with most.
using ActivationStep = state::ActivationTraffic;

/// One line of metrics.jsonl.
struct StepRecord {
  std::int64_t step{};
  double loss{};       ///< nats per token, mean over the global batch
  double grad_norm{};  ///< of the mean gradient, before clipping
  double learning_rate{};
  std::int64_t tokens{};    ///< seen so far
  bool skipped{};           ///< the update was skipped: loss or norm not finite
  double loss_scale = 1.0;  ///< with which the gradients were computed
  Seconds step_seconds{}, forward_seconds{}, backward_seconds{}, update_seconds{};
  Seconds elapsed{};                  ///< since the start, to the step's end
  Bytes read_bytes{}, write_bytes{};  ///< storage traffic of this step, all ranks
  StorageStep storage{};
  ShareStep share{};
  ActivationStep activations{};  ///< zeros: none leave
  Seconds predicted{};           ///< of the step, by a forecast made before it; 0: there was none
  double tflops{};  ///< model FLOPs of all ranks per second of the step, 10^12; 0: not counted
  double mfu{};     ///< part of what products reach on as many devices; 0: not known
};

/// Memory of a run beside its limits. Host memory is rank 0's node's, device memory the rank's with
/// most.
struct MemoryRecord {
  Bytes host_limit{}, host_planned{};
  Bytes host_libraries{};  ///< beside the plan (usual_library_bytes)
  Bytes device_limit{};    ///< 0: none
  Bytes device_planned{};
  Bytes host_peak{}, device_peak{};  ///< of a run that has ended; 0 before
};

/// A storage path and the rates that a node was given or measured there, bytes per second; 0: not
/// known.
struct PathRecord {
  std::string directory;
  double read{}, write{};
};

/// The line that a start of the run writes before its first step.
struct StartRecord {
  std::int64_t step{};  ///< done before
  slurm::TimePoint time;
  std::int64_t ranks{};
  std::vector<std::string> nodes;
  std::optional<slurm::Job> job{};
  std::int64_t parameters{};        ///< of the model; 0: left out, as is memory
  MemoryRecord memory{};            ///< without peaks
  std::vector<PathRecord> paths{};  ///< in the order of the configuration
};

/// A checkpoint that has become complete.
struct SaveRecord {
  std::int64_t step{};
  int level{};  ///< 1, 2 or 3
  Seconds seconds{}, stood_still{};
  Bytes bytes{};      ///< written by rank 0; of level 3 by all nodes
  Seconds elapsed{};  ///< since the start
};

/// A prediction of the steps after `step`, all ranks together.
struct ForecastRecord {
  std::int64_t step{};
  Seconds seconds{}, forward{}, backward{}, update{};
  bool given = true;  ///< by rates that were given; else some are as the first steps had them
  struct Path {
    std::string directory;
    Bytes read{}, write{};             ///< of a step
    double read_rate{}, write_rate{};  ///< of a node, bytes per second
  };
  std::vector<Path> paths{};
};

/// The line of a start that has come to its end.
struct EndRecord {
  std::int64_t step{};
  std::string why;  ///< "done", or why it stopped
  MemoryRecord memory{};
  Seconds elapsed{};                  ///< since the start
  std::vector<std::string> advice{};  ///< sentences of the end report
};

/// Appends JSON lines to `run.dir/metrics.jsonl`. A number that is not finite becomes null.
///
/// Steps:       the keys step, loss, grad_norm, learning_rate, tokens, step_seconds, forward_seconds,
///              backward_seconds, update_seconds, elapsed_seconds (since the start of which it is a
///              step), read_bytes, write_bytes, loss_scale unless it is 1,
///              and skipped (true) only if the update was skipped; they alone have a loss. With storage
///              paths also effective_gb_per_s (null: there is none), hits, misses, host_bytes and paths,
///              an array of objects with path, emulated (true) only if it is, read_bytes, write_bytes,
///              read_gb_per_s and write_gb_per_s (bytes per second inside transfers, null without
///              any), busy (see busy_share), lock_wait_seconds (reads and writes, sum over ranks),
///              longest_wait_seconds (of any rank since the start), resident_bytes. GB are 10^9 bytes.
///              With a device that shares updates also device_share, expected_update_seconds (null: a
///              rate is not known yet) and device_gradient_bytes (that waited on the device). Expected is
///              the whole update by itself; update_seconds is what the step waited for it, without what
///              went on under backward or goes on under the next forward.
///              Where activations leave the device also activation_out_bytes and activation_back_bytes (off the
///              device and to it) and activation_wait_seconds (how long the thread that launches stood still for those on
///              storage, on the rank with most).
///              tflops: floating-point operations of the model's products, forward and backward, of all
///              ranks per second of the step, 10^12; what is computed again does not count. mfu, where
///              the rate of a device's products is given or was measured: their part of it, in [0, 1].
///              predicted_step_seconds, where a forecast was made before the step (run_forecast.hpp).
///              Where the update began under backward overlap: "kept", or "redone" (also if it was undone).
/// Validations: step, valid_loss and elapsed_seconds.
/// Starts:      start (steps done before), time (UTC), ranks and nodes, and in a Slurm job job, job_name,
///              restart_count, and array_job and array_task where it is one of an array; no step. Also
///              parameters, the memory keys below without peaks, and paths, an array of objects with
///              path and what a node can read and write there (can_read_gb_per_s, can_write_gb_per_s;
///              null: not known).
/// Memory keys: host_memory_limit, host_memory_planned, host_memory_libraries (beside the plan), device_memory_limit
///              (null: none), device_memory_planned, host_memory_peak, device_memory_peak: bytes; host
///              memory of rank 0's node, device memory of the rank with most.
/// Forecasts:   step (done before) and forecast, an object with given, step_seconds, forward_seconds,
///              backward_seconds, update_seconds and paths, an array of objects with path, read_bytes,
///              write_bytes, read_gb_per_s and write_gb_per_s.
/// Saves:       step, saved (the level: 1, 2 or 3), seconds, stood_still_seconds, bytes,
///              elapsed_seconds when it was complete.
/// Ends:        step, end ("done", or why it stopped), elapsed_seconds, the memory keys, and advice,
///              an array of sentences.
///
/// A step's, validation's, start's or end's line is in the file when its call returns, and on stable storage
/// after sync(). Forecasts and saves, which not all ranks wait for, come with the next of these or
/// of sync().
/// Errors: IoError naming run.dir and the path.
class MetricsFile {
 public:
  /// Creates the file, or keeps its records up to `last_step` (0: none) and cuts the rest, a torn
  /// last line included; the cut is atomic (new file, rename). Of the starts those up to `last_step`
  /// stay, also where it is 0: they were. With `keeps_cut` the file as it was stays beside it where
  /// steps are cut, as passed-over-metrics.jsonl (.2, .3, ... if that is taken), which is said (log).
  MetricsFile(std::string path, std::int64_t last_step, bool keeps_cut = false);
  void write(StepRecord const& record);
  void write_start(StartRecord const& record);
  void write_validation(std::int64_t step, double valid_loss, Seconds elapsed);
  void write_end(EndRecord const& record);
  /// With the next line; throws no IoError.
  void add(SaveRecord const& record);
  void add(ForecastRecord const& record);
  /// Called before a checkpoint is saved, it keeps the checkpoint from being ahead of the metrics
  /// after a power cut.
  void sync();
  /// Running mean of the losses of all steps in the file (base/smoothed.hpp); NaN: there are none.
  [[nodiscard]] double smoothed_loss() const { return losses_.mean(); }

 private:
  /// With what waits before it.
  void append(std::string const& line);
  std::string path_;
  std::string waiting_{};  ///< lines that were added
  Smoothed losses_{};
};

}  // namespace offstage::train
