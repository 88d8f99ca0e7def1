#include "train/forecast/remedies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/in_threads.hpp"
#include "train/forecast/chosen.hpp"

namespace offstage::train {
namespace {

/// A gain that is worth a line.
constexpr double worth_a_line = 0.02;
/// A resource that is busy for less of the step does not bound it alone.
constexpr double bounding = 0.7;
/// A step that differs by more from the simulated one is bound by something else.
constexpr double far_off = 0.3;
constexpr std::size_t most_sentences = 4;

constexpr char const* plan_words = "configs/policies/offstage.cfg before all other keys";

/// A possible change of machine or configuration.
struct Remedy {
  std::string words;
  config::RunConfig config;
  ForecastScope scope;
};

/// `may_choose`: no plan has chosen the configuration yet.
std::vector<Remedy> remedies(config::RunConfig const& config, ForecastScope const& scope,
                             bool may_choose) {
  std::vector<Remedy> all;
  auto const add = [&](std::string words, auto const& change) {
    all.push_back({std::move(words), config, scope});
    change(all.back());
  };
  if (may_choose) {
    add(plan_words, [](Remedy& remedy) { leave_to_plan(remedy.config); });
  }
  if (config.device.attention == config::Attention::automatic) {
    add("device.attention=own (other bits), apart from the time of attention itself",
        [](Remedy& remedy) { remedy.config.device.attention = config::Attention::own; });
  }
  auto const& paths = config.paths;
  bool const any_split = config.storage.split.rule != plan::SplitRule::fixed &&
                         config.storage.split.rule != plan::SplitRule::first;
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
  if (config.device.memory > 0) {
    add("twice the device memory", [](Remedy& remedy) { remedy.config.device.memory *= 2; });
  }
  add("a link to the device of twice the rate", [](Remedy& remedy) {
    auto& changed = remedy.config;
    for (double* rate :
         {&changed.platform.host_to_device, &changed.platform.device_to_host,
          &changed.platform.host_to_device_both, &changed.platform.device_to_host_both,
          &changed.device.emulation.host_to_device, &changed.device.emulation.device_to_host}) {
      *rate *= 2.0;
    }
  });
  add("a device of twice the products", [](Remedy& remedy) {
    auto& changed = remedy.config;
    for (double* rate :
         {&changed.platform_products, &changed.platform_passes.block_forward,
          &changed.platform_passes.block_backward, &changed.device.emulation.compute}) {
      *rate *= 2.0;
    }
  });
  add("twice the cores", [](Remedy& remedy) {
    auto& changed = remedy.config;
    for (double* rate :
         {&changed.platform.cpu_update, &changed.platform_passes.host_sum,
          &changed.device.emulation.host_update, &changed.device.emulation.host_sum}) {
      *rate *= 2.0;
    }
  });
  if (scope.ranks > 1) {
    add("a link between ranks of twice the rate",
        [](Remedy& remedy) { remedy.config.platform_passes.rank_link *= 2.0; });
  }
  auto const& train = config.train;
  // Fewer micro-batches than ranks would leave some without forward and backward.
  if (train.global_batch % (2 * train.micro_batch) == 0 &&
      train.global_batch / (2 * train.micro_batch) >= scope.ranks) {
    add(fmt::format("train.micro-batch={} (other bits: sums are rounded elsewhere)",
                    2 * train.micro_batch),
        [](Remedy& remedy) { remedy.config.train.micro_batch *= 2; });
  }
  return all;
}

/// Keys with which a run may fit that does not.
std::vector<Remedy> ways_to_fit(config::RunConfig const& config, ForecastScope const& scope) {
  std::vector<Remedy> all;
  auto const add = [&](std::string words, auto const& change) {
    all.push_back({std::move(words), config, scope});
    change(all.back().config);
  };
  if (config.paths.empty()) {
    add("a tiers.path", [](config::RunConfig& changed) {
      changed.paths.emplace_back();
      changed.paths.back().directory = "tiers.path";
      changed.storage.split = {};  // weights may be those of other paths
    });
  }
  using parameters::Home;
  if (config.parameter_home == Home::device && !config.home_is_open &&
      !parameters::stay_whole(config.sharding)) {
    add("parameters.home=host",
        [](config::RunConfig& changed) { changed.parameter_home = Home::host; });
  }
  if (parameters::stay_whole(config.sharding)) {
    add("parameters.sharding=zero3",
        [](config::RunConfig& changed) { changed.sharding = parameters::Sharding::zero3; });
  }
  using Rule = activations::Policy::Rule;
  if (config.train.activations.rule != Rule::automatic) {
    add("train.activations=auto",
        [](config::RunConfig& changed) { changed.train.activations = {Rule::automatic}; });
  }
  if (config.train.micro_batch > 1) {
    add("train.micro-batch=1 (other bits: sums are rounded elsewhere)",
        [](config::RunConfig& changed) { changed.train.micro_batch = 1; });
  }
  return all;
}

/// The forecast of a configuration, also of one for which the device has no room; none if host
/// memory has none.
std::optional<Forecast> foreseen(config::RunConfig const& config, ForecastScope const& scope) {
  try {
    return forecast(config, scope);
  } catch (UsageError const&) {
    return std::nullopt;
  }
}

}  // namespace

bool has_times(Forecast const& forecast) {
  return forecast.update.problem.empty() && forecast.compute_known;
}

std::vector<std::string> untimed_keys(Forecast const& forecast) {
  std::vector<std::string> keys;
  for (plan::Resource::Kind const kind : forecast.step.untimed) {
    keys.emplace_back(kind == plan::Resource::Kind::sums ? "platform.host-sum"
                                                         : "platform.rank-link");
  }
  return keys;
}

std::string use_of(plan::ResourceUse const& use, Forecast const& forecast) {
  return fmt::format("{} {:.0f} %", name_of(use.resource, forecast.paths),
                     100.0 * use.busy / forecast.step.step);
}

std::string shortage_of(Forecast const& forecast, Bytes limit) {
  return limit > 0 && forecast.device.total() > limit
             ? fmt::format("{} of device.memory={}, {} too much",
                           format_bytes(forecast.device.total()), format_bytes(limit),
                           format_bytes(forecast.device.total() - limit))
             : std::string{};
}

std::optional<Forecast> attempt(config::RunConfig const& config, ForecastScope const& scope) {
  auto found = foreseen(config, scope);
  bool const fits = found && shortage_of(*found, config.device.memory).empty();
  return fits ? std::move(found) : std::nullopt;
}

std::vector<Help> what_helps(config::RunConfig const& config, ForecastScope const& scope,
                             std::optional<Seconds> before, bool may_choose) {
  auto all = before ? std::vector<Remedy>{} : ways_to_fit(config, scope);
  std::ranges::move(remedies(config, scope, may_choose), std::back_inserter(all));
  bool const compares = !config.plan.choose;
  if (compares) {
    all.push_back({"", config, scope});  // as it is, for its bits, whether it fits or not
  }
  std::vector<std::optional<Forecast>> forecasts(all.size());
  for_each_in_threads(all.size(), [&](std::size_t i) {
    bool const is_now = compares && i + 1 == all.size();
    forecasts[i] = is_now ? foreseen(config, scope) : attempt(all[i].config, all[i].scope);
  });
  std::optional<Forecast> now;
  if (compares) {
    now = std::move(forecasts.back());
    all.pop_back();
  }
  std::vector<Help> found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& forecast = forecasts[i];
    Remedy& remedy = all[i];
    if (forecast && (!before || *before > (1.0 + worth_a_line) * forecast->step.step)) {
      // The first line on the choice has its keys.
      if (remedy.config.plan.choose && !config.plan.choose && !forecast->chosen.empty()) {
        auto const bits =
            !now ? "" : (have_same_bits(*forecast, *now) ? ", same bits" : ", other bits");
        remedy.words += fmt::format("{} ({})", bits, forecast->chosen.front());
      }
      found.push_back({std::move(remedy.words), *std::move(forecast)});
    }
  }
  if (before) {
    std::ranges::stable_sort(found, {}, [](Help const& help) { return help.forecast.step.step; });
  }
  return found;
}

