#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/units.hpp"
#include "checkpoint/meta.hpp"
#include "tensorboard/event_file.hpp"
#include "train/report/forecast_report.hpp"
#include "train/report/metrics.hpp"
#include "train/report/report.hpp"
#include "train/saves/best_loss.hpp"
#include "train/saves/save_listener.hpp"
#include "train/saves/stop.hpp"
#include "train/step/source_losses.hpp"
#include "train/step/step_result.hpp"

namespace offstage::config {
struct RunConfig;
}

namespace offstage::train {

/// Facts that one rank knows of a step that is done.
struct StepEntry {
  StepResult const& result;
  checkpoint::Meta const& meta;  ///< after the step
  double loss_scale{};           ///< loss scale with which it was computed
  std::int64_t tokens{};         ///< tokens seen so far
  Seconds seconds{};
  StorageStep storage{};                   ///< storage traffic, all ranks
  state::ActivationTraffic activations{};  ///< all ranks
};

/// Facts that one rank knows of a run that is over.
struct RunEnd {
  std::int64_t step{};
  Stop stop{};
  Seconds total{};
  MemoryRecord memory{};
  std::vector<std::string> slow_nodes{};  ///< sentences (slow_nodes.hpp)
  std::vector<std::string> advice{};      ///< sentences (remedies.hpp)
  BestLoss best{};                        ///< best of all validations so far
  /// Whether the best one's step has a checkpoint; none: that is not asked for, or not known.
  std::optional<bool> best_is_kept{};
};

/// Reports a run: metrics.jsonl, events for TensorBoard, log lines when they are due, the end
/// table. Every rank has one; rank 0's writes.
/// Errors: IoError of metrics.jsonl (metrics.hpp), and in begin() that of the file of events.
class Journal final : public SaveListener {
 public:
  Journal(config::RunConfig const& config, bool speaks) : config_{config}, speaks_{speaks} {}

  /// Opens metrics.jsonl, which keeps its records up to `step`, whose loss the checkpoint may tell.
  /// `look` throws where run.dir may be another run's by now. It is called before each record, and
  /// once it has thrown, none is written any more.
  void open(std::int64_t step, std::optional<double> loss, std::function<void()> look);
  /// Begins, after open(). `now` is Cadence::now(), here and below.
  /// `works`: this start has steps or a validation to make, else it leaves no record.
  void begin(StartRecord const& start, bool works, Seconds now);
  /// Sets the forecast of the steps to come.
  void expect(RunForecast forecast) { against_.expect(std::move(forecast)); }
  [[nodiscard]] bool expects() const { return against_.expected().has_value(); }
  /// Mean time of the steps with a forecast; 0: there are none.
  [[nodiscard]] Seconds reached() const { return against_.reached(); }
  void step_done(StepEntry const& entry, Seconds now);
  /// `counts`: see Position::validated.
  void validated(std::int64_t step, MeanLosses const& losses, bool counts, Seconds seconds,
                 Seconds now);
  void saved(std::int64_t step, checkpoint::SaveStats const& stats, int level,
             Seconds now) override;
  /// Training stood still so long for an update that had to end before saves. Those of both levels
  /// may have the same wait in their SaveStats; here it counts once.
  void waited_for_update(Seconds wait) { times_.before_saves += wait; }
  void copied(checkpoint::CopyStats const& stats, Seconds now) override;
  /// Records of earlier starts that metrics.jsonl keeps; on rank 0 alone. Call it after open() and
  /// before begin().
  [[nodiscard]] EarlierRecords earlier() const;
  /// Whether records wait that could not be written; on rank 0, else false.
  [[nodiscard]] bool lacks_records() const { return metrics_ && metrics_->lacks_lines(); }
  /// Call it before a checkpoint, which is never ahead of its metrics.
  void sync();
  /// Writes the end table, and the line that says how the run ended. Errors: IoError if lines of
  /// steps or validations could not be written until now.
  void conclude(RunEnd const& end);
  /// Writes the line that says that the run failed, if that is possible. Throws nothing.
  void failed(std::int64_t step, Failure const& failure, bool has_diverged, Seconds now);

 private:
  void require_own();
  void log_step(StepEntry const& entry, Seconds now);
  void show_progress(StepEntry const& entry, Seconds now);
  /// Mean seconds of a step so far, with the time between steps.
  [[nodiscard]] Seconds mean_step(Seconds now) const {
    return (now - started_) / static_cast<double>(times_.steps);
  }
  /// Writes the forecast to metrics.jsonl, once there is one.
  void write_forecast(std::int64_t step);
  void write_end(RunEnd const& end, std::vector<std::string> sentences);
  void say_how_it_ended(RunEnd const& end) const;

  config::RunConfig const& config_;
  bool speaks_;
  std::function<void()> look_;
  std::optional<MetricsFile> metrics_;
  std::optional<tensorboard::EventFile> events_;  ///< none unless run.tensorboard
  PhaseTimes times_;
  StorageTotals storage_;
  ForecastReport against_;
  bool forecast_is_written_ = false;
  bool works_ = false;
  double flops_{};     ///< the model's operations in a step
  double products_{};  ///< FLOP/s of all ranks' devices; 0: not known
  Seconds started_{};
  Seconds logged_{};              ///< when the last log line was written
  Seconds shown_{};               ///< when the progress line was last shown
  std::int64_t logged_tokens_{};  ///< tokens of this start at the last log line
  std::int64_t logged_steps_{};   ///< steps of this start at the last log line
};

}  // namespace offstage::train
