#include "train/run/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/version.hpp"
#include "base/watch.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/writer.hpp"
#include "config/split_parameters.hpp"
#include "convert/convert.hpp"
#include "launch/launcher.hpp"
#include "platform/memory/process_memory.hpp"
#include "train/files/directories.hpp"
#include "train/memory/crowding.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/offload/storage.hpp"
#include "train/report/best_loss.hpp"
#include "train/report/data_lines.hpp"
#include "train/report/header.hpp"
#include "train/report/journal.hpp"
#include "train/report/records.hpp"
#include "train/report/storage_totals.hpp"
#include "train/run/plan_choice.hpp"
#include "train/run/slow_nodes.hpp"
#include "train/saves/cadence.hpp"
#include "train/saves/checkpoint_space.hpp"
#include "train/saves/continuation.hpp"
#include "train/saves/local_level.hpp"
#include "train/saves/save_rate.hpp"
#include "train/saves/saves.hpp"
#include "train/settle/activation_choice.hpp"
#include "train/settle/run_attention.hpp"
#include "train/settle/run_device.hpp"
#include "train/settle/run_rank_link.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/settle/sharding.hpp"
#include "train/step/loss_scale.hpp"
#include "train/step/schedule.hpp"
#include "train/step/step_runner.hpp"

namespace offstage::train {
namespace {

/// Warns of shortages. The first one with which no run is possible ends this one.
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

std::vector<PathRecord> path_records(config::RunConfig const& config,
                                     std::vector<PathFacts> const& facts) {
  std::vector<PathRecord> records;
  for (std::size_t i = 0; i < std::min(config.paths.size(), facts.size()); ++i) {
    records.push_back({config.paths[i].directory, facts[i].rate.read, facts[i].rate.write});
  }
  return records;
}

/// Returns true if the step with the best validation has a complete checkpoint.
bool keeps(config::RunConfig const& config, BestLoss const& best) {
  return best.any() && std::ranges::any_of(
                           checkpoint::step_directories(config.checkpoint.dir),
                           [&](checkpoint::StepDirectory const& each) {
                             return each.step == best.best().step &&
                                    checkpoint::size_of(each.path + "/" + checkpoint::master_name);
                           });
}

/// Logs the keys that have changed since `checkpoint`, from which the run goes on.
void say_what_changed(checkpoint::Meta const& checkpoint, config::RunConfig const& config) {
  for (std::string const& line : describe_changes(checkpoint.configuration, config.settings)) {
    log::info("{}", line);
  }
  auto const advice = advice_on_rate(config.optimizer, config.train.steps, checkpoint.step,
                                     checkpoint.learning_rate);
  if (!advice.empty()) {
    log::warning("{}", advice);
  }
}

/// The rules of the loss scale. Types with the range of FP32 need none.
template <class T>
config::LossScaleRules loss_scale_rules(config::RunConfig const& config) {
  if constexpr (std::is_same_v<T, float16>) {
    return config.numerics.loss_scale;
  }
  return {.dynamic = false, .start = 1.0};
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
        loss_scale_{loss_scale_rules<T>(config)},
        slow_nodes_{config, comm},
        plan_choice_{config, comm, cadence_} {}

  ExitCode run();
  /// The configuration with which the run is to start anew: the given one with the measured rates.
  /// It is set if run() has ended for that, after a save.
  [[nodiscard]] std::optional<config::RunConfig> const& next() const { return next_; }

 private:
  void prepare();
  /// Opens the stores of checkpoints, and tells the runner which saves go on beside its work.
  void open_saves();
  void begin_records();
  /// Finds the best validation of earlier starts, if it counts for this one.
  void find_best();
  [[nodiscard]] bool goes_on() const { return stop_ == Stop::none && !next_; }
  /// Settles the keys that depend on the device's memory. Rates that this needs are measured.
  void settle(device::Device& device, state::RankLink const& link);
  /// Settles checkpoint.rate and checkpoint.files, and finds the storage path on which
  /// checkpoint.dir lies.
  void settle_saves();
  void open_data();
  /// `link` is the way of layers from rank to rank, in words.
  void print_header(std::string const& link);
  void look_for_shortages(launch::Needs const& needs);
  void start_or_continue();
  void start();
  void continue_loss_scale();
  void one_step();
  /// Makes a forecast of the steps to come, as soon as the rates that it needs are known.
  void look_ahead();
  void validate();
  /// Returns whether the last validation was the best so far, and of this step.
  [[nodiscard]] bool is_best() const {
    return best_.any() && best_.since() == 0 && best_.best().step == meta_.step;
  }
  /// Returns whether train.patience is at its end.
  [[nodiscard]] bool has_lost_patience() const {
    return config_.train.patience > 0 && best_.since() >= config_.train.patience;
  }
  void run_steps();
  /// Saves; under the next step if there is one.
  void save(Decision const& due);
  /// Waits until the state is as a save needs it. Returns the time of the wait.
  Seconds settle_state();
  [[nodiscard]] Saves::State state() {
    return {runner_->map(), runner_->subgroups(), runner_->tiers()};
  }
  /// Ends an earlier save that goes on, or returns false if this save waits for a later step.
  [[nodiscard]] bool finish_earlier_save(bool a_step_follows);
  /// The memory of the run and its limits, without peaks. Collective.
  [[nodiscard]] MemoryRecord memory_limits() const;
  void conclude();
  [[nodiscard]] RunProgress progress() const {
    return {.step = meta_.step,
            .steps = meta_.step - first_step_,
            .clipped = clipped_,
            .start = start_seconds_};
  }
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  config::RunConfig& config_;
  mpi::Communicator const& comm_;
  StopSignals& signals_;
  launch::RankPlace const& place_;
  Cadence cadence_;
  Crowding crowding_;
  Journal journal_;
  std::unique_ptr<data::Dataset> train_data_;
  std::unique_ptr<data::Dataset> valid_data_;
  std::unique_ptr<Directories> directories_;  ///< ends after the runner, whose slots are in them
  /// Ends after the runner too; null: there is no level 1.
  std::unique_ptr<LocalLevel> local_level_;
  std::string activations_why_;          ///< for the header
  std::vector<std::string> chosen_why_;  ///< for the header, on rank 0
  Header header_;
  RunAttention attention_;  ///< ends after the runner, whose model has its plans
  std::unique_ptr<StepRunner<T>> runner_;
  std::optional<Saves> saves_;  ///< ends before the runner, whose state it reads
  LossScale loss_scale_;
  checkpoint::Meta meta_;
  Stop stop_ = Stop::none;
  std::int64_t steps_done_{};  ///< steps of this start, up to those for which a forecast waits
  SlowNodes slow_nodes_;
  BestLoss best_;           ///< the same on all ranks
  bool postponed_ = false;  ///< a save is due and waits for the end of the one before
  std::optional<config::RunConfig> next_;
  PlanChoice<T> plan_choice_;
  Seconds start_seconds_{};
  std::int64_t first_step_ = 0, clipped_ = 0;  ///< step of the start; steps since then, clipped
  std::int64_t tokens_{};  ///< tokens seen so far, also with other sequence lengths
};

template <class T>
void Training<T>::open_data() {
  auto const open = [&](std::vector<data::Source> const& sources, char const* key) {
    return std::make_unique<data::Dataset>(sources,
                                           data::DatasetOptions{.key = key,
                                                                .format = config_.data.format,
                                                                .vocab = config_.model.vocab,
                                                                .sequence = config_.train.sequence,
                                                                .rule = config_.data.rule,
                                                                .separator = config_.data.separator,
                                                                .uses_masks = config_.data.mask,
                                                                .verifies_masks = leads()});
  };
  mpi::agree(comm_, [&] {
    train_data_ = open(config_.data.train, "data.train");
    if (!config_.data.valid.empty()) {
      valid_data_ = open(config_.data.valid, "data.valid");
    }
  });
}

/// Looks for shortages of each node, before memory is taken. Collective.
template <class T>
void Training<T>::look_for_shortages(launch::Needs const& needs) {
  auto const node = comm_.split_by_node();
  auto const shortages = launch::shortages(node, place_, needs);
  mpi::agree(comm_, [&] {
    report(shortages, node.rank() == 0);
    require_storage(config_);
    if (node.rank() == 0) {
      tidy_storage(config_);
    }
  });
}

template <class T>
void Training<T>::start_or_continue() {
  Stopwatch const watch;
  checkpoint::RunState const run{
      config_.model,
      {.optimizer = std::string{kernels::name_of(config_.optimizer.kind)},
       .moments = std::string{kernels::name_of(config_.optimizer.moments)},
       .layout = config_.optimizer.checkpoint_layout()}};
  auto found =
      saves_->restore(config_.checkpoint.resume, run, state(), runner_->fill_working_copy());
  if (found) {
    meta_ = std::move(*found);
    continue_loss_scale();
    if (leads()) {
      log::dated("continuing after step {}", meta_.step);
      say_what_changed(meta_, config_);
    }
    if (leads() && meta_.seed != config_.train.seed) {
      log::warning(
          "train.seed={} differs from the checkpoint's {}: the order of the data and the rounding "
          "of small moments change",
          config_.train.seed, meta_.seed);
    }
  } else {
    start();
  }
  tokens_ = found ? tokens_of(meta_.configuration, meta_.samples, config_.train.sequence) : 0;
  meta_.model = config_.model;
  meta_.state = run.state;
  meta_.seed = config_.train.seed;
  std::string const& attention = attention_.libraries;
  auto const libraries = runner_->device().libraries();
  bool const both = !libraries.empty() && !attention.empty();
  meta_.program = program_text(libraries + (both ? ", " : "") + attention);
  meta_.threads = place_.threads;
  meta_.ranks = comm_.size();
  cadence_.expect_save(watch.elapsed(), saves_->is_saved(meta_.step));
}

template <class T>
void Training<T>::start() {
  std::string const& from = config_.train.init_from;
  std::unique_ptr<state::ParameterReader> first_weights;
  if (leads()) {
    log::dated("starting at step 0 with seed {}{}", config_.train.seed,
               from.empty() ? "" : fmt::format(" from the weights in {}", from));
  }
  if (!from.empty()) {
    std::string const resolved = convert::resolve_parameters(from, "train.init-from", comm_);
    mpi::agree(comm_, [&] {
      first_weights = convert::open_parameters(resolved, "train.init-from");
      if (!same_parameters(first_weights->shape(), config_.model)) {
        throw UsageError{fmt::format(
            "train.init-from={}: its model is not that of the model.* keys; leave them out", from)};
      }
    });
  }
  runner_->initialize(first_weights.get());
}

/// Continues the loss scale. A checkpoint of another type has none.
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
  Stopwatch const watch;
  prepare();
  start_seconds_ = watch.elapsed();
  first_step_ = meta_.step;
  try {
    run_steps();
  } catch (mpi::AgreedError const&) {
    saves_->finish_after_error();
    throw;
  } catch (...) {
    if (comm_.size() == 1) {
      saves_->finish_after_error();
    }
    throw;
  }
  saves_->end_copies();
  if (next_) {
    mpi::agree(comm_, [&] { journal_.sync(); });
    return ExitCode::more;
  }
  signals_.ignore();
  saves_->remove_local();
  conclude();
  return stop_ == Stop::none || stop_ == Stop::patience ? ExitCode::done : ExitCode::more;
}

template <class T>
void Training<T>::run_steps() {
  if (config_.train.valid_first && meta_.step == 0 && config_.train.steps > 0) {
    validate();
  }
  if (has_lost_patience()) {
    stop_ = Stop::patience;
  }
  while (meta_.step < config_.train.steps && goes_on()) {
    one_step();
    Decision next = cadence_.after(meta_.step);
    stop_ = next.stop;
    if (next.validate) {
      validate();
      next.save = next.save || (config_.checkpoint.keep_best && is_best());
      if (stop_ == Stop::none && has_lost_patience()) {
        stop_ = Stop::patience;
        next.save = true;
      }
    }
    if (stop_ == Stop::none && config_.plan.choose) {
      next_ = plan_choice_.look_at_rates(progress(), *runner_);
    }
    next.save = next.save || next_.has_value();
    save(next);
  }
  if (stop_ == Stop::none && !saves_->is_saved(meta_.step)) {
    save({.save = true});  // only level 1 had the last step
  }
}

template <class T>
void Training<T>::settle(device::Device& device, state::RankLink const& link) {
  auto const node = comm_.split_by_node();
  bool const limited = config_.device.memory > 0 || device.kind() == device::Kind::cuda;
  ActivationRoom const room{
      .memory = comm_.minimum(limited ? device.capacity() : 0),
      .route = link.route(),
      .rank_link = comm_.maximum(link.device_bytes()),
      .host_memory = config_.host_memory > 0
                         ? config_.host_memory
                         : static_cast<Bytes>(auto_host_part * static_cast<double>(comm_.minimum(
                                                                   memory::available_bytes()))),
      .ranks_per_node = static_cast<int>(comm_.maximum(std::int64_t{node.size()}))};
  std::optional<state::ShardMap> map;
  mpi::agree(comm_, [&] { map.emplace(state::layers_of(config_.model), comm_.size()); });
  if (config_.plan.choose) {
    chosen_why_ = plan_choice_.choose(device, *map, room);
  }
  activations_why_ = settle_for_all<T>(config_, *map, comm_, room, device);
}

/// Does everything before the first step. Errors that a user can mend are found here, and leave
/// nothing behind.
template <class T>
void Training<T>::prepare() {
  open_data();
  // The locks come first, so that a second run on a busy directory takes no memory or space.
  mpi::agree(comm_, [&] {
    if (leads()) {
      directories_ = std::make_unique<Directories>(config_);
      checkpoint::remove_old_slots(config_.checkpoint.dir);
    }
  });
  if (!config_.checkpoint.local.empty()) {
    local_level_ = std::make_unique<LocalLevel>(config_, comm_);
  }
  auto device = make_run_device(config_.device, place_.placement, comm_);
  auto const for_link = device->kind() == device::Kind::cuda && comm_.size() > 1
                            ? rank_link_needs(config_, comm_.size())
                            : RankLinkNeeds{};
  auto link =
      make_run_rank_link(config_.comm_backend, comm_, *device, place_.placement.gpu, for_link);
  attention_ = make_run_attention<T>(config_, comm_, *device, *link.link);
  config_.device.attention_workspace = attention_.plans ? attention_.plans->workspace() : 0;
  settle(*device, *link.link);
  runner_ = std::make_unique<StepRunner<T>>(
      config_, comm_, std::move(device), std::move(link.link),
      [this](launch::Needs const& needs) { look_for_shortages(needs); }, attention_.plans.get());
  print_header(link.text);
  open_saves();
  Bytes const checkpoint_part =
      checkpoint::space_for(config_.optimizer.checkpoint_layout(), runner_->subgroups());
  require_space(config_, comm_, checkpoint_part);
  if (local_level_) {
    local_level_->require_space(checkpoint_part, saves_->is_in_local(config_.checkpoint.resume));
  }
  start_or_continue();
  if (config_.checkpoint.keep_best) {
    saves_->store().keep_best(-1);
  }
  look_at_space_to_come(config_, comm_, checkpoint_part, saves_->store(), meta_.step);
  begin_records();
  find_best();
}

template <class T>
void Training<T>::open_saves() {
  saves_.emplace(
      std::make_unique<checkpoint::Store>(
          config_.checkpoint.dir,
          checkpoint::Retention{config_.checkpoint.keep, config_.checkpoint.keep_every}, comm_),
      local_level_ ? local_level_->make_store() : nullptr, comm_, cadence_, journal_);
  if (auto const split = runner_->split_parameters()) {
    saves_->set_split(*split);
  }
  saves_->set_trace(runner_->trace());
  settle_saves();
  runner_->set_before_update([this] { return saves_->finish_if_written(); });
  if (config_.checkpoint.partner) {
    runner_->set_before_layer([this] { saves_->look_in(); });
  }
}

/// Writes the run's first records to run.dir.
template <class T>
void Training<T>::begin_records() {
  StartRecord const start{.step = meta_.step,
                          .time = slurm::TimePoint::clock::now(),
                          .ranks = comm_.size(),
                          .nodes = node_names(config_.node, comm_),
                          .job = config_.job,
                          .parameters = state::count_parameters(runner_->map().layers()),
                          .memory = memory_limits(),
                          .paths = path_records(config_, runner_->path_facts())};
  mpi::agree(comm_, [&] {
    if (auto forecast = runner_->open_trace()) {
      journal_.expect(*std::move(forecast));
    }
  });
  mpi::agree(comm_, [&] {
    if (leads()) {
      require_records(config_);
    }
    journal_.begin(start, cadence_.now());
    if (leads() && meta_.step < config_.train.steps) {
      write_records(config_, header_);
    }
    if (local_level_) {
      local_level_->keep();
    }
    if (leads()) {
      directories_->keep();
    }
    if (leads() && !local_level_) {
      checkpoint::forget_local_directory(config_.checkpoint.dir);
    }
  });
}

template <class T>
void Training<T>::find_best() {
  mpi::agree(comm_, [&] { best_ = journal_.best(); });
  if (meta_.step == 0) {
    best_ = {};  // it is another run's, or one that this start makes again
  } else if (best_.any() && validates_otherwise(meta_.configuration, config_.settings)) {
    if (leads()) {
      log::info("validation data have changed: the search for the best validation begins again");
    }
    best_ = {};
  }
  best_ = comm_.broadcast_value(best_, 0);
  if (config_.checkpoint.keep_best && best_.any()) {
    saves_->store().keep_best(best_.best().step);
  }
}

template <class T>
void Training<T>::print_header(std::string const& link) {
  std::vector<std::string> data;
  mpi::agree(comm_, [&] {
    if (leads()) {
      data = describe_data(*train_data_, valid_data_.get(), config_.train);
    }
  });
  if (auto const idle = warning_of_idle_ranks(config_, comm_.size()); leads() && !idle.empty()) {
    log::warning("{}", idle);
  }
  header_ = make_header(config_,
                        {.place = place_,
                         .nodes = runner_->nodes(),
                         .parameters = state::count_parameters(runner_->map().layers()),
                         .device = runner_->device().name(),
                         .libraries = runner_->device().libraries(),
                         .attention = attention_.text,
                         .chosen = chosen_why_,
                         .activations = activations_why_,
                         .link = link,
                         .memory = runner_->memory_plan(),
                         .layer_slots = runner_->layer_slots(),
                         .large_layer_slot = runner_->map().layer_slot_sizes().large > 0,
                         .host_memory_limit = runner_->host_memory_limit(),
                         .subgroups = static_cast<std::int64_t>(runner_->subgroups().size()),
                         .paths = runner_->path_facts(),
                         .memory_table = runner_->memory_table(),
                         .data = std::move(data)},
                        comm_);
  for (std::string const& line : config_.full_header ? header_.full : header_.brief) {
    log::info("{}", line);
  }
}

template <class T>
void Training<T>::settle_saves() {
  auto const paths = runner_->paths();
  tiers::StoragePath* path = nullptr;
  mpi::agree(comm_, [&] { path = paths ? path_on(*paths, config_.checkpoint.dir) : nullptr; });
  saves_->store().set_path(path);
  auto const node = comm_.split_by_node();
  if (config_.checkpoint.has_node_files(comm_.size())) {
    saves_->store().set_node_files(node, std::ssize(runner_->subgroups()));
  }
  if (!holds_versions(config_)) {
    return;
  }
  double const share = config_.checkpoint.rate_part;
  double const whole = share > 0.0 ? measure_checkpoint_directory(config_, comm_, node, path) : 0.0;
  saves_->store().set_rate(rate_of_rank(config_.checkpoint, node.size(), whole));
  if (share > 0.0 && leads()) {
    log::info(
        "checkpoint.rate={:g}%: {} per node and second, of {} that checkpoint.dir takes; of "
        "each path that much at most",
        100.0 * share, format_bytes(static_cast<Bytes>(share * whole)),
        format_bytes(static_cast<Bytes>(whole)));
  }
}

template <class T>
MemoryRecord Training<T>::memory_limits() const {
  return {.host_limit = runner_->host_memory_limit(),
          .host_planned = runner_->memory_plan().node_total,
          .host_libraries = runner_->library_bytes(),
          .device_limit = config_.device.memory,
          .device_planned = comm_.maximum(runner_->device_plan().total())};
}

template <class T>
void Training<T>::conclude() {
  if (leads() && (stop_ == Stop::none || stop_ == Stop::patience)) {
    static_cast<void>(take_stop_file(config_));  // the file came too late
  }
  MemoryRecord memory = memory_limits();
  memory.host_peak = runner_->host_memory_peak();
  memory.device_peak = runner_->device_memory_peak();
  journal_.conclude(
      {.step = meta_.step,
       .stop = stop_,
       .total = cadence_.now(),
       .memory = memory,
       .slow_nodes = slow_nodes_.conclude(),
       .advice = leads() && stop_ != Stop::signal  // the sender of the signal waits for the end
                     ? plan_choice_.advice(progress(), *runner_, journal_.reached())
                     : std::vector<std::string>{},
       .best = best_,
       .best_is_kept = leads() && keeps(config_, best_)});
}

template <class T>
void Training<T>::one_step() {
  trace::Scope const scope{runner_->trace(), "steps", "step", meta_.step + 1};
  Stopwatch watch;
  Seconds const waited_before = waited_for_ranks();
  double const rate = learning_rate(config_.optimizer, config_.train.steps, meta_.step + 1);
  StepResult const result = runner_->step(*train_data_, meta_.samples, rate,
                                          meta_.optimizer_step + 1, loss_scale_.value());
  ++meta_.step;
  clipped_ += result.skipped || result.clipped ? 1 : 0;
  meta_.samples += config_.train.global_batch;
  tokens_ += config_.train.global_batch * config_.train.sequence;
  meta_.learning_rate = rate;
  double const scale = loss_scale_.value();
  if (!result.skipped) {
    ++meta_.optimizer_step;
    meta_.bad_steps = 0;
    loss_scale_.good_step();
  } else if (result.counted_targets > 0 &&
             (!std::isfinite(result.loss) || !loss_scale_.overflow())) {
    ++meta_.bad_steps;
  }
  meta_.loss_scale = loss_scale_.value();
  meta_.loss_scale_steps = loss_scale_.good_steps();
  Seconds const seconds = watch.elapsed() - result.stood_still;
  cadence_.step_took(seconds);
  auto const slow =
      slow_nodes_.step_done(std::max(Seconds{}, seconds - (waited_for_ranks() - waited_before)));
  StepEntry const entry{
      .result = result,
      .meta = meta_,
      .loss_scale = scale,
      .tokens = tokens_,
      .seconds = seconds,
      .read_bytes = comm_.sum(result.read_bytes),
      .write_bytes = comm_.sum(result.write_bytes),
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
    if (meta_.bad_steps >= config_.train.max_bad_steps) {
      throw DataError{fmt::format(
          "loss or gradient norm was not finite in {} steps in a row, up to step {} "
          "(train.max-bad-steps={}); lower optimizer.lr or look at the data, then start from an "
          "earlier checkpoint",
          meta_.bad_steps, meta_.step, config_.train.max_bad_steps)};
    }
  });
  look_ahead();
}

