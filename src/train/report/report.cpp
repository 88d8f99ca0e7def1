#include "train/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/rate.hpp"
#include "config/run_config.hpp"

namespace offstage::train {
namespace {

/// Fewer steps say nothing about a run, because its first norms are its highest.
constexpr std::int64_t enough_steps = 6;

}  // namespace

std::string advice_on_clipping(PhaseTimes const& times, config::RunConfig const& config) {
  bool const wanted = config.overlap == config::Switch::on ||
                      (config.overlap == config::Switch::automatic && !config.paths.empty());
  if (!wanted || times.steps < enough_steps || 2 * times.clipped <= times.steps) {
    return {};
  }
  std::string text = fmt::format(
      "gradients were clipped in {} of {} steps: their norm was above optimizer.clip={:g}. An "
      "update that began under backward must then be made again, so overlap saves no time there; "
      "a higher limit or a longer optimizer.warmup-steps makes such steps rarer",
      times.clipped, times.steps, config.optimizer.clip);
  if (times.redone > 0) {
    text += fmt::format(". {} updates were made again under the next forward", times.redone);
    text += config.overlap == config::Switch::on
                ? "; update.overlap=auto does so only while it shortens steps"
                : ", where that shortened steps, or to find out whether it does";
  }
  return text;
}

void print_end_table(PhaseTimes const& times, StorageTotals const& storage) {
  double const total = std::max(times.total.count(), 1e-9);
  auto const row = [total](char const* phase, Seconds seconds, Bytes bytes = 0,
                           Seconds working = {}) {
    double const rate = working.count() > 0.0 ? static_cast<double>(bytes) / working.count() : 0.0;
    log::info("  {:<12} {:>10.2f} s {:>7.1f} % {:>10}", phase, seconds.count(),
              100.0 * seconds.count() / total, rate > 0.0 ? format_rate(rate) : "-");
  };
  Seconds const stood_still = times.before_saves + times.checkpoint;
  Seconds const named =
      times.forward + times.backward + times.update + stood_still + times.validation;
  log::info("  {:<12} {:>12} {:>9} {:>10}", "phase", "seconds", "share", "rate");
  row("forward", times.forward);
  row("backward", times.backward);
  // The part under backward has no time of its own.
  row("update", times.update, times.overlapped > 0 ? 0 : times.update_bytes, times.update);
  row("checkpoint", stood_still, times.checkpoint_bytes, times.saving);
  row("validation", times.validation);
  row("other", times.total - named);
  log::info(
      "  {:<12} {:>10.2f} s   {} steps, {:.0f} tokens/s, {:.3g} TFLOP/s (rank 0's clock and "
      "traffic)",
      "all", total, times.steps, static_cast<double>(times.tokens) / total,
      times.flops / total / 1e12);
  if (times.saving > times.checkpoint) {
    log::info("checkpoints: written in {:.2f} s, {:.2f} s of it under steps", times.saving.count(),
              (times.saving - times.checkpoint).count());
  }
  constexpr Seconds worth_a_line{0.01};
  if (times.before_saves >= worth_a_line) {
    log::info("before saves training stood still for {:.2f} s until updates had ended",
              times.before_saves.count());
  }
  if (times.overlapped > 0) {
    log::info(
        "updates under backward: {} of {} steps, {} of them done again or undone, which took "
        "{:.2f} s",
        times.overlapped, times.steps, times.redone, times.redoing.count());
  }
  if (auto const& moved = times.activations; moved.out > 0) {
    log::info(
        "activations: {} left rank 0's device and {} came back, for which the thread that launches "
        "stood still for {:.2f} s",
        format_bytes(moved.out), format_bytes(moved.back), moved.waited.count());
  }
  for (std::string const& line : storage.lines()) {
    log::info("{}", line);
  }
  log::info(
      "host memory of state and gradients per node: peak {}, limit {}, planned {}, libraries some "
      "{}",
      format_bytes(times.memory.host_peak), format_bytes(times.memory.host_limit),
      format_bytes(times.memory.host_planned), format_bytes(times.memory.host_libraries));
  log::info("device memory per rank: peak {}, limit {}, planned {}",
            format_bytes(times.memory.device_peak),
            times.memory.device_limit > 0 ? format_bytes(times.memory.device_limit) : "none",
            format_bytes(times.memory.device_planned));
}

}  // namespace offstage::train
