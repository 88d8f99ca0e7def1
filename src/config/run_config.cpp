#include "config/run_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/path.hpp"
#include "config/optimizer_kinds.hpp"
#include "config/split_parameters.hpp"

namespace offstage::config {
namespace {

/// A variance below 1.2e-38 is kept as zero (kernels/optimizer), and the momentum of such gradients
/// is up to 3e-18: over a smaller epsilon it would be no step but a leap.
constexpr double least_epsilon = 1e-18;

/// Value of train.steps in checks of other keys, until it is known.
constexpr std::int64_t most_steps = 1'000'000'000'000;

constexpr int most_threads = 1024;  ///< more than a rank's cores; a typing error asks for more

template <class T>
void require_at_least(std::string_view key, T value, T least, std::string_view meaning = "") {
  if (!(value >= least)) {
    throw UsageError{fmt::format("{}={} must be {} or more{}", key, value, least, meaning)};
  }
}

void require_positive(std::string_view key, double value) {
  if (!(value > 0.0)) {
    throw UsageError{fmt::format("{}={} must be above 0", key, value)};
  }
}

/// Checks train.steps. Epochs need an end of data.train that all files reach together.
void validate_length(RunConfig const& config) {
  if (config.train.epochs == 0.0) {
    require_at_least<std::int64_t>("train.steps", config.train.steps, 1);
    return;
  }
  auto const refuse = [&](std::string const& why) {
    throw UsageError{
        fmt::format("train.steps={:g}epochs {}; give a number of steps", config.train.epochs, why)};
  };
  if (config.data.train.size() > 1 && config.data.train.front().weight) {
    refuse("needs files without weights in data.train: with weights each has epochs of its own");
  }
  if (config.optimizer.schedule_begin > 0) {
    refuse(
        fmt::format("counts from the first start, and optimizer.schedule-begin={} begins a "
                    "later stage",
                    config.optimizer.schedule_begin));
  }
}

void validate_batch(TrainConfig const& train, state::ModelShape const& model) {
  require_at_least<std::int64_t>("train.micro-batch", train.micro_batch, 1);
  require_at_least<std::int64_t>("train.global-batch", train.global_batch, 1);
  if (train.global_batch % train.micro_batch != 0) {
    std::int64_t const below = train.global_batch / train.micro_batch * train.micro_batch;
    std::int64_t const above = below + train.micro_batch;
    throw UsageError{
        fmt::format("train.global-batch={} is not a multiple of train.micro-batch={}; use {}",
                    train.global_batch, train.micro_batch,
                    below == 0 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above))};
  }
  if (train.sequence > model.max_sequence) {
    throw UsageError{
        fmt::format("train.sequence={} is longer than model.max-sequence={}; use {} or less",
                    train.sequence, model.max_sequence, model.max_sequence)};
  }
}

void validate_steps(TrainConfig const& train) {
  require_at_least("train.z-loss", train.z_loss, 0.0, "; 0: none, PaLM's is 1e-4");
  require_at_least("train.max-time", train.max_time.count(), 0.0, "; 0 is no limit");
  require_at_least("train.time-margin", train.time_margin.count(), 0.0);
  require_at_least<std::int64_t>("train.max-bad-steps", train.max_bad_steps, 1);
  require_at_least<std::int64_t>("train.valid-every", train.valid_every, 0,
                                 "; 0 validates at the end alone");
  require_at_least<std::int64_t>("train.valid-batches", train.valid_batches, 0, "; 0 takes all");
  require_at_least<std::int64_t>("train.patience", train.patience, 0,
                                 "; 0 trains on whatever validations say");
  require_at_least<std::int64_t>("train.log-every", train.log_every, 1);
}

/// Checks that there are validations if keys depend on them.
void validate_validations(RunConfig const& config) {
  auto const need = [](bool asked, bool given, char const* key, char const* what) {
    if (asked && !given) {
      throw UsageError{fmt::format("{} goes by validations; {}", key, what)};
    }
  };
  bool const has_data = !config.data.valid.empty();
  constexpr char const* give_data = "give data.valid";
  need(config.train.valid_first, has_data, "train.valid-first=on", give_data);
  need(config.train.patience > 0, has_data, "train.patience", give_data);
  need(config.train.patience > 0, config.train.valid_every > 0, "train.patience",
       "give train.valid-every");
  need(config.checkpoint.keep_best, has_data, "checkpoint.keep-best=on", give_data);
}

void validate_separator(RunConfig const& config) {
  auto const separator = config.data.separator;
  if (separator && (*separator < 0 || *separator >= config.model.vocab)) {
    throw UsageError{
        fmt::format("data.separator={} is no token of model.vocab={}; name the token that ends a "
                    "document, from 0 to {}",
                    *separator, config.model.vocab, config.model.vocab - 1)};
  }
}

void require_beta(std::string_view key, double value) {
  if (!(value >= 0.0 && value < 1.0)) {
    throw UsageError{fmt::format("{}={} must be at least 0 and below 1", key, value)};
  }
}

/// Checks that no key was set that has no effect. A user who sets one expects another run. A
/// default that was written out passes, so that effective.cfg goes with other keys beside it.
void require_used(RunConfig const& config) {
  for (UnusedKey const& unused : unused_keys(config)) {
    auto const set = std::ranges::find(config.settings, unused.key, &Setting::key);
    if (set == config.settings.end()) {
      continue;
    }
    bool const passes = unused.even_as_default ? set->is_default() : is_usual(*set);
    if (!passes) {
      throw UsageError{fmt::format("{}={} has no effect {}; leave it out", unused.key, set->value,
                                   unused.reason)};
    }
  }
}

void add_unused(OptimizerConfig const& optimizer, std::vector<UnusedKey>& unused) {
  OptimizerKind const& kind = kind_of(optimizer.kind);
  for (auto const& [key, is_used] : {std::pair{"optimizer.beta1", kind.beta1},
                                     {"optimizer.beta2", kind.beta2},
                                     {"optimizer.eps", kind.eps},
                                     {"optimizer.momentum", kind.momentum}}) {
    if (!is_used) {
      unused.push_back(
          {.key = key,
           .reason = fmt::format("with optimizer.kind={}", kernels::name_of(kind.optimizer)),
           .even_as_default = true});
    }
  }
  auto const with_schedule = fmt::format("with optimizer.schedule={}", name_of(optimizer.schedule));
  bool const falls_at_the_end =
      optimizer.schedule == RateSchedule::wsd || optimizer.schedule == RateSchedule::cooldown;
  if (!falls_at_the_end) {
    unused.push_back({"optimizer.decay-fraction", with_schedule});
    unused.push_back({"optimizer.decay-steps", with_schedule});
  } else if (optimizer.decay_steps > 0) {
    unused.push_back({"optimizer.decay-fraction",
                      fmt::format("with optimizer.decay-steps={}", optimizer.decay_steps)});
  }
  if (optimizer.schedule == RateSchedule::constant) {
    unused.push_back({"optimizer.min-lr", with_schedule});
  }
}

void add_unused(NumericsConfig const& numerics, std::vector<UnusedKey>& unused) {
  bool const scales = numerics.dtype == DType::fp16;
  auto const reason = scales ? fmt::format("with numerics.loss-scale={}", numerics.loss_scale.start)
                             : fmt::format("with numerics.dtype={}", name_of(numerics.dtype));
  if (!scales) {
    unused.push_back({"numerics.loss-scale", reason});
  }
  if (!scales || !numerics.loss_scale.dynamic) {
    unused.push_back({"numerics.loss-scale-start", reason});
    unused.push_back({"numerics.loss-scale-window", reason});
  }
}

void validate_optimizer(OptimizerConfig const& optimizer, std::int64_t steps) {
  require_beta("optimizer.momentum", optimizer.momentum);
  (void)optimizer.layout();
  require_positive("optimizer.lr", optimizer.lr);
  require_beta("optimizer.beta1", optimizer.beta1);
  require_beta("optimizer.beta2", optimizer.beta2);
  require_at_least("optimizer.eps", optimizer.eps, least_epsilon, ", as variances are in FP32");
  require_at_least("optimizer.weight-decay", optimizer.weight_decay, 0.0);
  require_at_least("optimizer.clip", optimizer.clip, 0.0, "; 0 does not clip");
  require_at_least("optimizer.min-lr", optimizer.min_lr, 0.0);
  if (optimizer.min_lr > optimizer.lr) {
    throw UsageError{fmt::format("optimizer.min-lr={} is above optimizer.lr={}; use {} or less",
                                 optimizer.min_lr, optimizer.lr, optimizer.lr)};
  }
  require_at_least<std::int64_t>("optimizer.schedule-begin", optimizer.schedule_begin, 0);
  if (optimizer.schedule_begin > 0 && optimizer.schedule_begin >= steps) {
    throw UsageError{
        fmt::format("optimizer.schedule-begin={} leaves nothing of train.steps={}, which counts "
                    "from the run's first step; use {} or less, or more steps",
                    optimizer.schedule_begin, steps, steps - 1)};
  }
  require_at_least<std::int64_t>("optimizer.warmup-steps", optimizer.warmup_steps, 0);
  if (optimizer.schedule == RateSchedule::inverse_sqrt && optimizer.warmup_steps == 0) {
    throw UsageError{
        "optimizer.schedule=inverse-sqrt falls by sqrt(optimizer.warmup-steps / step), and "
        "optimizer.warmup-steps=0 leaves no rate; give 1 or more"};
  }
  std::int64_t const most = steps - optimizer.schedule_begin - 1;
  std::string const behind_begin =
      optimizer.schedule_begin > 0
          ? fmt::format(" behind optimizer.schedule-begin={}", optimizer.schedule_begin)
          : "";
  if (optimizer.warmup_steps > most) {
    throw UsageError{
        fmt::format("optimizer.warmup-steps={} leaves nothing of train.steps={}{}; use {} or less",
                    optimizer.warmup_steps, steps, behind_begin, most)};
  }
  require_at_least<std::int64_t>("optimizer.decay-steps", optimizer.decay_steps, 0,
                                 "; 0 goes by optimizer.decay-fraction");
  if (optimizer.decay_steps > most + 1) {
    throw UsageError{
        fmt::format("optimizer.decay-steps={} is more than train.steps={}{}; use {} or less",
                    optimizer.decay_steps, steps, behind_begin, most + 1)};
  }
  if (!(optimizer.decay_fraction > 0.0 && optimizer.decay_fraction <= 1.0)) {
    throw UsageError{fmt::format("optimizer.decay-fraction={} must be above 0 and at most 1",
                                 optimizer.decay_fraction)};
  }
}

void validate_loss_scale(LossScaleRules const& rules) {
  int exponent{};
  if (!(rules.start >= 1.0 && std::frexp(rules.start, &exponent) == 0.5)) {
    throw UsageError{
        fmt::format("{}={} must be {}a power of two, 1 or more",
                    rules.dynamic ? "numerics.loss-scale-start" : "numerics.loss-scale",
                    rules.start, rules.dynamic ? "" : "dynamic or ")};
  }
  require_at_least<std::int64_t>("numerics.loss-scale-window", rules.window, 1);
}

/// The path without a trailing slash or "." in it; symbolic links stay.
std::filesystem::path plain(std::filesystem::path const& path) {
  return without_slash(path.lexically_normal());
}

void validate_places(RunConfig const& config) {
  require_at_least("run.threads", config.threads, 0, "; 0 takes this rank's share of the cores");
  if (config.threads > most_threads) {
    throw UsageError{
        fmt::format("run.threads={} must be {} or less", config.threads, most_threads)};
  }
  if (config.watchdog.count() != 0.0) {
    require_at_least("run.watchdog", config.watchdog.count(), 1.0, " seconds; 0 watches nothing");
  }
  require_at_least<std::int64_t>("update.subgroup-size", config.subgroup_size, 1);
  require_at_least<Bytes>("tiers.host-memory", config.host_memory, 0);
  require_at_least<Bytes>("device.memory", config.device.memory, 0, "; 0 is no limit");
  require_at_least("checkpoint.keep", config.checkpoint.keep, 2,
                   "; the second one is needed if the newest is damaged");
  require_at_least<std::int64_t>("checkpoint.every", config.checkpoint.every.steps, 0);
  require_at_least<std::int64_t>("checkpoint.keep-every", config.checkpoint.keep_every, 0,
                                 "; 0 keeps none for good");
  require_positive("checkpoint.mtbf", config.checkpoint.mtbf.count());
  require_positive("checkpoint.node-mtbf", config.checkpoint.node_mtbf.count());
  if (config.checkpoint.partner && config.checkpoint.local.empty()) {
    throw UsageError{
        "checkpoint.partner=copy: there is nothing to copy without checkpoint.local; name a "
        "directory on storage of each node there, or leave checkpoint.partner out"};
  }
  // Both directories have a lock file of their own.
  if (plain(config.checkpoint.dir) == plain(config.run_dir)) {
    throw UsageError{fmt::format("checkpoint.dir={} is run.dir; use for example {}",
                                 config.checkpoint.dir,
                                 (plain(config.run_dir) / "checkpoints").string())};
  }
}

void validate_storage(std::vector<tiers::PathSettings> const& paths, StoragePolicy const& policy) {
  std::set<std::filesystem::path> seen;
  for (tiers::PathSettings const& path : paths) {
    if (!seen.insert(plain(std::filesystem::absolute(path.directory))).second) {
      throw UsageError{
          fmt::format("tiers.path={} is given twice; keep one (processes=2 lets two processes use "
                      "it at a time)",
                      path.directory)};
    }
  }
  std::vector<double> const& weights = policy.split.weights;
  if (policy.split.rule == plan::SplitRule::fixed && !paths.empty() &&
      weights.size() != paths.size()) {
    throw UsageError{fmt::format(
        "tiers.split={} has {} weight{}, but there {} {} tiers.path; give one for each, or auto",
        fmt::join(weights, ":"), weights.size(), weights.size() == 1 ? "" : "s",
        paths.size() == 1 ? "is" : "are", paths.size())};
  }
  require_at_least<Bytes>("tiers.cache", policy.most_cache, -1);
}

void validate_activations(RunConfig const& config) {
  if (config.train.activations.storage && config.paths.empty()) {
    throw UsageError{
        "train.activations=storage keeps activations on storage, but there is no tiers.path; give "
        "one, or "
        "use train.activations=host"};
  }
  auto const& policy = config.train.activations;
  bool const part =
      policy.rule == activations::Policy::Rule::swap && policy.share > 0.0 && policy.share < 1.0;
  if (config.train.schedule == LayerSchedule::vertical &&
      (part || policy.rule == activations::Policy::Rule::keep ||
       policy.rule == activations::Policy::Rule::part)) {
    throw UsageError{fmt::format(
        "train.activations={} keeps what train.schedule=vertical computes again; use recompute "
        "(blocks' inputs stay on the device), host or storage (they leave it), or auto",
        activations::describe(policy))};
  }
}

void validate_parameters(RunConfig const& config) {
  if (config.parameter_home == parameters::Home::storage && config.paths.empty()) {
    throw UsageError{
        "parameters.home=storage keeps the working copy on storage, but there is no tiers.path; "
        "give one, or use parameters.home=host"};
  }
  if (parameters::stay_whole(config.sharding) && !config.home_is_open &&
      config.parameter_home != parameters::Home::device) {
    throw UsageError{fmt::format(
        "parameters.sharding={} keeps whole parameters on the device, but parameters.home={} "
        "brings them there layer by layer; use parameters.home=device, or "
        "parameters.sharding=zero3",
        parameters::name_of(config.sharding), parameters::name_of(config.parameter_home))};
  }
}

void validate_sums(RunConfig const& config) {
  require_at_least<std::int64_t>("numerics.sum-block", config.numerics.sum_block, 1,
                                 "; 1 adds gradients one after the other");
  std::int64_t const all = config.train.global_batch / config.train.micro_batch;
  std::int64_t const block = config.numerics.sum_block;
  if (config.sharding != parameters::Sharding::zero1 || (block > 1 && block < all)) {
    return;
  }
  throw UsageError{
      all < 3
          ? fmt::format("parameters.sharding=zero1 has each rank sum whole gradients of blocks of "
                        "micro-batches, but train.global-batch={} has {}; use "
                        "parameters.sharding=zero2",
                        config.train.global_batch, all)
          : fmt::format(
                "parameters.sharding=zero1 has each rank sum whole gradients of a block of "
                "micro-batches, so that their order must say where blocks end; "
                "numerics.sum-block={} must be from 2 to {}, less than the {} of a step, or "
                "use parameters.sharding=zero2",
                block, all - 1, all)};
}

/// Refuses values that only the plan can settle, if there is no plan.
void validate_plan(RunConfig const& config) {
  auto const refuse = [&](std::string_view key, std::string_view instead) {
    throw UsageError{
        fmt::format("{}=auto is decided by predictions alone; set plan.choose=on, or {}={}", key,
                    key, instead)};
  };
  if (config.home_is_open && !config.plan.choose) {
    refuse("parameters.home", "device");
  }
  if (config.share.resident_is_open && !config.plan.choose) {
    refuse("update.device-resident", "0");
  }
}

void require_share(std::string_view key, double value) {
  if (!(value >= 0.0 && value <= 1.0)) {
    throw UsageError{fmt::format("{}={} must be from 0 to 1", key, value)};
  }
}

void validate_share(SharePolicy const& share) {
  require_share("update.device-share", share.device_share.value_or(0.0));
  require_share("update.device-resident", share.device_resident);
  require_at_least<std::int64_t>("update.device-chunk", share.device_chunk, 1);
}

}  // namespace

