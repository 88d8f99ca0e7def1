#include "train/saves/continuation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "config/key_setters.hpp"
#include "data/held_out.hpp"
#include "train/step/schedule.hpp"

namespace offstage::train {
namespace {

// Names that are no configuration keys.
constexpr std::string_view tokens_name = "tokens";
constexpr std::string_view best_name = "best-validation";
constexpr std::string_view last_loss_name = "last-loss";

/// Sections whose keys decide the result of training, and keys of these sections that do not.
constexpr std::array learned_sections{"data.", "train.", "optimizer.", "numerics."};
constexpr std::array not_learned{"train.activations", "train.log-every",     "train.max-time",
                                 "train.schedule",    "train.time-margin",   "data.valid",
                                 "train.valid-every", "train.valid-batches", "train.valid-first",
                                 "train.patience",    "data.valid contents"};
/// The key of a run's first weights, which matter to no run that goes on.
constexpr std::string_view start_key = "train.init-from";
/// Keys of a run's places, which do not matter.
constexpr std::array places{"run.dir", "checkpoint.dir", "checkpoint.resume"};
/// Keys on which the rounding of weights depends: what they come to is part of Meta::program.
constexpr std::array in_program{"run.threads", "device.kind", "device.attention"};
/// The section of the model's keys, which were compared with the checkpoint's before, and the one
/// key that was not.
constexpr std::string_view model_section = "model.", free_of_model = "model.max-sequence";

/// Values by key. Those of a repeated key are joined.
using Table = std::map<std::string, std::string, std::less<>>;

void add(Table& table, std::string_view key, std::string_view value) {
  auto const [found, fresh] = table.try_emplace(std::string{key}, value);
  if (!fresh) {
    found->second += fmt::format(" {}", value);
  }
}

Table table_of(std::string_view configuration) {
  Table table;
  while (!configuration.empty()) {
    auto const line = take_until('\n', configuration);
    if (auto const equals = line.find('='); equals != std::string_view::npos) {
      add(table, line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return table;
}

std::optional<std::int64_t> count_in(Table const& table, std::string_view key) {
  constexpr std::int64_t most = std::int64_t{1} << 60;
  auto const found = table.find(key);
  auto const value = found == table.end() ? std::nullopt : number_in<std::int64_t>(found->second);
  return value && *value >= 0 && *value < most ? value : std::nullopt;
}

bool is_learned(std::string_view key) {
  return key == free_of_model ||
         (std::ranges::any_of(learned_sections, [&](auto s) { return key.starts_with(s); }) &&
          std::ranges::find(not_learned, key) == not_learned.end());
}

bool is_left_out(std::string_view key) {
  return (key.starts_with(model_section) && key != free_of_model) || key == start_key ||
         std::ranges::find(places, key) != places.end() ||
         std::ranges::find(in_program, key) != in_program.end();
}

/// The number of "0.1", "1e-1", "10%" and "20k"; nullopt if the text is none.
std::optional<double> number_of(std::string_view text) {
  if (text.ends_with('%')) {
    auto const percent = number_of(text.substr(0, text.find_last_not_of(" %") + 1));
    return percent ? std::optional{*percent / 100.0} : std::nullopt;
  }
  constexpr std::string_view units = "kMGT";
  double factor = 1.0;
  if (!text.empty() && units.find(text.back()) != std::string_view::npos) {
    factor = std::pow(1e3, static_cast<double>(units.find(text.back()) + 1));
    text.remove_suffix(1);
  }
  auto const value = number_in<double>(text);
  return value ? std::optional{*value * factor} : std::nullopt;
}

bool same_value(std::string_view a, std::string_view b) {
  auto const number = number_of(a);
  return a == b || (number && number == number_of(b));
}

/// True as well for names that lead to one place: "m", "./m" and a link to it.
bool is_same_place(std::string const& a, std::string const& b) {
  std::error_code none;
  return a == b || (!a.empty() && !b.empty() && std::filesystem::equivalent(a, b, none));
}

std::string_view shown(std::string_view value) {
  return value.empty() ? "-" : value;
}

Table table_of(std::vector<config::Setting> const& settings) {
  Table table;
  for (config::Setting const& setting : settings) {
    add(table, setting.key, setting.value);
  }
  return table;
}

/// The checkpoint's table. A key that is younger than the checkpoint has the value by which runs
/// went before it.
Table table_before(std::string_view configuration, Table const& now) {
  constexpr std::string_view young = "data.attention", as_before = "window";
  Table before = table_of(configuration);
  if (now.contains(young) && before.contains("data.cross-documents")) {
    before.try_emplace(std::string{young}, as_before);
  }
  return before;
}

/// The first of these keys that both tables have with different values; empty: none.
std::string_view first_changed(std::span<std::string_view const> keys, Table const& before,
                               Table const& now) {
  auto const changed = std::ranges::find_if(keys, [&](std::string_view key) {
    auto const then = before.find(key);
    auto const today = now.find(key);
    return then != before.end() && today != now.end() && !same_value(then->second, today->second);
  });
  return changed == keys.end() ? std::string_view{} : *changed;
}

std::optional<double> held_out_by(std::string const& text) {
  try {
    return data::parse_held_out(text);
  } catch (UsageError const&) {
    return std::nullopt;
  }
}

/// Returns whether data.valid holds out another part of the training data.
bool holds_out_otherwise(Table const& before, Table const& now) {
  auto const part = [](Table const& table) {
    auto const found = table.find("data.valid");
    return found == table.end() ? std::nullopt : held_out_by(found->second);
  };
  return part(before) != part(now);
}

struct Changes {
  std::vector<Change> learned;
  std::vector<std::string> others;  ///< keys on which no weight depends
};

Changes changes_since(std::string_view configuration,
                      std::vector<config::Setting> const& settings) {
  Table now;
  std::set<std::string, std::less<>> given;
  for (config::Setting const& setting : settings) {
    add(now, setting.key, setting.value);
    if (!is_usual(setting)) {
      given.insert(setting.key);
    }
  }
  Table const before = table_before(configuration, now);
  Changes changes;
  for (auto const& [key, value] : now) {
    auto const found = before.find(key);
    bool const same =
        found == before.end() ? !given.contains(key) : same_value(found->second, value);
    if (same || is_left_out(key)) {
      continue;
    }
    if (is_learned(key) || (key == "data.valid" && holds_out_otherwise(before, now))) {
      changes.learned.push_back({key, found == before.end() ? "" : found->second, value});
    } else {
      changes.others.push_back(key);
    }
  }
  return changes;
}

std::string lines_of(BestLoss const& best) {
  std::string text;
  if (best.any()) {
    text +=
        fmt::format("{0}.step={1}\n{0}.loss={2}\n", best_name, best.best().step, best.best().loss);
  }
  if (best.last() >= 0) {
    text += fmt::format("{0}.since={1}\n{0}.last={2}\n", best_name, best.since(), best.last());
  }
  return text;
}

}  // namespace

std::string text_of(std::vector<config::Setting> const& settings, std::int64_t tokens,
                    BestLoss const& best, std::optional<double> last_loss) {
  std::string text;
  for (config::Setting const& setting : settings) {
    text += fmt::format("{}={}\n", setting.key, setting.value);
  }
  text += fmt::format("{}={}\n", tokens_name, tokens) + lines_of(best);
  if (last_loss) {
    text += fmt::format("{}={}\n", last_loss_name, *last_loss);
  }
  return text;
}

std::string with_best(std::string_view configuration, BestLoss const& best) {
  std::string text;
  for (std::size_t begin = 0; begin < configuration.size();) {
    std::size_t const end = std::min(configuration.find('\n', begin), configuration.size() - 1);
    auto const line = configuration.substr(begin, end + 1 - begin);
    text += line.starts_with(fmt::format("{}.", best_name)) ? "" : line;
    begin = end + 1;
  }
  return text + lines_of(best);
}

std::optional<double> last_loss_of(std::string_view configuration) {
  Table const table = table_of(configuration);
  auto const found = table.find(last_loss_name);
  return found == table.end() ? std::nullopt : number_of(found->second);
}

BestLoss best_of(std::string_view configuration) {
  Table const table = table_of(configuration);
  auto const count = [&](char const* what) {
    return count_in(table, fmt::format("{}.{}", best_name, what));
  };
  auto const since = count("since");
  auto const last = count("last");
  if (!since || !last) {
    return {};
  }
  auto const loss = table.find(fmt::format("{}.loss", best_name));
  return {
      {.step = count("step").value_or(0),
       .loss = loss == table.end() ? std::nan("") : number_of(loss->second).value_or(std::nan(""))},
      *since,
      *last};
}

std::int64_t tokens_of(std::string_view configuration, std::int64_t samples,
                       std::int64_t sequence) {
  Table const table = table_of(configuration);
  if (auto const tokens = count_in(table, tokens_name)) {
    return *tokens;
  }
  return samples * count_in(table, "train.sequence").value_or(sequence);
}

std::vector<Change> learned_changes(std::string_view configuration,
                                    std::vector<config::Setting> const& settings) {
  return configuration.empty() ? std::vector<Change>{}
                               : changes_since(configuration, settings).learned;
}

std::vector<std::string> describe_changes(std::string_view configuration,
                                          std::vector<config::Setting> const& settings) {
  auto const [learned, others] = changes_since(configuration, settings);
  std::vector<std::string> lines;
  if (!learned.empty()) {
    std::size_t widest = 30;  // of the values in the checkpoint, which may be paths
    std::vector<Change> rows;
    for (auto const& [key, then, now] : learned) {
      rows.push_back({key, printable_name(shown(then)), printable_name(shown(now))});
      widest = std::max(widest, rows.back().then.size());
    }
    auto const add_row = [&](Change const& row) {
      lines.push_back(fmt::format("  {:<28} {:<{}}  {}", row.key, row.then, widest, row.now));
    };
    add_row({"changed", "in the checkpoint", "now"});
    std::ranges::for_each(rows, add_row);
  }
  if (!others.empty()) {
    lines.push_back(
        fmt::format("  changed, and no weight depends on it: {}", fmt::join(others, ", ")));
  }
  return lines;
}

std::vector<config::Setting> with_longest_sequence(std::string_view configuration,
                                                   std::vector<config::Setting> settings) {
  auto const now = std::ranges::find(settings, free_of_model, &config::Setting::key);
  auto const then = count_in(table_of(configuration), free_of_model);
  if (now != settings.end() && now->is_default() && then &&
      static_cast<double>(*then) > number_of(now->value).value_or(0.0)) {
    now->value = std::to_string(*then);
  }
  return settings;
}

std::vector<config::Setting> with_start_of(std::string_view configuration,
                                           std::vector<config::Setting> settings) {
  auto const setting = std::ranges::find(settings, start_key, &config::Setting::key);
  if (setting == settings.end()) {
    return settings;
  }
  Table const before = table_of(configuration);
  if (auto const then = before.find(start_key); then != before.end()) {
    setting->value = then->second;
  } else {
    settings.erase(setting);
  }
  return settings;
}

std::string warning_of_start(std::string_view configuration,
                             std::vector<config::Setting> const& settings) {
  Table const before = table_of(configuration);
  auto const then = before.find(start_key);
  auto const now = std::ranges::find(settings, start_key, &config::Setting::key);
  if (then == before.end() || now == settings.end() || now->value.empty() ||
      is_same_place(now->value, then->second)) {
    return {};
  }
  return fmt::format(
      "{}={} is not used: the run goes on from its checkpoint, and began with {}; to begin with "
      "it, give another run.dir, or checkpoint.resume=none",
      start_key, printable_name(now->value),
      then->second.empty() ? "random weights" : printable_name(then->second));
}

bool validates_otherwise(std::string_view configuration,
                         std::vector<config::Setting> const& settings) {
  using namespace std::literals;
  constexpr std::array keys{"data.valid"sv,     "data.valid contents"sv,  "data.format"sv,
                            "data.mask"sv,      "data.cross-documents"sv, "data.separator"sv,
                            "data.attention"sv, "train.valid-batches"sv,  "train.sequence"sv};
  constexpr std::array sizes{"train.micro-batch"sv};
  Table const now = table_of(settings);
  Table const before = table_before(configuration, now);
  auto const batches = now.find("train.valid-batches"sv);
  bool const takes_all = batches == now.end() || same_value(batches->second, "0");
  return !first_changed(keys, before, now).empty() ||
         (!takes_all && !first_changed(sizes, before, now).empty());
}

std::string warning_of_other_run(std::string_view configuration,
                                 std::vector<config::Setting> const& settings) {
  Table const before = table_of(configuration);
  Table const now = table_of(settings);
  auto const then = before.find("run.dir");
  auto const today = now.find("run.dir");
  std::error_code none;
  auto const old_store = before.find("checkpoint.dir");
  auto const store = now.find("checkpoint.dir");
  bool const copied = old_store != before.end() && store != now.end() &&
                      !is_same_place(old_store->second, store->second);
  if (copied || then == before.end() || today == now.end() ||
      is_same_place(then->second, today->second) ||
      !std::filesystem::exists(std::filesystem::path{then->second} / "metrics.jsonl", none)) {
    return {};
  }
  return fmt::format(
      "the checkpoint is of the run in {}, and the one in {} goes on from it, as both have this "
      "checkpoint.dir; give each run its own, unless that is meant",
      printable_name(then->second), printable_name(today->second));
}

std::string warning_of_order(std::string_view configuration,
                             std::vector<config::Setting> const& settings) {
  using namespace std::literals;
  constexpr std::array keys{"train.sequence"sv, "data.cross-documents"sv, "data.separator"sv};
  Table const before = table_of(configuration);
  Table const now = table_of(settings);
  if (holds_out_otherwise(before, now)) {
    return "data.valid holds out another part of the training data: what is validated on from here "
           "on was trained on in part, or what was validated on is trained on; and the order of "
           "the sequences is another one";
  }
  auto const key = first_changed(keys, before, now);
  return key.empty()
             ? std::string{}
             : fmt::format(
                   "{} has changed, and with it the sequences and their order: what follows "
                   "has parts of the data that this run has seen, before it has seen others",
                   key);
}

std::string warning_of_skips(std::string_view configuration, config::RunConfig const& config,
                             std::int64_t step) {
  Table const table = table_of(configuration);
  auto const found = table.find("data.skip");
  std::vector<config::Skip> before;
  try {
    before = config::parse_skips(found == table.end() ? "" : found->second);
  } catch (UsageError const&) {
    return {};  // of another program
  }
  // A skip behind this very step begins here.
  auto const then = skipped(before, step - 1);
  auto const now = skipped(config.data.skips, step - 1);
  return then == now ? std::string{}
                     : fmt::format(
                           "data.skip leaves out {} sequences before step {}, and the checkpoint's "
                           "run left "
                           "out {}: the order moves, so that sequences {}; keep data.skip as it "
                           "was, and add "
                           "to it behind step {}",
                           now, step, then,
                           now < then ? "come again" : "that nobody named are left out", step);
}

std::string warning_of_warmup(std::string_view configuration, config::RunConfig const& config,
                              std::int64_t step) {
  using namespace std::literals;
  constexpr std::array keys{"optimizer.warmup-steps"sv};
  auto const& [begin, warmup] =
      std::pair{config.optimizer.schedule_begin, config.optimizer.warmup_steps};
  auto const key = first_changed(keys, table_of(configuration), table_of(config.settings));
  return key.empty() || warmup == 0 || step < begin + warmup
             ? std::string{}
             : fmt::format(
                   "optimizer.warmup-steps={} warms up nothing: it counts from step {}, and step "
                   "{} is done; optimizer.schedule-begin={} begins the schedule here",
                   warmup, begin, step, step);
}

std::string advice_on_tuning(std::vector<config::Setting> const& settings) {
  auto const rate = std::ranges::find(settings, "optimizer.lr", &config::Setting::key);
  return rate == settings.end() || !rate->is_default()
             ? std::string{}
             : fmt::format(
                   "optimizer.lr={} is the default, for random weights; trained ones are tuned at "
                   "1e-5 to 5e-5 as a rule; give the rate that is meant",
                   rate->value);
}

std::string advice_on_decay(config::OptimizerConfig const& optimizer) {
  return optimizer.kind != kernels::Optimizer::adam || optimizer.weight_decay == 0.0F
             ? std::string{}
             : fmt::format(
                   "optimizer.weight-decay={} is part of the gradient (L2) with "
                   "optimizer.kind=adam; what DeepSpeed and Megatron-LM call Adam is "
                   "optimizer.kind=adamw",
                   optimizer.weight_decay);
}

std::string advice_on_rate(config::OptimizerConfig const& optimizer, std::int64_t steps,
                           std::int64_t step, double last_rate) {
  // No schedule rises after the warm-up, so a higher rate belongs to another schedule.
  constexpr double rounding = 1.001;
  bool const over =
      step < 1 || step >= steps || step < optimizer.schedule_begin + optimizer.warmup_steps;
  double const next = over ? 0.0 : learning_rate(optimizer, steps, step + 1);
  if (next <= rounding * last_rate) {
    return {};
  }
  std::string const times =
      last_rate > 0.0 ? fmt::format(", {:.3g} times as high", next / last_rate) : "";
  std::string const same =
      last_rate > 0.0
          ? fmt::format("optimizer.lr={:.6g} with optimizer.schedule=cooldown", last_rate)
          : std::string{"a low optimizer.lr with optimizer.schedule=cooldown"};
  return fmt::format(
      "the learning rate jumps: step {} was taken at {:.3g}, and step {} will be at {:.3g}{}, by "
      "optimizer.schedule={} over train.steps={}; {} (or wsd, constant) goes on from the rate "
      "that was reached; a run that may be made longer is best begun with one of these, and made "
      "longer from a checkpoint before its rate falls; optimizer.schedule-begin={} with "
      "optimizer.warmup-steps begins the schedule anew by a warm-up",
      step, last_rate, step + 1, next, times, name_of(optimizer.schedule), steps, same, step);
}

}  // namespace offstage::train
