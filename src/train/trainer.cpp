#include "train/trainer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/version.hpp"
#include "checkpoint/writer.hpp"
#include "convert/convert.hpp"
#include "launch/launcher.hpp"
#include "platform/aio/file.hpp"
#include "platform/memory/process_memory.hpp"
#include "train/directories.hpp"
#include "train/loss_scale.hpp"
#include "train/metrics.hpp"
#include "train/report.hpp"
#include "train/schedule.hpp"
#include "train/signals.hpp"
#include "train/step_runner.hpp"

namespace offstage::train {
namespace {

enum class Stop : std::int64_t { none, signal, file, time };

char const* reason_of(Stop stop) {
  switch (stop) {
    case Stop::signal:
      return "a signal came";
    case Stop::file:
      return "STOP was found in run.dir";
    case Stop::time:
      return "train.max-time is near";
    case Stop::none:
      break;
  }
  return "";
}

/// Warnings of the shortages; the first that no run can live with ends this one.
void report(std::vector<launch::Shortage> const& shortages, bool speaks) {
  for (launch::Shortage const& shortage : shortages) {
    if (shortage.ends_with) {
      throw Error{*shortage.ends_with, shortage.text};
    }
    if (speaks) {
      log::warning("{}", shortage.text);
    }
  }
}

std::string text_of(std::vector<Setting> const& settings) {
  std::string text;
  for (Setting const& setting : settings) {
    text += fmt::format("{}={}\n", setting.key, setting.value);
  }
  return text;
}

/// Types with the range of FP32 need no scale.
template <class T>
LossScaleRules loss_scale_rules(RunConfig const& config) {
  if constexpr (std::is_same_v<T, float16>) {
    return config.numerics.loss_scale;
  }
  return {.dynamic = false, .start = 1.0};
}

/// The run from its first step to its last: everything that is not a step itself.
template <class T>
class Training {
 public:
  Training(RunConfig const& config, mpi::Communicator const& comm, StopSignals& signals,
           launch::RankPlace const& place)
      : config_{config},
        comm_{comm},
        signals_{signals},
        place_{place},
        loss_scale_{loss_scale_rules<T>(config)} {}

  ExitCode run();

