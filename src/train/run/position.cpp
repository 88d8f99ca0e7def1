#include "train/run/position.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "train/saves/continuation.hpp"

namespace offstage::train {
namespace {

/// The rules of the loss scale. Types with the range of FP32 need none.
config::LossScaleRules rules_of(config::RunConfig const& config) {
  if (config.numerics.dtype == DType::fp16) {
    return config.numerics.loss_scale;
  }
  return {.dynamic = false, .start = 1.0};
}

}  // namespace

Position::Position(config::RunConfig const& config)
    : config_{config}, loss_scale_{rules_of(config)} {}

void Position::go_on_from(checkpoint::Meta found) {
  meta_ = std::move(found);
  first_step_ = meta_.step;
  last_loss_ = last_loss_of(meta_.configuration);
  tokens_ = tokens_of(meta_.configuration, meta_.samples, config_.train.sequence);
  auto const rules = rules_of(config_);
  bool const was_dynamic = checkpoint::recorded(meta_, "numerics.dtype") == "fp16" &&
                           checkpoint::recorded(meta_, "numerics.loss-scale") == "dynamic";
  loss_scale_ = rules.dynamic && was_dynamic
                    ? LossScale{rules, meta_.loss_scale, meta_.loss_scale_steps}
                    : LossScale{rules};
}

void Position::set_start(checkpoint::OptimizerState state, std::string program, int threads,
                         int ranks, std::vector<config::Setting> settings) {
  bool const continues = !meta_.configuration.empty();
  settings_ = continues ? with_start_of(meta_.configuration,
                                        with_longest_sequence(meta_.configuration, settings))
                        : std::move(settings);
  auto const longest = meta_.model.max_sequence;
  meta_.model = config_.model;
  if (continues && !is_given(settings_, "model.max-sequence")) {
    meta_.model.max_sequence = std::max(meta_.model.max_sequence, longest);
  }
  meta_.state = std::move(state);
  meta_.seed = config_.train.seed;
  meta_.program = std::move(program);
  meta_.threads = threads;
  meta_.ranks = ranks;
}

void Position::advance(StepResult const& result, double rate) {
  ++meta_.step;
  clipped_ += result.skipped || result.clipped ? 1 : 0;
  meta_.samples += config_.train.global_batch;
  tokens_ += config_.train.global_batch * config_.train.sequence;
  meta_.learning_rate = rate;
  last_loss_ = std::isfinite(result.loss) ? std::optional{result.loss} : std::nullopt;
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
}

void Position::require_good_steps() const {
  if (has_diverged()) {
    bool const is_fixed =
        config_.numerics.dtype == DType::fp16 && !config_.numerics.loss_scale.dynamic;
    bool const are_first = meta_.optimizer_step == 0 && !config_.train.init_from.empty();
    throw DataError{fmt::format(
        "loss or gradient norm was not finite in {} steps in a row, up to step {} "
        "(train.max-bad-steps={}); {}lower optimizer.lr or look at the data{}, then run the same "
        "command, or begin at an earlier checkpoint by checkpoint.resume=PATH",
        meta_.bad_steps, meta_.step, config_.train.max_bad_steps,
        is_fixed ? "let numerics.loss-scale be dynamic, " : "",
        are_first ? fmt::format(" and the weights in train.init-from={}", config_.train.init_from)
                  : "")};
  }
}

void Position::write_configuration() {
  meta_.configuration = text_of(settings_, tokens_, best_, last_loss_);
}

RunProgress Position::progress(Seconds start) const {
  return {
      .step = meta_.step, .steps = meta_.step - first_step_, .clipped = clipped_, .start = start};
}

}  // namespace offstage::train