bool is_usual(Setting const& setting) {
  return setting.is_default() || setting.origin.ends_with(as_default_mark);
}

bool is_given(std::vector<Setting> const& settings, std::string_view key) {
  return std::ranges::any_of(settings, [&](Setting const& setting) {
    return setting.key == key && !setting.is_default();
  });
}

char const* name_of(RateSchedule schedule) {
  constexpr std::array names{"constant", "linear", "cosine", "wsd", "cooldown", "inverse-sqrt"};
  return names[static_cast<std::size_t>(schedule)];
}

std::int64_t skipped(std::vector<Skip> const& skips, std::int64_t step) {
  std::int64_t sequences = 0;
  for (Skip const& skip : skips) {
    sequences += skip.step <= step ? skip.sequences : 0;
  }
  return sequences;
}

std::vector<UnusedKey> unused_keys(RunConfig const& config) {
  std::vector<UnusedKey> unused;
  add_unused(config.optimizer, unused);
  add_unused(config.numerics, unused);
  if (config.data.rule == data::WindowRule::crossing && !config.data.documents_apart() &&
      config.data.held_out == 0.0) {
    unused.push_back(
        {"data.separator", "with data.cross-documents=true and data.attention=window"});
  }
  if (config.data.rule == data::WindowRule::apart) {
    unused.push_back({"data.attention", "with data.cross-documents=false"});
  }
  if (config.data.valid.empty()) {
    unused.push_back({"train.valid-every", "without data.valid"});
    unused.push_back({"train.valid-batches", "without data.valid"});
  }
  if (config.checkpoint.local.empty()) {
    unused.push_back({"checkpoint.local-every", "without checkpoint.local"});
  }
  return unused;
}