 private:
  void prepare();
  void open_data();
  void look_for_shortages(launch::Needs const& needs);
  void start_or_continue();
  void start();
  void continue_loss_scale();
  void one_step();
  /// `loss_scale` is the one that the step was computed with.
  void after_step(StepResult const& result, double loss_scale, Seconds seconds);
  void log_step(StepResult const& result, double loss_scale);
  void validate();
  void require_space_for_a_checkpoint();
  [[nodiscard]] bool validation_follows(std::int64_t step) const;
  void save();
  void conclude(Stop stop);
  [[nodiscard]] bool save_is_due(Stop stop);
  [[nodiscard]] Stop stop_wanted();
  [[nodiscard]] bool take_stop_file() const;
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  RunConfig const& config_;
  mpi::Communicator const& comm_;
  StopSignals& signals_;
  launch::RankPlace const& place_;
  Stopwatch since_start_;
  std::unique_ptr<data::Dataset> train_data_;
  std::unique_ptr<data::Dataset> valid_data_;
  std::unique_ptr<StepRunner<T>> runner_;
  std::unique_ptr<Directories> directories_;
  std::unique_ptr<checkpoint::Store> store_;
  std::unique_ptr<MetricsFile> metrics_;
  LossScale loss_scale_;
  checkpoint::Meta meta_;
  PhaseTimes times_;
  Seconds longest_step_{};
  Seconds longest_validation_{};
  Seconds longest_save_{};  ///< until there is one: the time that filling the state took
  Seconds last_save_{};     ///< since_start_ when it ended
  std::int64_t saved_step_ = -1;
  Seconds started_{};             ///< since_start_ before the first step of this start
  Seconds logged_{};              ///< since_start_ at the last log line
  std::int64_t logged_tokens_{};  ///< of this start, at the last log line
};

template <class T>
void Training<T>::open_data() {
  auto const open = [&](std::vector<data::Source> const& sources, char const* key) {
    return std::make_unique<data::Dataset>(
        sources, data::DatasetOptions{.key = key,
                                      .format = config_.data.format,
                                      .vocab = config_.model.vocab,
                                      .sequence = config_.train.sequence,
                                      .cross_documents = config_.data.cross_documents,
                                      .separator = config_.data.separator});
  };
  mpi::agree(comm_, [&] {
    train_data_ = open(config_.data.train, "data.train");
    if (!config_.data.valid.empty()) {
      valid_data_ = open(config_.data.valid, "data.valid");
    }
  });
}

/// Collective. Each node speaks for itself; memory is not taken yet.
template <class T>
void Training<T>::look_for_shortages(launch::Needs const& needs) {
  auto const node = comm_.split_by_node();
  auto const shortages = launch::shortages(node, place_, needs);
  mpi::agree(comm_, [&] { report(shortages, node.rank() == 0); });
}

/// Collective. A run that cannot save shall say so now, not after days.
template <class T>
void Training<T>::require_space_for_a_checkpoint() {
  Bytes const needed = comm_.sum(checkpoint::space_for(runner_->subgroups()));
  mpi::agree(comm_, [&] {
    if (!leads()) {
      return;
    }
    Bytes const free = aio::free_bytes(config_.checkpoint.dir);
    if (free < needed) {
      throw IoError{
          fmt::format("checkpoint.dir={}: a checkpoint takes {}, but {} is free there; make room "
                      "or set another checkpoint.dir",
                      config_.checkpoint.dir, format_bytes(needed), format_bytes(free))};
    }
  });
}

template <class T>
void Training<T>::start_or_continue() {
  Stopwatch const watch;
  std::optional<checkpoint::Meta> found;
  std::string const& resume = config_.checkpoint.resume;
  if (resume == "auto") {
    found = store_->restore_newest(config_.model, runner_->map(), runner_->subgroups(),
                                   runner_->tiers(), runner_->fill_working_copy());
  } else if (resume != "none") {
    found = store_->restore(resume, config_.model, runner_->map(), runner_->subgroups(),
                            runner_->tiers(), runner_->fill_working_copy());
  }
  if (found) {
    meta_ = std::move(*found);
    saved_step_ = meta_.step;
    continue_loss_scale();
    if (leads()) {
      log::info("continuing after step {}", meta_.step);
    }
    if (leads() && meta_.seed != config_.train.seed) {
      log::warning("train.seed={} differs from the checkpoint's {}: the order of the data changes",
                   config_.train.seed, meta_.seed);
    }
  } else {
    start();
  }
  if (resume != "auto") {
    store_->pass_over_after(meta_.step);
  }
  meta_.model = config_.model;
  meta_.seed = config_.train.seed;
  meta_.configuration = text_of(config_.settings);
  meta_.program = fmt::format("offstage {} ({})", version(), build_description());
  meta_.threads = place_.threads;
  meta_.ranks = comm_.size();
  longest_save_ = watch.elapsed();
}

template <class T>
void Training<T>::start() {
  std::string const& from = config_.train.init_from;
  std::unique_ptr<state::ParameterReader> first_weights;
  if (leads()) {
    log::info("starting at step 0 with seed {}{}", config_.train.seed,
              from.empty() ? "" : fmt::format(" from the weights in {}", from));
  }
  if (!from.empty()) {
    mpi::agree(comm_, [&] {
      first_weights = convert::open_parameters(from, "train.init-from");
      if (!same_parameters(first_weights->shape(), config_.model)) {
        throw UsageError{fmt::format(
            "train.init-from={}: its model is not that of the model.* keys; leave them out", from)};
      }
    });
  }
  runner_->initialize(first_weights.get());
}

/// A checkpoint of another type says nothing of the scale.
template <class T>
void Training<T>::continue_loss_scale() {
  auto const rules = loss_scale_rules<T>(config_);
  bool const was_fp16 = meta_.configuration.find("numerics.dtype=fp16\n") != std::string::npos;
  loss_scale_ = rules.dynamic && was_fp16
                    ? LossScale{rules, meta_.loss_scale, meta_.loss_scale_steps}
                    : LossScale{rules};
}

template <class T>
ExitCode Training<T>::run() {
  prepare();
  started_ = logged_ = since_start_.elapsed();
  Stop stop = Stop::none;
  while (meta_.step < config_.train.steps && stop == Stop::none) {
    one_step();
    stop = meta_.step < config_.train.steps ? stop_wanted() : Stop::none;
    if (stop == Stop::none && validation_follows(meta_.step)) {
      validate();
    }
    if (save_is_due(stop)) {
      save();
    }
  }
  signals_.ignore();
  conclude(stop);
  return stop == Stop::none ? ExitCode::done : ExitCode::more;
}

/// Everything before the first step. What a user can mend is found here, and then nothing is left
/// behind.
template <class T>
void Training<T>::prepare() {
  open_data();
  // The locks come first: a second run on a busy directory shall not take memory or space.
  mpi::agree(comm_, [&] {
    if (leads()) {
      directories_ = std::make_unique<Directories>(config_);
    }
  });
  auto const process = comm_.broadcast_value(static_cast<std::int64_t>(getpid()), 0);
  runner_ = std::make_unique<StepRunner<T>>(
      config_, comm_,
      fmt::format("{}-{}", std::filesystem::path{config_.run_dir}.filename().string(), process),
      [this](launch::Needs const& needs) { look_for_shortages(needs); });
  print_header(config_,
               {.place = place_,
                .nodes = runner_->nodes(),
                .parameters = state::count_parameters(runner_->map().layers()),
                .device = runner_->device().name(),
                .memory = runner_->memory_plan(),
                .host_memory_limit = runner_->host_memory_limit(),
                .subgroups = static_cast<std::int64_t>(runner_->subgroups().size())},
               comm_);
  store_ =
      std::make_unique<checkpoint::Store>(config_.checkpoint.dir, config_.checkpoint.keep, comm_);
  require_space_for_a_checkpoint();
  start_or_continue();
  mpi::agree(comm_, [&] {
    if (!leads()) {
      return;
    }
    metrics_ = std::make_unique<MetricsFile>(
        (std::filesystem::path{config_.run_dir} / "metrics.jsonl").string(), meta_.step);
    directories_->keep();
  });
}

/// The end table, and the line that says how it ended.
template <class T>
void Training<T>::conclude(Stop stop) {
  times_.total = since_start_.elapsed();
  times_.host_memory_peak = runner_->host_memory_peak();
  times_.host_memory_limit = runner_->host_memory_limit();
  if (!leads()) {
    return;
  }
  if (times_.steps == 0) {
    log::info("nothing to do: step {} is done, and train.steps={} asks for no more", meta_.step,
              config_.train.steps);
    return;
  }
  print_end_table(times_);
  if (times_.host_memory_peak > times_.host_memory_limit) {
    log::warning(
        "tiers.host-memory={} is too small for the libraries beside the plan: the peak was {}",
        format_bytes(times_.host_memory_limit), format_bytes(times_.host_memory_peak));
  }
  if (stop == Stop::none) {
    static_cast<void>(take_stop_file());  // it came too late to be obeyed
    log::info("done: step {} of {}", meta_.step, config_.train.steps);
  } else {
    log::info("stopped after step {} of {} because {}; the same command goes on from there",
              meta_.step, config_.train.steps, reason_of(stop));
  }
}

template <class T>
void Training<T>::one_step() {
  Stopwatch watch;
  double const rate = learning_rate(config_.optimizer, config_.train.steps, meta_.step + 1);
  StepResult const result = runner_->step(*train_data_, meta_.samples, rate,
                                          meta_.optimizer_step + 1, loss_scale_.value());
  ++meta_.step;
  meta_.samples += config_.train.global_batch;
  meta_.learning_rate = rate;
  double const scale = loss_scale_.value();
  if (!result.skipped) {
    ++meta_.optimizer_step;
    meta_.bad_steps = 0;
    loss_scale_.good_step();
  } else if (!std::isfinite(result.loss) || !loss_scale_.overflow()) {
    ++meta_.bad_steps;
  }
  meta_.loss_scale = loss_scale_.value();
  meta_.loss_scale_steps = loss_scale_.good_steps();
  after_step(result, scale, watch.elapsed());
}

template <class T>
void Training<T>::after_step(StepResult const& result, double loss_scale, Seconds seconds) {
  longest_step_ = std::max(longest_step_, seconds);
  times_.forward += result.forward;
  times_.backward += result.backward;
  times_.update += result.update;
  times_.update_bytes += result.read_bytes + result.write_bytes;
  times_.tokens += config_.train.global_batch * config_.train.sequence;
  ++times_.steps;

  Bytes const read_bytes = comm_.sum(result.read_bytes);
  Bytes const write_bytes = comm_.sum(result.write_bytes);
  mpi::agree(comm_, [&] {
    if (leads()) {
      metrics_->write({.step = meta_.step,
                       .loss = result.loss,
                       .grad_norm = result.grad_norm,
                       .learning_rate = meta_.learning_rate,
                       .tokens = meta_.samples * config_.train.sequence,
                       .skipped = result.skipped,
                       .loss_scale = loss_scale,
                       .step_seconds = seconds,
                       .forward_seconds = result.forward,
                       .backward_seconds = result.backward,
                       .update_seconds = result.update,
                       .read_bytes = read_bytes,
                       .write_bytes = write_bytes});
      log_step(result, loss_scale);
    }
    if (meta_.bad_steps >= config_.train.max_bad_steps) {
      throw DataError{fmt::format(
          "loss or gradient norm was not finite in {} steps in a row, up to step {} "
          "(train.max-bad-steps={}); lower optimizer.lr or look at the data, then start from an "
          "earlier checkpoint",
          meta_.bad_steps, meta_.step, config_.train.max_bad_steps)};
    }
  });
}

template <class T>
void Training<T>::log_step(StepResult const& result, double loss_scale) {
  if (loss_scale_.value() < loss_scale) {
    log::info("step {}: gradients overflowed at loss scale {}, next {}; update skipped", meta_.step,
              loss_scale, loss_scale_.value());
  } else if (result.skipped) {
    log::warning("step {}: loss {} or gradient norm {} is not finite, update skipped", meta_.step,
                 result.loss, result.grad_norm);
  }
  bool const due = meta_.step % config_.train.log_every == 0 || times_.steps == 1 ||
                   meta_.step == config_.train.steps;
  if (!due) {
    return;
  }
  // Both rates take in everything since then: saves and validations too.
  Seconds const now = since_start_.elapsed();
  auto const tokens = static_cast<double>(times_.tokens - logged_tokens_);
  double const rate = tokens / (now - logged_).count();
  logged_ = now;
  logged_tokens_ = times_.tokens;
  Seconds const mean = (now - started_) / static_cast<double>(times_.steps);
  log::info("step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  left {}",
            meta_.step, config_.train.steps, result.loss, result.grad_norm, meta_.learning_rate,
            rate, format_duration(mean * static_cast<double>(config_.train.steps - meta_.step)));
}

template <class T>
bool Training<T>::validation_follows(std::int64_t step) const {
  std::int64_t const every = config_.train.valid_every;
  return valid_data_ && (step == config_.train.steps || (every > 0 && step % every == 0));
}

template <class T>
void Training<T>::validate() {
  Stopwatch watch;
  std::int64_t const all =
      std::max<std::int64_t>(1, valid_data_->windows() / config_.train.micro_batch);
  std::int64_t const wanted = config_.train.valid_batches;
  double const loss = runner_->validate(*valid_data_, wanted > 0 ? std::min(wanted, all) : all);
  times_.validation += watch.elapsed();
  longest_validation_ = std::max(longest_validation_, watch.elapsed());
  mpi::agree(comm_, [&] {
    if (!leads()) {
      return;
    }
    metrics_->write_validation(meta_.step, loss);
    log::info("step {:>6}  validation loss {:.4f}", meta_.step, loss);
  });
}

/// True if run.dir/STOP was there; it is gone then, so that the next start does not stop again.
template <class T>
bool Training<T>::take_stop_file() const {
  std::error_code ignored;
  return std::filesystem::remove(std::filesystem::path{config_.run_dir} / "STOP", ignored);
}

template <class T>
Stop Training<T>::stop_wanted() {
  auto wanted = Stop::none;
  if (leads()) {
    Seconds const next_end = since_start_.elapsed() + longest_step_ + longest_save_ +
                             (validation_follows(meta_.step + 1) ? longest_validation_ : Seconds{});
    if (config_.train.max_time.count() > 0.0 && next_end > config_.train.max_time) {
      wanted = Stop::time;
    } else if (take_stop_file()) {
      wanted = Stop::file;
    }
  }
  auto const signalled = comm_.maximum(static_cast<std::int64_t>(signals_.received()));
  wanted = comm_.broadcast_value(wanted, 0);
  return wanted == Stop::none && signalled != 0 ? Stop::signal : wanted;
}

template <class T>
bool Training<T>::save_is_due(Stop stop) {
  if (stop != Stop::none || meta_.step == config_.train.steps) {
    return true;
  }
  CheckpointConfig const& every = config_.checkpoint;
  if (every.every_steps > 0) {
    return meta_.step % every.every_steps == 0;
  }
  bool const due =
      every.every_time.count() > 0.0 && since_start_.elapsed() - last_save_ >= every.every_time;
  return comm_.broadcast_value(due, 0);
}

template <class T>
void Training<T>::save() {
  if (saved_step_ == meta_.step) {
    return;
  }
  mpi::agree(comm_, [&] {
    if (leads()) {
      metrics_->sync();  // a checkpoint is never ahead of its metrics
    }
  });
  auto const stats = store_->save(meta_, runner_->map(), runner_->subgroups(), runner_->tiers());
  saved_step_ = meta_.step;
  last_save_ = since_start_.elapsed();
  longest_save_ = std::max(longest_save_, stats.seconds);
  times_.checkpoint += stats.seconds;
  times_.checkpoint_bytes += stats.bytes;
  if (leads()) {
    log::info("step {:>6}  saved {} in {}", meta_.step, stats.path, format_duration(stats.seconds));
  }
}

}  // namespace

ExitCode run_training(RunConfig const& config, mpi::Communicator const& comm,
                      StopSignals& signals) {
  // The host device leaves the GPUs alone: more ranks than GPUs are no mistake there.
  constexpr auto kind = device::Kind::host;
  auto const place = launch::take_place(
      comm,
      {.threads = config.threads, .share_gpu = config.share_gpu || kind == device::Kind::host});
  switch (config.numerics.dtype) {
    case DType::bf16:
      return Training<bfloat16>{config, comm, signals, place}.run();
    case DType::fp16:
      return Training<float16>{config, comm, signals, place}.run();
    case DType::fp32:
      break;
  }
  return Training<float>{config, comm, signals, place}.run();
}

}  // namespace offstage::train