std::string nothing_of_these(bool may_choose) {
  return fmt::format("nothing of {}twice the paths, memory, links, products or cores",
                     may_choose ? "configs/policies/offstage.cfg, " : "");
}

std::vector<std::string> advise(config::RunConfig const& config, ForecastScope const& scope,
                                Seconds reached, bool may_choose) {
  auto const now = reached > Seconds{} ? attempt(config, scope) : std::nullopt;
  if (!now || !has_times(*now) || !now->missing.empty() || now->step.uses.empty()) {
    return {};
  }
  Seconds const step = now->step.step;
  if (reached / step < 1.0 - far_off) {
    return {fmt::format(
        "steps took {:.3g} s, but {:.3g} s by the rates at the run's end: these may have been "
        "lower than before, for instance by other work on the machine",
        reached.count(), step.count())};
  }
  if (reached / step > 1.0 + far_off) {
    return {fmt::format(
        "steps took {:.3g} s, but {:.3g} s by the rates at the run's end: something that is "
        "not simulated bounds them, such as other work on the machine",
        reached.count(), step.count())};
  }
  auto const& most = now->step.uses.front();
  double const share = most.busy / step;
  auto const name = name_of(most.resource, now->paths);
  std::vector<std::string> sentences{
      share >= bounding
          ? fmt::format(
                "the step is bound by {}: busy {:.0f} % of {:.3g} s by the rates at the run's end",
                name, 100.0 * share, step.count())
          : fmt::format("no resource alone bounds the step of {:.3g} s by the rates at the run's "
                        "end: {} is busiest, {:.0f} % of it",
                        step.count(), name, 100.0 * share)};
  for (Help const& help : what_helps(config, scope, step, may_choose)) {
    if (sentences.size() < most_sentences) {
      sentences.push_back(fmt::format("{} would save {:.3g} of {:.3g} s", help.words,
                                      (step - help.forecast.step.step).count(), step.count()));
    }
  }
  if (sentences.size() == 1) {
    sentences.push_back(nothing_of_these(may_choose) + " would save much of it");
  }
  return sentences;
}

}  // namespace offstage::train
