#include "cli/plan_answers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/in_threads.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "train/forecast/remedies.hpp"

namespace offstage::cli {
namespace {

/// Limits far beyond any model, batch and sequence.
constexpr std::int64_t most_blocks = 2048;
constexpr std::int64_t most_of_others = std::int64_t{1} << 30U;

/// Prints remedies: with `before` those that gain clearly, without it those with which the run
/// fits.
void print_remedies(std::optional<Seconds> before, PlanOptions const& options,
                    train::ForecastScope const& scope) {
  bool first = true;
  for (train::Help const& help :
       train::what_helps(options.config, scope, before, !options.config.plan.choose)) {
    Seconds const step = help.forecast.step.step;
    auto const seconds =
        train::has_times(help.forecast) ? fmt::format("; a step of {:.3g} s", step.count()) : "";
    print_line(first ? "what would help" : "",
               before ? fmt::format("{}: {:.3g} s, {:.2f} times as fast", help.words, step.count(),
                                    *before / step)
                      : fmt::format("{}: it fits{}", help.words, seconds));
    first = false;
  }
  if (first) {
    print_line(
        "what would help",
        before
            ? train::nothing_of_these(!options.config.plan.choose)
            : std::string{
                  "nothing alone of a tiers.path, parameters.home=host, parameters.sharding=zero3, "
                  "train.activations=auto, train.micro-batch=1, twice the paths or memory"});
  }
}

std::string fit_of(train::Forecast const& forecast, PlanOptions const& options) {
  Bytes const limit = options.config.device.memory;
  if (auto const shortage = train::shortage_of(forecast, limit); !shortage.empty()) {
    return "no: " + shortage;
  }
  auto const device = limit > 0 ? fmt::format("{} of {}", format_bytes(forecast.device.total()),
                                              format_bytes(limit))
                                : format_bytes(forecast.device.total());
  return fmt::format("yes: {} of each device, {} of {} of each node's host memory", device,
                     format_bytes(forecast.memory.node_total), format_bytes(forecast.host_limit));
}

/// `config` with `count` of the size that --max names.
config::RunConfig sized(config::RunConfig config, Largest what, std::int64_t count) {
  auto& train = config.train;
  switch (what) {
    case Largest::model:
      config.model.layers = count;
      break;
    case Largest::batch:
      train.global_batch = train.global_batch / train.micro_batch * count;
      train.micro_batch = count;
      break;
    case Largest::sequence:
      train.sequence = count;
      config.model.max_sequence = std::max(config.model.max_sequence, count);
      break;
    case Largest::none:
      break;
  }
  return config;
}

std::string words_of(Largest what, std::int64_t count, train::Forecast const& forecast,
                     config::RunConfig const& config) {
  switch (what) {
    case Largest::model:
      return fmt::format("model.layers={}: {} parameters", count,
                         in_short(static_cast<double>(forecast.parameters)));
    case Largest::batch:
      return fmt::format("train.micro-batch={} with train.global-batch={}", count,
                         sized(config, what, count).train.global_batch);
    case Largest::sequence:
    case Largest::none:
      break;
  }
  bool const has_limit = is_given(config.settings, "model.max-sequence");
  return fmt::format("train.sequence={}{}", count,
                     has_limit && count > config.model.max_sequence
                         ? fmt::format(", with model.max-sequence={}, which is {}", count,
                                       config.model.max_sequence)
                         : "");
}

char const* key_of(Largest what) {
  return what == Largest::model   ? "model.layers"
         : what == Largest::batch ? "train.micro-batch"
                                  : "train.sequence";
}

/// Prints the size of a checkpoint and the room for all that stay.
void print_checkpoints(train::Forecast const& forecast, config::RunConfig const& config) {
  auto const& checkpoint = config.checkpoint;
  Bytes const whole = config.optimizer.checkpoint_layout().bytes(forecast.parameters);
  std::int64_t count = std::int64_t{checkpoint.keep} + 1 + (checkpoint.keep_best ? 1 : 0);
  std::string keys = fmt::format("checkpoint.keep={}{}", checkpoint.keep,
                                 checkpoint.keep_best ? ", checkpoint.keep-best=on" : "");
  std::string more;
  if (std::int64_t const every = checkpoint.keep_every; every > 0) {
    if (config.steps_are_given()) {
      count += config.train.steps / every;
      keys += fmt::format(", checkpoint.keep-every={}", every);
    } else {
      more = fmt::format(", and {} more for each {} steps (checkpoint.keep-every)",
                         format_bytes(whole), every);
    }
  }
  auto const room = static_cast<double>(count) * static_cast<double>(whole);
  constexpr double most = 9e18;  // beyond it a number of bytes would overflow
  print_line("a checkpoint has",
             fmt::format("{}; {} needs room for {} on checkpoint.dir{}", format_bytes(whole), keys,
                         format_bytes(static_cast<Bytes>(std::min(room, most))), more));
}

/// Prints the length of the whole run, if train.steps is a number that is given.
void print_run(train::Forecast const& forecast, config::RunConfig const& config) {
  if (config.train.epochs > 0.0) {
    print_line("the run takes",
               fmt::format("{:g} epochs of data that a plan does not open; give a number of steps",
                           config.train.epochs));
  } else if (config.steps_are_given()) {
    auto const count = static_cast<double>(config.train.steps);
    print_line(
        "the run takes",
        fmt::format("{} and {} tokens for train.steps={}, without saves and validations",
                    format_duration(forecast.step.step * count),
                    in_short(static_cast<double>(forecast.tokens) * count), config.train.steps));
  }
}

}  // namespace

void print_line(std::string const& name, std::string const& text) {
  log::info("{:<24}{}", name, text);
}

std::string in_short(double value) {
  for (auto const& [factor, unit] : {std::pair{1e9, "B"}, std::pair{1e6, "M"}, {1e3, "k"}}) {
    if (value >= factor) {
      double const scaled = value / factor;
      return fmt::format("{:.{}f} {}", scaled, scaled < 9.995 ? 2 : (scaled < 99.95 ? 1 : 0), unit);
    }
  }
  return fmt::format("{:.0f}", value);
}

namespace {

RowForecast forecast_row(PolicyRow const& row, train::ForecastScope const& scope,
                         train::Forecast const* own) {
  if (!row.config) {
    return {.problem = row.problem};
  }
  try {
    RowForecast found{
        .forecast = row.is_own && own != nullptr ? *own : train::forecast(*row.config, scope)};
    auto const shortage = train::shortage_of(found.forecast, row.config->device.memory);
    found.problem = shortage.empty() ? found.forecast.update.problem : "does not fit: " + shortage;
    return found;
  } catch (UsageError const& error) {
    return {.problem = error.what()};
  }
}

}  // namespace

std::vector<RowForecast> forecast_rows(std::vector<PolicyRow> const& rows,
                                       train::ForecastScope const& scope,
                                       train::Forecast const* own) {
  std::vector<RowForecast> forecasts(rows.size());
  for_each_in_threads(rows.size(),
                      [&](std::size_t i) { forecasts[i] = forecast_row(rows[i], scope, own); });
  return forecasts;
}

void print_answers(std::optional<train::Forecast> const& forecast, std::string const& problem,
                   PlanOptions const& options, train::ForecastScope const& scope) {
  bool const fits = forecast && train::shortage_of(*forecast, options.config.device.memory).empty();
  print_line("does it fit", forecast ? fit_of(*forecast, options) : "no: " + problem);
  if (!fits) {
    print_remedies(std::nullopt, options, scope);
    return;
  }
  if (!train::has_times(*forecast)) {
    print_checkpoints(*forecast, options.config);
    return;
  }
  std::vector<std::string> uses;
  for (auto const& use : forecast->step.uses) {
    if (uses.size() < 3) {
      uses.push_back(train::use_of(use, *forecast));
    }
  }
  print_line(
      "a step takes",
      fmt::format("{:.3g} s, {} tokens/s; busy: {}", forecast->step.step.count(),
                  in_short(static_cast<double>(forecast->tokens) / forecast->step.step.count()),
                  fmt::join(uses, ", ")));
  if (auto const& untimed = forecast->step.untimed; !untimed.empty()) {
    std::vector<std::string_view> words;
    std::ranges::transform(untimed, std::back_inserter(words), plan::words_of);
    print_line("", fmt::format("as if they took no time: {}; give {}", fmt::join(words, ", "),
                               fmt::join(train::untimed_keys(*forecast), ", ")));
  }
  print_run(*forecast, options.config);
  print_checkpoints(*forecast, options.config);
  print_remedies(forecast->step.step, options, scope);
}

void print_largest(PlanOptions const& options, train::ForecastScope const& scope) {
  Largest const what = options.largest;
  auto look = scope;
  look.memory_alone = true;
  auto const fits = [&](std::int64_t count) {
    return train::attempt(sized(options.config, what, count), look).has_value();
  };
  if (!fits(1)) {
    throw UsageError{
        fmt::format("--max: not even {}=1 fits; give more device.memory or tiers.host-memory, a "
                    "tiers.path, or more ranks",
                    key_of(what))};
  }
  std::int64_t const most = what == Largest::model ? most_blocks : most_of_others;
  // Sizes that cannot be counted are refused, but no limit of memory has refused them.
  auto const is_within = [&](std::int64_t count) {
    return count <= most && train::is_countable(sized(options.config, what, count));
  };
  std::int64_t least = 1;
  std::int64_t beyond = 2;
  while (is_within(beyond) && fits(beyond)) {
    least = beyond;
    beyond *= 2;
  }
  if (!is_within(beyond)) {
    std::vector<std::string> no_limits;
    for (auto const& [key, limit] : {std::pair{"device.memory", options.config.device.memory},
                                     {"tiers.host-memory", options.config.host_memory}}) {
      if (limit == 0) {
        no_limits.emplace_back(key);
      }
    }
    throw UsageError{fmt::format("--max: {}={} fits still, so nothing limits it{}{}", key_of(what),
                                 least, no_limits.empty() ? "" : "; give ",
                                 fmt::join(no_limits, " and "))};
  }
  while (beyond - least > 1) {
    std::int64_t const middle = least + (beyond - least) / 2;
    (fits(middle) ? least : beyond) = middle;
  }
  auto const forecast = train::forecast(sized(options.config, what, least), scope);
  print_line(
      "the largest that fits",
      fmt::format("{}{}", words_of(what, least, forecast, options.config),
                  train::has_times(forecast)
                      ? fmt::format("; a step of {:.3g} s, {} tokens/s", forecast.step.step.count(),
                                    in_short(static_cast<double>(forecast.tokens) /
                                             forecast.step.step.count()))
                      : ""));
}

}  // namespace offstage::cli
