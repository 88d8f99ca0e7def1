#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "platform/slurm/job.hpp"

namespace offstage::train {

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
/// Step records:       step, loss, grad_norm, learning_rate, tokens, step_seconds, forward_seconds,
///                     backward_seconds, update_seconds, read_bytes, write_bytes, loss_scale unless
///                     it is 1, and skipped (true) only if the update was; they alone have a loss.
/// Validation records: step and valid_loss.
/// Start records:      start (steps done before), time (UTC), ranks and nodes; in a Slurm job job,
///                     job_name, restart_count, and array_job and array_task where it is one of an
///                     array; no step.
///
/// A line is in the file when its call returns, and on stable storage after sync().
/// Errors: IoError naming run.dir and the path.
class MetricsFile {
 public:
  /// Creates the file, or keeps its records up to `last_step` (0: none) and cuts the rest, a torn
  /// last line included; the cut is atomic (new file, rename). Of the starts those up to `last_step`
  /// stay, also where it is 0: they were.
  MetricsFile(std::string path, std::int64_t last_step);
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