// Rates of the first update may be known only once the second step has begun. After that no more
// rates become known.
template <class T>
void Training<T>::look_ahead() {
  constexpr std::int64_t measuring_steps = 2;
  if (journal_.expects() || steps_done_ >= measuring_steps) {
    return;
  }
  ++steps_done_;
  auto forecast = runner_->foresee();
  if (forecast && (forecast->unknown.empty() || steps_done_ == measuring_steps)) {
    journal_.expect(*std::move(forecast));
  }
}

template <class T>
void Training<T>::validate() {
  trace::Scope const scope{runner_->trace(), "validation", "validation", meta_.step};
  Stopwatch watch;
  double const loss = runner_->validate(
      *valid_data_, windows_per_validation(config_.train, valid_data_->windows()));
  Seconds const seconds = watch.elapsed();
  cadence_.validation_took(seconds);
  mpi::agree(comm_, [&] { journal_.validated(meta_.step, loss, seconds, cadence_.now()); });
  best_.add({meta_.step, loss});
}

template <class T>
bool Training<T>::finish_earlier_save(bool a_step_follows) {
  std::int64_t const every = config_.checkpoint.keep_every;
  bool const is_kept = config_.checkpoint.keep_best && is_best();
  if (!a_step_follows || is_kept || (every > 0 && meta_.step % every == 0)) {
    saves_->finish();
    return true;
  }
  if (saves_->finish_global_if_written() || !saves_->goes_on()) {
    return true;
  }
  if (!std::exchange(postponed_, true) && leads()) {
    log::dated("step {:>6}  its save waits: that of step {} is still being written", meta_.step,
               saves_->step());
  }
  return false;
}

