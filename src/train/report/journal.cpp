#include "train/report/journal.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "config/known_rates.hpp"
#include "config/run_config.hpp"
#include "platform/cpu/affinity.hpp"
#include "train/report/progress_line.hpp"
#include "train/report/tensorboard_curves.hpp"
#include "train/step/step_numbers.hpp"

namespace offstage::train {
namespace {

constexpr double tera = 1e12;

std::string metrics_path(config::RunConfig const& config) {
  return (std::filesystem::path{config.run_dir} / "metrics.jsonl").string();
}

/// The reason why train.patience has ended the run.
std::string no_better(RunEnd const& end) {
  auto const since = end.best.since();
  return end.best.any() ? fmt::format("{} {} no better than {:.4f} at step {} (train.patience)",
                                      since, since == 1 ? "validation was" : "validations were",
                                      end.best.best().loss, end.best.best().step)
                        : fmt::format("{} validation{} gave no finite loss (train.patience)", since,
                                      since == 1 ? "" : "s");
}

/// "  (wiki.bin 2.0134, code.bin 2.3345)"; empty for one source.
std::string of_sources(MeanLosses const& losses) {
  constexpr std::size_t most = 8;
  auto const& sources = losses.sources;
  if (sources.size() < 2) {
    return {};
  }
  auto const names = short_names(sources);
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) {
    shown.push_back(fmt::format("{} {}", printable(names[i]), loss_text(sources[i].mean, 4)));
  }
  return fmt::format("  ({}{})", fmt::join(shown, ", "),
                     sources.size() > most
                         ? fmt::format(", and {} more in metrics.jsonl", sources.size() - most)
                         : "");
}

}  // namespace

void Journal::open(std::int64_t step, std::optional<double> loss, std::function<void()> look) {
  if (speaks_) {
    look_ = std::move(look);
    metrics_.emplace(metrics_path(config_),
                     MetricsPoint{step, loss, config_.checkpoint.resume != "auto"});
  }
}

EarlierRecords Journal::earlier() const {
  return speaks_ ? read_earlier_records(metrics_path(config_)) : EarlierRecords{};
}

void Journal::begin(StartRecord const& start, bool works, Seconds now) {
  started_ = logged_ = now;
  works_ = works;
  if (speaks_) {
    flops_ = model_flops(config_);
    products_ = config::known_compute(config_) * static_cast<double>(start.ranks);
    against_.set_ranks(start.ranks);
    if (works) {
      if (config_.tensorboard) {
        events_.emplace(config_.run_dir, cpu::host_name(), start.step + 1);
      }
      metrics_->write_start(start);
    }
  }
}

void Journal::step_done(StepEntry const& entry, Seconds now) {
  require_own();
  Seconds const predicted = against_.step();
  write_forecast(entry.meta.step - 1);
  StepResult const& result = entry.result;
  times_.forward += result.forward;
  times_.backward += result.backward;
  times_.update += result.update;
  times_.update_bytes += result.update_bytes;
  if (result.share.overlapped) {
    ++times_.overlapped;
    times_.redone += result.share.redone ? 1 : 0;
    times_.redoing += result.share.redone ? result.update : Seconds{};
  }
  times_.clipped += result.clipped ? 1 : 0;
  times_.tokens += config_.train.global_batch * config_.train.sequence;
  ++times_.steps;
  times_.activations.out += result.activations.out;
  times_.activations.back += result.activations.back;
  times_.activations.waited += result.activations.waited;
  storage_.add(entry.storage);
  against_.add({.forward = result.forward,
                .backward = result.backward,
                .update = result.update,
                .step = entry.seconds,
                .storage = entry.storage});
  if (!speaks_) {
    return;
  }
  double const reached = entry.seconds > Seconds{} ? flops_ / entry.seconds.count() : 0.0;
  StepRecord const record{.step = entry.meta.step,
                          .loss = result.loss,
                          .grad_norm = result.grad_norm,
                          .learning_rate = entry.meta.learning_rate,
                          .tokens = entry.tokens,
                          .skipped = result.skipped,
                          .loss_scale = entry.loss_scale,
                          .step_seconds = entry.seconds,
                          .forward_seconds = result.forward,
                          .backward_seconds = result.backward,
                          .update_seconds = result.update,
                          .elapsed = now - started_,
                          .storage = entry.storage,
                          .share = result.share,
                          .activations = entry.activations,
                          .predicted = predicted,
                          .tflops = reached / tera,
                          .mfu = products_ > 0.0 ? reached / products_ : 0.0};
  metrics_->write(record);
  if (events_) {
    auto const tokens = static_cast<double>(config_.train.global_batch * config_.train.sequence);
    events_->write(record.step, curves_of(record, metrics_->smoothed_loss(),
                                          tokens / std::max(entry.seconds.count(), 1e-9)));
  }
  log_step(entry, now);
  show_progress(entry, now);
}