std::string describe_state(OptimizerConfig const& optimizer) {
  return fmt::format("{} bytes per parameter ({}, moments in {}{})",
                     format_bytes_per_element(optimizer.layout()), kernels::name_of(optimizer.kind),
                     kernels::name_of(optimizer.moments),
                     optimizer.split_parameter ? ", parameters split" : "");
}

void validate(RunConfig const& config) {
  // The model comes second, because its longest sequence is train.sequence unless it is given.
  require_at_least<std::int64_t>("train.sequence", config.train.sequence, 1);
  state::validate(config.model);
  validate_length(config);
  validate_batch(config.train, config.model);
  validate_steps(config.train);
  validate_validations(config);
  validate_separator(config);
  bool const length_is_known = config.train.epochs == 0.0 || config.train.steps > 0;
  validate_optimizer(config.optimizer, length_is_known ? config.train.steps : most_steps);
  validate_loss_scale(config.numerics.loss_scale);
  validate_places(config);
  require_used(config);
  validate_storage(config.paths, config.storage);
  validate_activations(config);
  validate_parameters(config);
  validate_sums(config);
  validate(config.device);
  if (!config.plan.choose) {
    (void)splits_parameters(config);
  }
  validate_share(config.share);
  validate_plan(config);
  require_share("plan.clip-rate", config.plan.clip_rate);
}

void validate(DeviceConfig const& device) {
  if (device.kind == DeviceKind::cuda && device.emulation.any()) {
    throw UsageError{
        "device.emulate slows down the emulated device, but device.kind=cuda asks for a GPU; leave "
        "device.emulate out, or set device.kind=host"};
  }
}

}  // namespace offstage::config
