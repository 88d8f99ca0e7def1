#include "cli/plan_answers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"

namespace offstage::cli {
namespace {

/// A gain that is worth a line.
constexpr double clear_gain = 0.02;
/// Far beyond any model, batch and sequence.
constexpr std::int64_t most_blocks = 2048;
constexpr std::int64_t most_of_others = std::int64_t{1} << 30U;

bool has_times(train::Forecast const& forecast) {
  return forecast.update.problem.empty() && forecast.compute_known;
}

/// Something that could be otherwise.
struct Remedy {
  std::string words;
  train::RunConfig config;
  train::ForecastScope scope;
};

std::vector<Remedy> remedies(PlanOptions const& options, train::ForecastScope const& scope) {
  std::vector<Remedy> all;
  auto const add = [&](std::string words, auto const& change) {
    all.push_back({std::move(words), options.config, scope});
    change(all.back());
  };
  auto const& paths = options.config.paths;
  bool const any_split = options.config.storage.split.rule != plan::SplitRule::fixed &&
                         options.config.storage.split.rule != plan::SplitRule::first;
  if (!paths.empty() && any_split) {
    auto const& fastest = *std::ranges::max_element(paths, {}, &tiers::PathSettings::read_rate);
    add(fmt::format("one more path like {}", fastest.directory), [&](Remedy& remedy) {
      remedy.config.paths.push_back(fastest);
      remedy.config.paths.back().directory += "-more";
    });
  }
  if (!paths.empty()) {
    add("twice the SSDs behind each path", [](Remedy& remedy) {
      for (tiers::PathSettings& path : remedy.config.paths) {
        path.read_rate *= 2.0;
        path.write_rate *= 2.0;
      }
    });
  }
  add("twice the host memory", [](Remedy& remedy) {
    remedy.config.host_memory *= 2;
    remedy.scope.host_memory *= 2;
  });
  if (options.config.device.memory > 0) {
    add("twice the device memory", [](Remedy& remedy) { remedy.config.device.memory *= 2; });
  }
  add("a link to the device of twice the rate", [](Remedy& remedy) {
    auto& config = remedy.config;
    for (double* rate :
         {&config.platform.host_to_device, &config.platform.device_to_host,
          &config.platform.host_to_device_both, &config.platform.device_to_host_both,
          &config.device.emulation.host_to_device, &config.device.emulation.device_to_host}) {
      *rate *= 2.0;
    }
  });
  add("a device of twice the products", [](Remedy& remedy) {
    remedy.config.platform_products *= 2.0;
    remedy.config.device.emulation.compute *= 2.0;
  });
  add("twice the cores", [](Remedy& remedy) {
    remedy.config.platform.cpu_update *= 2.0;
    remedy.config.device.emulation.host_update *= 2.0;
    remedy.config.device.emulation.host_sum *= 2.0;
  });
  auto const& train = options.config.train;
  if (train.global_batch % (2 * train.micro_batch) == 0) {
    add(fmt::format("train.micro-batch={} (other bits: sums are rounded elsewhere)",
                    2 * train.micro_batch),
        [](Remedy& remedy) { remedy.config.train.micro_batch *= 2; });
  }
  return all;
}

/// None: it does not fit either.
std::optional<train::Forecast> attempt(train::RunConfig const& config,
                                       train::ForecastScope const& scope) {
  try {
    auto forecast = train::forecast(config, scope);
    bool const fits = shortage_of(forecast, config.device.memory).empty();
    return fits ? std::optional{std::move(forecast)} : std::nullopt;
  } catch (UsageError const&) {
    return std::nullopt;
  }
}

/// With `before`, what gains clearly; without, what makes it fit.
void print_remedies(std::optional<Seconds> before, PlanOptions const& options,
                    train::ForecastScope const& scope) {
  struct Found {
    double gain;
    std::string words;
  };
  std::vector<Found> found;
  for (Remedy const& remedy : remedies(options, scope)) {
    auto const forecast = attempt(remedy.config, remedy.scope);
    if (!forecast) {
      continue;
    }
    Seconds const step = forecast->step.step;
    if (!before) {
      auto const seconds =
          has_times(*forecast) ? fmt::format("; a step of {:.3g} s", step.count()) : "";
      found.push_back({0.0, fmt::format("{}: it fits{}", remedy.words, seconds)});
    } else if (double const gain = *before / step; gain > 1.0 + clear_gain) {
      found.push_back({gain, fmt::format("{}: {:.3g} s, {:.2f} times as fast", remedy.words,
                                         step.count(), gain)});
    }
  }
  std::ranges::stable_sort(found, std::ranges::greater{}, &Found::gain);
  for (std::size_t i = 0; i < found.size(); ++i) {
    print_line(i == 0 ? "what would help" : "", found[i].words);
  }
  if (found.empty()) {
    print_line("what would help",
               before ? "nothing of twice the paths, memory, link, products or cores"
                      : "none of that alone: twice the paths or memory, or a smaller micro-batch");
  }
}

std::string fit_of(train::Forecast const& forecast, PlanOptions const& options) {
  Bytes const limit = options.config.device.memory;
  if (auto const shortage = shortage_of(forecast, limit); !shortage.empty()) {
    return "no: " + shortage;
  }
  auto const device = limit > 0 ? fmt::format("{} of {}", format_bytes(forecast.device.total()),
                                              format_bytes(limit))
                                : format_bytes(forecast.device.total());
  return fmt::format("yes: {} of each device, {} of {} of each node's host memory", device,
                     format_bytes(forecast.memory.node_total), format_bytes(forecast.host_limit));
}

/// `config` with as much of what is asked for.
train::RunConfig sized(train::RunConfig config, Largest what, std::int64_t count) {
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

std::string words_of(Largest what, std::int64_t count, train::Forecast const& forecast) {
  switch (what) {
    case Largest::model:
      return fmt::format("model.layers={}: {} parameters", count,
                         in_short(static_cast<double>(forecast.parameters)));
    case Largest::batch:
      return fmt::format("train.micro-batch={}", count);
    case Largest::sequence:
    case Largest::none:
      break;
  }
  return fmt::format("train.sequence={}", count);
}

char const* key_of(Largest what) {
  return what == Largest::model   ? "model.layers"
         : what == Largest::batch ? "train.micro-batch"
                                  : "train.sequence";
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

std::string name_of(std::string const& resource, train::Forecast const& forecast) {
  for (std::size_t i = 0; i < forecast.paths.size(); ++i) {
    std::string const path = fmt::format("path {}", i + 1);
    if (resource == path || resource.starts_with(path + ',')) {
      return forecast.paths[i].directory + resource.substr(path.size());
    }
  }
  return resource;
}

std::string use_of(plan::ResourceUse const& use, train::Forecast const& forecast) {
  return fmt::format("{} {:.0f} %", name_of(use.name, forecast),
                     100.0 * use.busy / forecast.step.step);
}

std::string shortage_of(train::Forecast const& forecast, Bytes limit) {
  return limit > 0 && forecast.device.total() > limit
             ? fmt::format("{} of device.memory={}, {} too much",
                           format_bytes(forecast.device.total()), format_bytes(limit),
                           format_bytes(forecast.device.total() - limit))
             : std::string{};
}

void print_answers(std::optional<train::Forecast> const& forecast, std::string const& problem,
                   PlanOptions const& options, train::ForecastScope const& scope) {
  bool const fits = forecast && shortage_of(*forecast, options.config.device.memory).empty();
  print_line("does it fit", forecast ? fit_of(*forecast, options) : "no: " + problem);
  if (!fits) {
    print_remedies(std::nullopt, options, scope);
    return;
  }
  if (!has_times(*forecast)) {
    return;
  }
  std::vector<std::string> uses;
  for (auto const& use : forecast->step.uses) {
    if (uses.size() < 3) {
      uses.push_back(use_of(use, *forecast));
    }
  }
  print_line(
      "a step takes",
      fmt::format("{:.3g} s, {} tokens/s; busy: {}", forecast->step.step.count(),
                  in_short(static_cast<double>(forecast->tokens) / forecast->step.step.count()),
                  fmt::join(uses, ", ")));
  print_remedies(forecast->step.step, options, scope);
}

void print_largest(PlanOptions const& options, train::ForecastScope const& scope) {
  Largest const what = options.largest;
  auto look = scope;
  look.memory_alone = true;
  auto const fits = [&](std::int64_t count) {
    return attempt(sized(options.config, what, count), look).has_value();
  };
  if (!fits(1)) {
    throw UsageError{
        fmt::format("--max: not even {}=1 fits; give more device.memory or tiers.host-memory, a "
                    "tiers.path, or more ranks",
                    key_of(what))};
  }
  std::int64_t const most = what == Largest::model ? most_blocks : most_of_others;
  std::int64_t least = 1;
  std::int64_t beyond = 2;
  while (beyond <= most && fits(beyond)) {
    least = beyond;
    beyond *= 2;
  }
  if (beyond > most) {
    throw UsageError{fmt::format(
        "--max: {}={} fits still, so nothing limits it; give device.memory and tiers.host-memory",
        key_of(what), least)};
  }
  while (beyond - least > 1) {
    std::int64_t const middle = least + (beyond - least) / 2;
    (fits(middle) ? least : beyond) = middle;
  }
  auto const forecast = train::forecast(sized(options.config, what, least), scope);
  print_line(
      "the largest that fits",
      fmt::format("{}{}", words_of(what, least, forecast),
                  has_times(forecast)
                      ? fmt::format("; a step of {:.3g} s, {} tokens/s", forecast.step.step.count(),
                                    in_short(static_cast<double>(forecast.tokens) /
                                             forecast.step.step.count()))
                      : ""));
}

}  // namespace offstage::cli