void Journal::write_forecast(std::int64_t step) {
  auto const& expected = against_.expected();
  if (!speaks_ || !expected || std::exchange(forecast_is_written_, true)) {
    return;
  }
  plan::Prediction const& each = expected->step;
  ForecastRecord record{.step = step,
                        .seconds = each.step,
                        .forward = each.forward,
                        .backward = each.backward,
                        .update = each.update,
                        .given = expected->given};
  auto const paths = std::min({config_.paths.size(), each.paths.size(), expected->paths.size()});
  for (std::size_t i = 0; i < paths; ++i) {
    record.paths.push_back({.directory = config_.paths[i].directory,
                            .read = each.paths[i].read * against_.ranks(),
                            .write = each.paths[i].written * against_.ranks(),
                            .read_rate = expected->paths[i].read,
                            .write_rate = expected->paths[i].write});
  }
  metrics_->add(record);
}

void Journal::log_step(StepEntry const& entry, Seconds now) {
  StepResult const& result = entry.result;
  std::int64_t const step = entry.meta.step;
  std::int64_t const steps = config_.train.steps;
  if (entry.meta.loss_scale < entry.loss_scale) {
    log::dated("step {}: gradients overflowed at loss scale {}, next {}; update skipped", step,
               entry.loss_scale, entry.meta.loss_scale);
  } else if (result.counted_targets == 0) {
    log::warning(
        "step {}: no target of its batch counts (because of its windows' masks), update skipped",
        step);
  } else if (result.skipped) {
    log::warning("step {}: {} is not finite, update skipped", step,
                 std::isfinite(result.loss) ? fmt::format("gradient norm {}", result.grad_norm)
                                            : fmt::format("loss {}", result.loss));
  }
  if (step % config_.train.log_every != 0 && times_.steps != 1 && step != steps) {
    return;
  }
  // Both rates include everything since then, also saves and validations.
  auto const tokens = static_cast<double>(times_.tokens - logged_tokens_);
  double const rate = tokens / (now - logged_).count();
  double const flops = flops_ * static_cast<double>(times_.steps - logged_steps_);
  double const tflops = flops / (now - logged_).count() / tera;
  logged_ = now;
  logged_tokens_ = times_.tokens;
  logged_steps_ = times_.steps;
  log::dated(
      "step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.3g} TFLOP/s  left "
      "{}",
      step, steps, result.loss, result.grad_norm, entry.meta.learning_rate, rate, tflops,
      format_duration(mean_step(now) * static_cast<double>(steps - step)));
}

// The line is not shown so often that a remote terminal would be busy with it.
void Journal::show_progress(StepEntry const& entry, Seconds now) {
  constexpr Seconds pause{0.1};
  std::int64_t const step = entry.meta.step;
  std::int64_t const steps = config_.train.steps;
  if (!config_.progress || (now - shown_ < pause && step != steps && times_.steps != 1)) {
    return;
  }
  shown_ = now;
  auto const tokens = static_cast<double>(config_.train.global_batch * config_.train.sequence);
  auto const parts =
      progress_line({.step = step,
                     .steps = steps,
                     .loss = entry.result.loss,
                     .smoothed_loss = metrics_->smoothed_loss(),
                     .tokens_per_second = tokens / std::max(entry.seconds.count(), 1e-9),
                     .left = mean_step(now) * static_cast<double>(steps - step)},
                    log::status_width(), config_.colours);
  log::write_status(parts, config_.colours);
}

void Journal::validated(std::int64_t step, MeanLosses const& losses, bool counts, Seconds seconds,
                        Seconds now) {
  require_own();
  times_.validation += seconds;
  if (speaks_) {
    metrics_->write_validation(step, losses, now - started_, counts);
    if (events_) {
      events_->write(step, validation_curves(losses));
    }
    log::dated("step {:>6}  validation loss {:.4f}{}", step, losses.all.loss, of_sources(losses));
  }
}

void Journal::saved(std::int64_t step, checkpoint::SaveStats const& stats, int level, Seconds now) {
  times_.checkpoint += stats.stood_still;
  times_.saving +=
      stats.in_two_parts ? std::max(stats.seconds, stats.stood_still) : stats.stood_still;
  times_.checkpoint_bytes += stats.bytes;
  Seconds const stood_still = stats.waited + stats.stood_still;
  if (speaks_) {
    metrics_->add(SaveRecord{.step = step,
                             .level = level,
                             .seconds = stats.seconds,
                             .stood_still = stood_still,
                             .bytes = stats.bytes,
                             .elapsed = now - started_});
    log::dated("step {:>6}  saved {} in {}{}{}{}", step, stats.path, format_duration(stats.seconds),
               stats.in_two_parts
                   ? fmt::format(", training stood still for {}", format_duration(stood_still))
                   : "",
               stats.referred > 0
                   ? fmt::format(", {} of it by reference", format_bytes(stats.referred))
                   : "",
               level == 1 ? ", level 1" : "");
  }
}

