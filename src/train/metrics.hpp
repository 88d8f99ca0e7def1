#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "platform/slurm/job.hpp"
#include "state/exchange.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {

/// What one step did on one storage path, all ranks together.
struct PathStep {
  std::string directory;
  bool emulated{};
  int lanes = 1;  ///< transfers that the path takes at a time, both directions
  /// Sums over ranks; the longest wait and transfer are the longest of any rank since the start.
  tiers::PathTraffic traffic{};
  Bytes resident_bytes{};  ///< of state, at the step's end
};

/// What one step did with storage, all ranks together; see storage_report.hpp.
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

/// What one step did with activations that leave the device, all ranks together; `waited` is that of the rank with most.
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
  Bytes read_bytes{}, write_bytes{};  ///< storage traffic of this step, all ranks
  StorageStep storage{};
  ShareStep share{};
  ActivationStep activations{};  ///< zeros: none leave
  Seconds predicted{};           ///< of the step, by a forecast made before it; 0: there was none
  double tflops{};  ///< model FLOPs of all ranks per second of the step, 10^12; 0: not counted
  double mfu{};     ///< part of what products reach on as many devices; 0: not known
};

/// The line that a start of the run writes before its first step.
struct StartRecord {
  std::int64_t step{};  ///< done before
  slurm::TimePoint time;
  std::int64_t ranks{};
  std::vector<std::string> nodes;
  std::optional<slurm::Job> job{};
};

/// Appends JSON lines to `run.dir/metrics.jsonl`. A number that is not finite becomes null.
///
/// Steps:       the keys step, loss, grad_norm, learning_rate, tokens, step_seconds, forward_seconds,
///              backward_seconds, update_seconds, read_bytes, write_bytes, loss_scale unless it is 1,
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
/// Validations: step and valid_loss.
/// Starts:      start (steps done before), time (UTC), ranks and nodes, and in a Slurm job job, job_name,
///              restart_count, and array_job and array_task where it is one of an array; no step.
///
/// A line is in the file when its call returns, and on stable storage after sync().
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
  void write_validation(std::int64_t step, double valid_loss);
  /// Called before a checkpoint is saved, it keeps the checkpoint from being ahead of the metrics
  /// after a power cut.
  void sync();

 private:
  void append(std::string const& line);
  std::string path_;
};

}  // namespace offstage::train
