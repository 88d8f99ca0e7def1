#include "train/run/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/failure.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/stopwatch.hpp"
#include "base/version.hpp"
#include "base/watch.hpp"
#include "checkpoint/directory.hpp"
#include "config/split_parameters.hpp"
#include "launch/launcher.hpp"
#include "train/memory/crowding.hpp"
#include "train/report/data_lines.hpp"
#include "train/report/header.hpp"
#include "train/report/journal.hpp"
#include "train/report/records.hpp"
#include "train/report/storage_totals.hpp"
#include "train/run/due_saves.hpp"
#include "train/run/first_weights.hpp"
#include "train/run/plan_choice.hpp"
#include "train/run/position.hpp"
#include "train/run/run_parts.hpp"
#include "train/run/slow_nodes.hpp"
#include "train/run/validations.hpp"
#include "train/saves/best_loss.hpp"
#include "train/saves/cadence.hpp"
#include "train/saves/checkpoint_space.hpp"
#include "train/saves/continuation.hpp"
#include "train/saves/resume.hpp"
#include "train/saves/saves.hpp"
#include "train/settle/run_device.hpp"
#include "train/settle/run_length.hpp"
#include "train/step/schedule.hpp"
#include "train/step/step_runner.hpp"

namespace offstage::train {
namespace {

std::vector<PathRecord> path_records(config::RunConfig const& config,
                                     std::vector<PathFacts> const& facts) {
  std::vector<PathRecord> records;
  for (std::size_t i = 0; i < std::min(config.paths.size(), facts.size()); ++i) {
    records.push_back({config.paths[i].directory, facts[i].rate.read, facts[i].rate.write,
                       config.paths[i].transfers()});
  }
  return records;
}

/// The run from its first step to its last: everything that is not a step itself.
template <class T>
class Training {
 public:
  /// The training is on the rank's GPU if its place has one. Settings that device and ranks decide
  /// are written to `config` before memory is taken by them.
  Training(config::RunConfig& config, mpi::Communicator const& comm, StopSignals& signals,
           launch::RankPlace const& place)
      : config_{config},
        comm_{comm},
        signals_{signals},
        place_{place},
        cadence_{config, comm, signals},
        journal_{config, comm.rank() == 0},
        slow_nodes_{config, comm},
        plan_choice_{config, comm, cadence_},
        at_{config} {}

  ExitCode run();
  /// The configuration with which the run is to start anew: the given one with the measured rates.
  /// It is set if run() has ended for that, after a save.
  [[nodiscard]] std::optional<config::RunConfig> const& next() const { return next_; }

