#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/smoothed.hpp"
#include "base/units.hpp"
#include "train/report/earlier_metrics.hpp"
#include "train/report/metrics_records.hpp"
#include "train/step/source_losses.hpp"

namespace offstage::train {

/// Appends JSON lines to `run.dir/metrics.jsonl`. A number that is not finite becomes null.
///
/// Steps:       the keys step, loss, grad_norm, learning_rate, tokens, step_seconds,
///              forward_seconds, backward_seconds, update_seconds, elapsed_seconds (since the start
///              of which it is a step), read_bytes, write_bytes (storage traffic since the end of
///              the step before, as all of storage below), loss_scale unless it is 1, and
///              skipped (true) only if the update was skipped; they alone have a loss. With storage
///              paths also effective_gb_per_s (null: there is none), hits, misses, host_bytes and
///              paths, an array of objects with path, emulated (true) only if it is, read_bytes,
///              write_bytes, read_gb_per_s and write_gb_per_s (bytes per second inside transfers,
///              null without any), busy (see busy_part), lock_wait_seconds (reads and writes, sum
///              over ranks), longest_wait_seconds (of any rank since the start), resident_bytes. GB
///              are 10^9 bytes. With a device that shares updates also device_share,
///              expected_update_seconds (null: a rate is not known yet) and device_gradient_bytes
///              (bytes that waited on the device). expected_update_seconds is the whole update by
///              itself. update_seconds is the step's wait for it, without the parts under backward
///              and under the next forward. Where activations leave the device also
///              activation_out_bytes and activation_back_bytes (off the device and to it) and
///              activation_wait_seconds (time for which the thread that launches waited for those
///              on storage, on the rank with most). tflops: floating-point operations of the
///              model's products, forward and backward, of all ranks per second of the step, 10^12;
///              recomputation does not count. mfu, where the rate of a device's products is given
///              or was measured: their part of it, in [0, 1]. predicted_step_seconds, where a
///              forecast was made before the step (run_forecast.hpp). Where the update began under
///              backward overlap: "kept", or "redone" (also if it was undone).
/// Validations: step, valid_loss and elapsed_seconds; where data.valid has several sources also
///              valid_losses, an array of objects with path, loss (null: no target counts) and
///              targets.
/// Starts:      start (steps done before), time (UTC), ranks and nodes, and in a Slurm job job,
///              job_name, restart_count, and array_job and array_task where it is one of an array;
///              no step. Also parameters, the memory keys below without peaks, and paths, an array
///              of objects with path and what a node can read and write there (can_read_gb_per_s,
///              can_write_gb_per_s; null: not known) and, unless it is 1, sharing_transfers, how
///              many share such a rate at a time. validations_begin_anew (true) only if they are of
///              other data than those before.
///              Where a start goes on with other keys on which weights depend: changed, an object
///              with the values before and now by key; from, the checkpoint that was named.
/// Memory keys: host_memory_limit, host_memory_planned, host_memory_libraries (beside the plan),
///              device_memory_limit (null: none), device_memory_planned, host_memory_peak,
///              device_memory_peak: bytes; host memory of rank 0's node, device memory of the rank
///              with most.
/// Forecasts:   step (done before) and forecast, an object with given, step_seconds,
///              forward_seconds, backward_seconds, update_seconds and paths, an array of objects
///              with path, read_bytes, write_bytes, read_gb_per_s and write_gb_per_s.
/// Saves:       step, saved (the level: 1, 2 or 3), seconds, stood_still_seconds, bytes,
///              elapsed_seconds when it was complete.
/// Ends:        step, end ("done", why it stopped, or "failed: WHY"), elapsed_seconds, and unless
///              it failed the memory keys and advice, an array of sentences.
///
/// The line of a step, validation, start or end is in the file when its call returns, and on stable
/// storage after sync(). Not all ranks wait for forecasts and saves, so their lines come with the
/// next of these or with sync(). A line is written patiently (base/pauses.hpp). One of a step or
/// validation that was tried in vain waits in memory, with a warning: what follows tries once more,
/// and training need not end because run.dir is full.
/// Errors: IoError naming run.dir and the path; from a step, validation or sync() only where
///         most_waiting bytes wait. That sync() could not make durable what is written is a
///         warning.
class MetricsFile {
 public:
  static constexpr std::size_t most_waiting = std::size_t{16} << 20U;  ///< bytes

  /// Goes on from the point (bring_metrics_to).
  explicit MetricsFile(std::string path, MetricsPoint const& point = {});
  void write(StepRecord const& record);
  void write_start(StartRecord const& record);
  void write_validation(std::int64_t step, MeanLosses const& losses, Seconds elapsed,
                        bool counts = true);
  void write_end(EndRecord const& record);
  void write_failure(EndRecord const& record);
  /// Adds a line that is written with the next one; throws no IoError.
  void add(SaveRecord const& record);
  void add(ForecastRecord const& record);
  /// Makes all lines durable, but for those that wait. Call it before a checkpoint is saved, so
  /// that the checkpoint is not ahead of the metrics after a power cut.
  void sync();
  /// Whether lines wait that could not be written.
  [[nodiscard]] bool lacks_lines() const { return !patient_ && !waiting_.empty(); }
  /// Running mean of the losses of all steps in the file (base/smoothed.hpp); NaN: there are none.
  [[nodiscard]] double smoothed_loss() const { return losses_.mean(); }

 private:
  /// Writes the lines that wait, and this one.
  void append(std::string const& line);
  /// Does that, but keeps what cannot be written.
  void append_or_keep(std::string const& line);
  std::string path_;
  std::string waiting_{};         ///< lines that wait
  std::optional<Bytes> whole_{};  ///< size of the file before a line of which a part may be there
  bool patient_ = true;           ///< false from tries in vain to the next line that is written
  Smoothed losses_{};
};

}  // namespace offstage::train