void Journal::copied(checkpoint::CopyStats const& stats, Seconds now) {
  if (speaks_) {
    metrics_->add(SaveRecord{.step = stats.step,
                             .level = 3,
                             .seconds = stats.seconds,
                             .bytes = stats.bytes,
                             .elapsed = now - started_});
    log::dated("step {:>6}  copied to other nodes in {}, {}, level 3", stats.step,
               format_duration(stats.seconds), format_bytes(stats.bytes));
  }
}

void Journal::sync() {
  require_own();
  if (speaks_) {
    metrics_->sync();
  }
}

void Journal::require_own() {
  if (!speaks_) {
    return;
  }
  try {
    look_();
  } catch (...) {
    speaks_ = false;
    metrics_.reset();
    events_.reset();
    throw;
  }
}

void Journal::conclude(RunEnd const& end) {
  require_own();
  if (!speaks_) {
    return;
  }
  if (!works_ && end.stop == Stop::patience) {
    log::info("nothing to do: {}", no_better(end));
    return;
  }
  if (!works_) {
    log::info("nothing to do: step {} is done, and train.steps={} asks for no more", end.step,
              config_.train.steps);
    return;
  }
  times_.total = end.total;
  times_.memory = end.memory;
  times_.flops = flops_ * static_cast<double>(times_.steps);
  if (times_.steps > 0) {
    print_end_table(times_, storage_);
  }
  for (std::string const& line : against_.lines()) {
    log::info("{}", line);
  }
  for (std::string const& sentence : end.slow_nodes) {
    log::info("{}", sentence);
  }
  std::vector<std::string> sentences = end.slow_nodes;
  for (std::string const& sentence : end.advice) {
    log::info("advice: {}", sentence);
    sentences.push_back(sentence);
  }
  if (auto const advice = advice_on_clipping(times_, config_); !advice.empty()) {
    log::info("{}", advice);
    sentences.push_back(advice);
  }
  if (end.memory.host_peak > end.memory.host_limit) {
    log::warning(
        "tiers.host-memory={} is too small for the libraries beside the plan: the peak was {}",
        format_bytes(end.memory.host_limit), format_bytes(end.memory.host_peak));
  }
  write_end(end, std::move(sentences));
  if (end.best.any()) {
    log::info("best validation: loss {:.4f} at step {}{}", end.best.best().loss,
              end.best.best().step,
              !end.best_is_kept   ? ""
              : *end.best_is_kept ? ", whose checkpoint is kept"
                                  : ", which has no checkpoint");
  }
  say_how_it_ended(end);
}

void Journal::say_how_it_ended(RunEnd const& end) const {
  if (end.stop == Stop::none) {
    log::dated("done: step {} of {}", end.step, config_.train.steps);
  } else if (end.stop == Stop::patience) {
    log::dated("done after step {} of {}: {}", end.step, config_.train.steps, no_better(end));
  } else if (end.step == 0) {
    log::dated("stopped before the first step because {}; the same command begins again",
               reason_of(end.stop));
  } else {
    std::string const& first = config_.checkpoint.first_resume;
    std::string const& resume = first.empty() ? config_.checkpoint.resume : first;
    log::dated("stopped after step {} of {} because {}; the same command{} goes on from there",
               end.step, config_.train.steps, reason_of(end.stop),
               resume == "auto" ? "" : fmt::format(" without checkpoint.resume={}", resume));
  }
}

void Journal::failed(std::int64_t step, Failure const& failure, bool has_diverged, Seconds now) {
  try {
    if (metrics_ && works_) {
      metrics_->write_failure({.step = step,
                               .end = fmt::format("failed: {}", failure.text),
                               .reason = has_diverged ? "diverged" : "failed",
                               .exit = failure.code,
                               .elapsed = now - started_});
    }
  } catch (std::exception const&) {
    // The error that ends the run may be the file system's.
  }
}

// All work is durable, so that this record is no reason to fail. Those of steps are.
void Journal::write_end(RunEnd const& end, std::vector<std::string> sentences) {
  bool const lacks_others = metrics_->lacks_lines();
  try {
    bool const is_done = end.stop == Stop::none || end.stop == Stop::patience;
    metrics_->write_end({.step = end.step,
                         .end = end.stop == Stop::none ? "done" : reason_of(end.stop),
                         .reason = name_of(end.stop),
                         .exit = is_done ? ExitCode::done : ExitCode::more,
                         .elapsed = end.total - started_,
                         .memory = end.memory,
                         .best = end.best.any() ? std::optional{end.best.best()} : std::nullopt,
                         .advice = std::move(sentences)});
  } catch (IoError const& error) {
    if (lacks_others) {
      throw IoError{
          fmt::format("{}; all that was trained is saved, but metrics.jsonl lacks records of steps",
                      error.what())};
    }
    log::warning("{}; metrics.jsonl lacks the record of this end", error.what());
  }
}

}  // namespace offstage::train