 private:
  void prepare();
  [[nodiscard]] bool is_last_step() const { return at_.step() == config_.train.steps; }
  /// Returns whether this start has anything to do.
  [[nodiscard]] bool has_work() const {
    return (at_.step() < config_.train.steps && !validations_->has_lost_patience()) ||
           validations_->is_owed();
  }
  /// Makes the validation that an earlier start left out.
  void make_up_validation();
  void begin_records();
  [[nodiscard]] bool goes_on() const { return stop_ == Stop::none && !next_; }
  void start_or_continue();
  void one_step();
  /// Makes a forecast of the steps to come, as soon as the rates that it needs are known.
  void look_ahead();
  void run_steps();
  /// The memory of the run and its limits, without peaks. Collective.
  [[nodiscard]] MemoryRecord memory_limits() const;
  void conclude();
  [[nodiscard]] StepRunner<T>& runner() const { return parts_->runner(); }
  [[nodiscard]] Saves& saves() { return parts_->saves(); }
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  config::RunConfig& config_;
  mpi::Communicator const& comm_;
  StopSignals& signals_;
  launch::RankPlace const& place_;
  Cadence cadence_;
  Crowding crowding_;
  Journal journal_;
  SlowNodes slow_nodes_;
  PlanChoice<T> plan_choice_;
  Position at_;
  Stop stop_ = Stop::none;
  std::optional<config::RunConfig> next_;
  Seconds start_seconds_{};
  std::optional<RunParts<T>> parts_;  ///< from prepare() on, as what follows
  std::optional<DueSaves<T>> due_saves_;
  std::optional<Validations<T>> validations_;
};

template <class T>
void Training<T>::start_or_continue() {
  Stopwatch const watch;
  checkpoint::RunState const run{
      config_.model,
      {.optimizer = std::string{kernels::name_of(config_.optimizer.kind)},
       .moments = std::string{kernels::name_of(config_.optimizer.moments)},
       .layout = config_.optimizer.checkpoint_layout()}};
  auto found = saves().restore(config_.checkpoint.resume, run, parts_->state(),
                               runner().fill_working_copy());
  if (found) {
    at_.go_on_from(*std::move(found));
    if (config_.train.epochs > 0.0) {
      config_.train.steps =
          steps_of_epochs(config_.train, parts_->train_data().windows(), at_.step(), at_.tokens());
    }
    if (leads()) {
      log::dated("continuing after step {}", at_.step());
      auto const settings = with_longest_sequence(at_.meta().configuration, parts_->settings());
      say_what_changed(at_.meta(), config_, settings,
                       program_text(config_.commit, parts_->libraries()));
      auto const changes = learned_changes(at_.meta().configuration, settings);
      bool const same_data =
          std::ranges::find(changes, "data.train", &Change::key) == changes.end();
      auto const files = parts_->train_data().files(data::Samples::left_out);
      for (auto const& line : correct_epochs(files, config_.train, at_.step(), at_.tokens())) {
        if (same_data) {
          log::info("{}", line);
        }
      }
    }
    if (leads() && at_.meta().seed != config_.train.seed) {
      log::warning(
          "train.seed={} differs from the checkpoint's {}: the order of the data and the rounding "
          "of small moments change",
          config_.train.seed, at_.meta().seed);
    }
  } else {
    auto const first = first_weights(config_, comm_);
    runner().initialize(first.get());
  }
  mpi::agree(comm_, [&] { require_begun(config_.optimizer, at_.step()); });
  for (auto const& warning :
       {warning_of_rates(config_.optimizer, config_.train.steps, at_.step()),
        warning_of_decay(config_.optimizer, config_.train.steps, at_.step())}) {
    if (leads() && !warning.empty()) {
      log::warning("{}", warning);
    }
  }
  at_.set_start(run.state, program_text(config_.commit, parts_->libraries()), place_.threads,
                comm_.size(), parts_->settings());
  cadence_.expect_save(watch.elapsed(), saves().is_saved(at_.step()));
}

template <class T>
ExitCode Training<T>::run() {
  Stopwatch const watch;
  prepare();
  start_seconds_ = watch.elapsed();
  try {
    run_steps();
  } catch (mpi::AgreedError const&) {
    journal_.failed(at_.step(), failure_of(std::current_exception()), at_.has_diverged(),
                    cadence_.now());
    saves().finish_after_error();
    throw;
  } catch (std::exception const&) {
    journal_.failed(at_.step(), failure_of(std::current_exception()), at_.has_diverged(),
                    cadence_.now());
    if (comm_.size() == 1) {
      saves().finish_after_error();
    }
    throw;
  }
  saves().end_copies();
  if (next_) {
    mpi::agree(comm_, [&] { journal_.sync(); });
    return ExitCode::more;
  }
  signals_.ignore();
  if (at_.step() == 0 || saves().is_saved(at_.step())) {
    saves().remove_local();
  }
  conclude();
  return stop_ == Stop::none || stop_ == Stop::patience ? ExitCode::done : ExitCode::more;
}

template <class T>
void Training<T>::make_up_validation() {
  if (!validations_->make_whatever_the_time()) {
    stop_ = cadence_.after_half_a_validation(at_.step()).stop;
    return;
  }
  validations_->tell_the_checkpoint();
}

template <class T>
void Training<T>::run_steps() {
  if (validations_->is_owed()) {
    make_up_validation();
  }
  if (validations_->begin_with_best()) {
    if (validations_->checkpoint_dir_has_best()) {
      saves().store().keep_best(at_.step());
    } else {
      due_saves_->save({.save = true}, !is_last_step(), true);
    }
  }
  if (config_.train.valid_first && at_.step() == 0 && config_.train.steps > 0) {
    if (!validations_->make_whatever_the_time() && !validations_->has_tried()) {
      stop_ = cadence_.after_half_a_validation(at_.step()).stop;
    }
  }
  if (validations_->has_lost_patience()) {
    stop_ = Stop::patience;
  }
  if (at_.step() < config_.train.steps && goes_on()) {
    parts_->keep_local_level(at_.step());
  }
  while (at_.step() < config_.train.steps && goes_on()) {
    one_step();
    Decision next = cadence_.after(at_.step());
    stop_ = next.stop;
    if (next.validate && is_last_step() && !config_.checkpoint.keep_best) {
      due_saves_->save(next, false, false);  // nothing stops what follows, which may be long
    }
    if (next.validate && !validations_->make()) {
      next = cadence_.after_half_a_validation(at_.step());
      stop_ = next.stop;
    } else if (next.validate) {
      validations_->tell_the_checkpoint();
      next.save = next.save || (config_.checkpoint.keep_best && validations_->is_best());
      if (stop_ == Stop::none && validations_->has_lost_patience()) {
        stop_ = Stop::patience;
        next.save = true;
      }
    }
    if (stop_ == Stop::none && config_.plan.choose &&
        !comm_.broadcast_value(journal_.lacks_records(), 0)) {  // they wait in this start's memory
      next_ = plan_choice_.look_at_rates(at_.progress(start_seconds_), runner());
    }
    next.save = next.save || next_.has_value();
    due_saves_->save(next, goes_on() && at_.step() < config_.train.steps, validations_->is_best());
  }
  if (at_.step() > 0 && !saves().is_saved(at_.step())) {
    due_saves_->save({.save = true}, false,
                     validations_->is_best());  // only level 1 had the last step
  }
}

/// Does everything before the first step. Errors that a user can mend are found here, and leave
/// nothing behind.
template <class T>
void Training<T>::prepare() {
  parts_.emplace(config_, comm_, place_, plan_choice_, cadence_, journal_);
  validations_.emplace(config_, comm_, *parts_, at_, cadence_, journal_);
  validations_->require_target();
  due_saves_.emplace(config_, comm_, *parts_, at_, journal_);
  start_or_continue();
  if (config_.checkpoint.keep_best) {
    saves().store().keep_best(-1);
  }
  look_at_space_to_come(config_, comm_, parts_->checkpoint_part(), saves().store(), at_.step());
  mpi::agree(comm_, [&] {
    if (leads()) {
      require_records(config_);
    }
    journal_.open(at_.step(), at_.last_loss(), [this] { parts_->directories().look_at_run(); });
  });
  validations_->find_best();
  begin_records();
}

/// Writes the run's first records to run.dir.
template <class T>
void Training<T>::begin_records() {
  auto const settings = with_longest_sequence(at_.meta().configuration, parts_->settings());
  StartRecord const start{.step = at_.step(),
                          .time = slurm::TimePoint::clock::now(),
                          .program = at_.meta().program,
                          .working_directory = working_directory(),
                          .ranks = comm_.size(),
                          .nodes = node_names(config_.node, comm_),
                          .job = config_.job,
                          .parameters = state::count_parameters(runner().map().layers()),
                          .memory = memory_limits(),
                          .paths = path_records(config_, runner().path_facts()),
                          .validations_begin_anew = validations_->begin_anew(),
                          .from = named_checkpoint(config_.checkpoint),
                          .changes = learned_changes(at_.meta().configuration, settings)};
  if (has_work() && at_.step() < config_.train.steps) {
    mpi::agree(comm_, [&] {
      if (auto forecast = runner().open_trace()) {
        journal_.expect(*std::move(forecast));
      }
    });
  }
  mpi::agree(comm_, [&] {
    journal_.begin(start, has_work(), cadence_.now());
    if (leads() && has_work()) {
      write_records(config_, parts_->header(), comm_.size());
    }
    if (leads()) {
      parts_->directories().keep();
    }
  });
}

template <class T>
MemoryRecord Training<T>::memory_limits() const {
  return {.host_limit = runner().room().host_memory,
          .host_planned = runner().memory_plan().node_total,
          .host_libraries = runner().library_bytes(),
          .device_limit = runner().room().device_memory,
          .device_planned = comm_.maximum(runner().device_plan().total())};
}

template <class T>
void Training<T>::conclude() {
  if (leads() && (stop_ == Stop::none || stop_ == Stop::patience)) {
    static_cast<void>(take_stop_file(config_));  // the file came too late
  }
  if (leads() && at_.is_bad()) {
    log::warning(
        "step {} was skipped, and {} in a row with it: their loss or gradient norm was not finite; "
        "the run may have diverged",
        at_.step(), at_.meta().bad_steps);
  }
  MemoryRecord memory = memory_limits();
  memory.host_peak = runner().host_memory_peak();
  memory.device_peak = runner().device_memory_peak();
  RunEnd const end{.step = at_.step(),
                   .stop = stop_,
                   .total = cadence_.now(),
                   .memory = memory,
                   .slow_nodes = slow_nodes_.conclude(),
                   .advice = leads() && !is_urgent(stop_)
                                 ? plan_choice_.advice(at_.progress(start_seconds_), runner(),
                                                       journal_.reached())
                                 : std::vector<std::string>{},
                   .best = at_.best(),
                   .best_is_kept = leads() ? validations_->keeps_best() : std::nullopt};
  mpi::agree(comm_, [&] {
    journal_.conclude(end);
    if (leads() && stop_ == Stop::file) {
      require_no_stop_file(config_);
    }
  });
}

template <class T>
void Training<T>::one_step() {
  trace::Scope const scope{runner().trace(), "steps", "step", at_.step() + 1};
  Stopwatch watch;
  Seconds const waited_before = waited_for_ranks();
  double const rate = learning_rate(config_.optimizer, config_.train.steps, at_.step() + 1);
  double const scale = at_.loss_scale();
  std::int64_t const sample = at_.meta().samples + skipped(config_.data.skips, at_.step());
  StepResult const result =
      runner().step(parts_->train_data(), sample, rate, at_.meta().optimizer_step + 1, scale);
  at_.advance(result, rate);
  Seconds const seconds = watch.elapsed() - result.stood_still;
  cadence_.step_took(seconds);
  auto const slow =
      slow_nodes_.step_done(std::max(Seconds{}, seconds - (waited_for_ranks() - waited_before)));
  StepEntry const entry{
      .result = result,
      .meta = at_.meta(),
      .loss_scale = scale,
      .tokens = at_.tokens(),
      .seconds = seconds,
      .storage = sum_over_ranks(result.storage, comm_),
      .activations = {.out = comm_.sum(result.activations.out),
                      .back = comm_.sum(result.activations.back),
                      .waited = Seconds{comm_.maximum(result.activations.waited.count())}}};
  for (std::string const& sentence : slow) {
    if (leads()) {
      log::warning("{}", sentence);
    }
  }
  if (place_.local_rank == 0) {
    if (auto const crowded = crowding_.look(); !crowded.empty()) {
      log::warning("{}", crowded);
    }
  }
  mpi::agree(comm_, [&] {
    journal_.step_done(entry, cadence_.now());
    at_.require_good_steps();
  });
  look_ahead();
}

// Rates of the first update may be known only once the second step has begun. After that no more
// rates become known.
template <class T>
void Training<T>::look_ahead() {
  constexpr std::int64_t measuring_steps = 2;
  std::int64_t const steps = at_.progress({}).steps;
  if (journal_.expects() || steps > measuring_steps) {
    return;
  }
  auto forecast = runner().foresee();
  if (forecast && (forecast->unknown.empty() || steps == measuring_steps)) {
    journal_.expect(*std::move(forecast));
  }
}

/// Trains to the last step, or until something stops the run. Each new start uses the given
/// configuration and the rates known by then.
template <class T>
ExitCode train(config::RunConfig given, mpi::Communicator const& comm, StopSignals& signals,
               launch::RankPlace const& place) {
  for (;;) {
    config::RunConfig config = given;
    Training<T> training{config, comm, signals, place};
    ExitCode const code = training.run();
    if (!training.next()) {
      return code;
    }
    given = *training.next();
  }
}

}  // namespace

ExitCode run_training(config::RunConfig const& config, mpi::Communicator const& comm,
                      StopSignals& signals) {
  auto const place = take_run_place(config, comm);
  config::RunConfig settled = config;
  settled.device.kind = place.placement.gpu ? config::DeviceKind::cuda : config::DeviceKind::host;
  settled.threads = place.threads;
  settled.checkpoint.resume = settle_resume(config.checkpoint, comm);
  if (!config.plan.choose) {
    mpi::agree(comm, [&] { config::settle_split_parameters(settled); });
  }
  if (comm.rank() == 0 && config.storage.split_parameters == config::Switch::on &&
      std::ranges::any_of(config.paths, &tiers::PathSettings::persistent)) {
    log::warning(
        "tiers.split-parameters=on: checkpoints hold whole parameters, so extents on a persistent "
        "tiers.path are copied into them");
  }
  return with_type(config.numerics.dtype,
                   [&]<class T>(T) { return train<T>(std::move(settled), comm, signals, place); });
}

}  // namespace offstage::train