template <class T>
Seconds Training<T>::settle_state() {
  Stopwatch const rest;
  runner_->finish_update();
  Seconds const waited = rest.elapsed();
  meta_.configuration = text_of(config_.settings, tokens_);
  mpi::agree(comm_, [&] { journal_.sync(); });
  return waited;
}

template <class T>
void Training<T>::save(Decision const& due) {
  bool const a_step_follows = goes_on() && meta_.step < config_.train.steps;
  bool const local = saves_->takes_local(meta_.step, due.save_local, a_step_follows) &&
                     saves_->may_save_local(meta_.step);
  bool global =
      due.save || postponed_ || (due.save_local && saves_->saves_global_instead(meta_.step));
  if (local && !a_step_follows) {
    saves_->save_local(meta_, state(), settle_state(), false);  // level 1 is complete sooner
  }
  if (global && finish_earlier_save(a_step_follows)) {
    postponed_ = false;
    global = !saves_->is_saved(meta_.step);
  } else {
    global = false;
  }
  if (global && config_.checkpoint.keep_best && is_best()) {
    // The best checkpoint before stays until this one is saved.
    saves_->store().keep_best(meta_.step);
  }
  bool const local_too = local && a_step_follows;
  if (!local_too && !global) {
    return;
  }
  trace::Scope const scope{runner_->trace(), "steps", "stands still for a save", meta_.step};
  Seconds const waited = settle_state();
  bool const under_steps = config_.checkpoint.overlap && a_step_follows;
  if (local_too) {
    saves_->save_local(meta_, state(), waited, under_steps);
    if (!under_steps) {
      saves_->begin_copies();
    }
  }
  if (global && under_steps) {
    saves_->begin(meta_, state(), waited);
  } else if (global) {
    saves_->save(meta_, state(), waited);
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
  if (!config.plan.choose) {
    mpi::agree(comm, [&] { config::settle_split_parameters(settled); });
  }
  if (comm.rank() == 0 && settled.optimizer.split_parameter &&
      std::ranges::any_of(config.paths, &tiers::PathSettings::persistent)) {
    log::warning(
        "tiers.split-parameters=on: checkpoints hold whole parameters, so extents on a persistent "
        "tiers.path are copied into them");
  }
  switch (config.numerics.dtype) {
    case DType::bf16:
      return train<bfloat16>(std::move(settled), comm, signals, place);
    case DType::fp16:
      return train<float16>(std::move(settled), comm, signals, place);
    case DType::fp32:
      break;
  }
  return train<float>(std::move(settled), comm, signals, place);
}

}  // namespace offstage::train
