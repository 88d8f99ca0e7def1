#include "train/forecast/forecast.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "config/known_rates.hpp"
#include "config/split_parameters.hpp"
#include "state/shard.hpp"
#include "train/forecast/attention_room.hpp"
#include "train/forecast/configuration_choice.hpp"
#include "train/forecast/open_values.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_demand.hpp"
#include "train/settle/activation_choice.hpp"
#include "train/settle/run_attention.hpp"
#include "train/settle/run_rank_link.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {
namespace {

/// A limit of counts that is beyond every device.
constexpr double most_countable = 1e18;

bool has_countable_tokens(config::TrainConfig const& train) {
  return static_cast<double>(train.global_batch) * static_cast<double>(train.sequence) <=
         most_countable;
}

/// Errors: UsageError if is_countable returns false.
void require_countable(config::RunConfig const& config) {
  auto const& train = config.train;
  if (is_countable(config)) {
    return;
  }
  throw UsageError{
      has_countable_tokens(train)
          ? fmt::format("train.micro-batch={} of train.sequence={} has activations beyond any "
                        "device; lower them",
                        train.micro_batch, train.sequence)
          : fmt::format("train.global-batch={} of train.sequence={} has more tokens than can be "
                        "counted; lower them",
                        train.global_batch, train.sequence)};
}

bool host_visible(config::DeviceConfig const& device) {
  return device.kind == config::DeviceKind::host && device.emulation.host_to_device <= 0.0 &&
         device.emulation.device_to_host <= 0.0;
}

/// Returns whether the device is the cores. Then nothing is gained by moving work to it.
bool device_is_cores(config::DeviceConfig const& device) {
  return device.kind == config::DeviceKind::host && !device.emulation.any();
}

std::string describe_activations(config::RunConfig const& config) {
  auto const policy = activations::describe(config.train.activations);
  if (config.train.together == 0) {
    return policy;
  }
  double const part = staying_part(config);
  return fmt::format(
      "{}, vertical schedule of {} micro-batches{}", policy, config.train.together,
      part > 0.0 ? fmt::format(", {:.0f} % of what waits stays on the device", 100.0 * part) : "");
}

Room room_of(config::RunConfig const& config, ForecastScope const& scope,
             RankLinkChoice const& link) {
  return {.ranks_per_node = scope.ranks_per_node,
          .route = link.route,
          .rank_link = link.device_bytes,
          .device_memory = config.device.memory,
          .host_memory = config.host_memory > 0 ? config.host_memory : scope.host_memory,
          // Systems give /dev/shm half of a node's memory.
          .shared_memory = config.host_memory > 0 ? config.host_memory / 2 : scope.shared_memory};
}

/// Settles activations as a run would in that room, by the given rates.
ActivationChoice settle(config::RunConfig& config, state::ShardMap const& map, Room const& room) {
  settle_schedule(config, map, room);
  auto choice = settle_activations(config, map, room, given_rates(config, room.ranks_per_node));
  config.train.activations = choice.policy;
  settle_sharding(config, map, room);
  settle_waiting(config, map, room);
  return choice;
}

/// Forecasts one configuration on some ranks. T is its numerics.dtype.
class Foreseer {
 public:
  Foreseer(config::RunConfig const& config, state::ShardMap const& map, Room const& room)
      : config_{config},
        map_{map},
        room_{room},
        shard_{map.shard_elements(state::fullest_rank)},
        memory_{host_plan(config, map, room)},
        device_{device_demand(config, map, state::fullest_rank, room, memory_.subgroup_elements)} {}

  [[nodiscard]] std::int64_t shard() const { return shard_; }
  [[nodiscard]] plan::MemoryPlan const& memory() const { return memory_; }
  [[nodiscard]] DeviceDemand const& device() const { return device_; }
  [[nodiscard]] std::vector<PathForecast> paths() const;
  [[nodiscard]] plan::Prediction step(double share) const {
    return foresee_step(config_, {.map = map_,
                                  .rank = state::fullest_rank,
                                  .room = room_,
                                  .memory = memory_,
                                  .device = device_,
                                  .share = share});
  }
  /// Adds to `missing` the keys whose rates are needed.
  [[nodiscard]] UpdateForecast update(std::set<std::string>& missing) const;

 private:
  /// Returns whether state may go to the device in an update.
  [[nodiscard]] bool is_shared() const {
    auto const& share = config_.share.device_share;
    return share ? *share > 0.0 : !device_is_cores(config_.device);
  }
  [[nodiscard]] bool uses_device() const {
    return is_shared() || config_.share.device_resident > 0.0;
  }
  /// Elements whose state is not resident on the device.
  [[nodiscard]] std::int64_t waiting() const {
    return shard_ - std::llround(config_.share.device_resident * static_cast<double>(shard_));
  }
  /// Bytes of the shard's working copy, if it lives on storage. An update writes all of it.
  [[nodiscard]] Bytes stored_parameters() const {
    return config_.parameter_home == parameters::Home::storage
               ? shard_ * config_.numerics.element_bytes()
               : 0;
  }
  [[nodiscard]] std::vector<plan::PathRate> rates() const;
  [[nodiscard]] plan::UpdateRates rates_of_rank() const;
  [[nodiscard]] plan::UpdateDemand demand() const;
  [[nodiscard]] std::set<std::string> unknown() const;

  config::RunConfig const& config_;
  state::ShardMap const& map_;
  Room const& room_;
  std::int64_t shard_;  ///< elements of the fullest rank's shard
  plan::MemoryPlan memory_;
  DeviceDemand device_;
};

std::vector<plan::PathRate> Foreseer::rates() const {
  std::vector<plan::PathRate> rates;
  rates.reserve(config_.paths.size());
  for (tiers::PathSettings const& path : config_.paths) {
    rates.push_back({path.read_rate, path.write_rate, path.duplex == tiers::Duplex::full});
  }
  return rates;
}

std::vector<PathForecast> Foreseer::paths() const {
  auto const all = rates();
  bool const alone = all.size() == 1;  // it has everything, whatever its rates
  bool const known = std::ranges::all_of(all, &plan::PathRate::known);
  bool const weighed = alone || known || !plan::needs_rates(config_.storage.split);
  auto const weights = alone || !weighed ? std::vector<double>(all.size(), alone ? 1.0 : 0.0)
                                         : plan::split_weights(config_.storage.split, all);
  std::int64_t const stored =
      std::max<std::int64_t>(0, waiting() - memory_.cached * memory_.subgroup_elements);
  std::vector<PathForecast> paths;
  auto const state = static_cast<double>(stored) * config_.optimizer.layout().bytes_per_element();
  Bytes const on_storage = static_cast<Bytes>(std::llround(state)) + stored_parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const bytes = weights[i] * static_cast<double>(on_storage * room_.ranks_per_node);
    paths.push_back({.directory = config_.paths[i].directory,
                     .rate = all[i],
                     .weighed = weighed,
                     .weight = weights[i],
                     .bytes = static_cast<Bytes>(bytes),
                     .endurance = config_.paths[i].endurance});
  }
  return paths;
}

/// The rates of one rank. All ranks of a node use its paths at the same time.
plan::UpdateRates Foreseer::rates_of_rank() const {
  plan::UpdateRates all = config::known_rates(config_);
  auto const paths = rates();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (plan::takes_extents(config_.storage.split, i)) {
      all.paths.push_back({paths[i].read / room_.ranks_per_node,
                           paths[i].write / room_.ranks_per_node, paths[i].full_duplex});
    }
  }
  return all;
}

plan::UpdateDemand Foreseer::demand() const {
  auto shape =
      update_shape(config_, map_, state::fullest_rank, memory_.subgroup_elements, room_.route);
  shape.storage = storage_traffic(config_, shape, memory_);
  auto demand = update_demand(config_, shape, host_visible(config_.device));
  demand.held = shape.staying_elements(device_.held);
  return demand;
}

std::set<std::string> Foreseer::unknown() const {
  std::set<std::string> unknown;
  auto const need = [&](char const* key, double rate) {
    if (rate <= 0.0) {
      unknown.insert(key);
    }
  };
  auto const platform = config::known_rates(config_);
  bool const dynamic = is_shared();
  if (config_.share.device_resident < 1.0) {
    need("platform.cpu-update", platform.cpu_update);
  }
  if (uses_device()) {
    need("platform.device-update", platform.device_update);
  }
  bool const parameters_travel =
      !host_visible(config_.device) && config_.parameter_home == parameters::Home::device;
  if (uses_device() || parameters_travel) {
    need("platform.host-to-device", platform.host_to_device);
  }
  if (dynamic) {
    need("platform.device-to-host", platform.device_to_host);
  }
  for (std::size_t i = 0; i < config_.paths.size(); ++i) {
    tiers::PathSettings const& path = config_.paths[i];
    if (!path.rates_known() && plan::takes_extents(config_.storage.split, i)) {
      unknown.insert(fmt::format("read= and write= of tiers.path={}", path.directory));
    }
  }
  return unknown;
}

UpdateForecast Foreseer::update(std::set<std::string>& missing) const {
  UpdateForecast result{.transfers = config_.share.transfers,
                        .share = config_.share.device_share.value_or(0.0),
                        .resident = config_.share.device_resident};
  auto const not_known = unknown();
  if (!not_known.empty()) {
    missing.insert(not_known.begin(), not_known.end());
    result.problem = "rates are missing";
    return result;
  }
  try {
    auto const work = demand();
    auto const rates = rates_of_rank();
    if (!config_.share.device_share && is_shared()) {
      result.share = plan::best_share(work, rates);
    }
    result.times = plan::update_times(work, rates, result.share);
  } catch (UsageError const& error) {
    result.problem = error.what();
  }
  return result;
}

std::optional<double> stride_of(plan::UpdateRates const& rates) {
  double const link = std::min(rates.host_to_device, rates.device_to_host) / sizeof(float);
  if (rates.cpu_update <= 0.0 || rates.device_update <= 0.0 || link <= 0.0) {
    return std::nullopt;
  }
  // The measured rate of the CPU's update includes the conversion.
  return plan::paper_stride(rates.cpu_update, 0.0, rates.device_update, link);
}

/// Settles device.kind as a run would: GPUs, unless they are emulated.
config::RunConfig settled(config::RunConfig config) {
  if (config.device.kind == config::DeviceKind::automatic) {
    config.device.kind =
        config.device.emulation.any() ? config::DeviceKind::host : config::DeviceKind::cuda;
  }
  if (!config.plan.choose) {
    config::settle_split_parameters(config);
  }
  return config;
}

/// Settles attention by assumption. `config` gets the device memory that it needs.
AttentionChoice settle_attention(config::RunConfig& config, state::ShardMap const& map,
                                 Room const& room) {
  auto facts = planned_attention(config);
  if (room.device_memory > 0 && facts.gpus && facts.planned) {
    facts.has_room = has_attention_room(config, map, room, facts.workspace);
  }
  auto choice = choose_attention(config.device.attention, facts);
  config.device.attention_workspace = choice.cudnn ? facts.workspace : 0;
  return choice;
}

/// Settles plan.choose=on: by the rates, or without them. Returns the choice and its reasons in
/// words. Rates that are not known come to `missing`.
std::vector<std::string> settle_choice(config::RunConfig& config, ForecastScope const& scope,
                                       state::ShardMap const& map, Room const& room,
                                       std::set<std::string>& missing) {
  std::vector<std::string> why;
  auto const unknown_rates = rates_missing(config, host_visible(config.device));
  missing.insert(unknown_rates.begin(), unknown_rates.end());
  if (missing.empty() && !scope.memory_alone) {
    auto const choice = choose_configuration(config, map, room);
    why = describe(choice, config, config.train.global_batch * config.train.sequence);
    take(config, choice.chosen);
  } else {
    take(config, first_that_fits(config, map, room));
    if (!missing.empty()) {
      why.push_back(
          fmt::format("plan.choose=on: what moves least of all that fits; without {} "
                      "no configuration can be called the quickest",
                      fmt::join(missing, ", ")));
    }
  }
  config::settle_split_parameters(config);
  return why;
}

std::string warning_of_node_home(config::RunConfig const& config, state::ShardMap const& map,
                                 Room const& room) {
  auto const shortage = config.parameter_home == parameters::Home::node
                            ? node_home_shortage(config, map, room)
                            : std::string{};
  return shortage.empty() ? shortage : "parameters.home=node ends such a run: " + shortage;
}

Forecast foresee(config::RunConfig const& given, ForecastScope const& scope) {
  state::ShardMap const map{state::layers_of(given.model), scope.ranks};
  config::RunConfig config = given;
  auto const link = plan_rank_link(config, scope.ranks, scope.ranks_per_node);
  auto const room = room_of(config, scope, link);
  auto const attention = settle_attention(config, map, room);
  std::vector<std::string> why;
  std::set<std::string> missing;
  if (config.plan.choose) {
    why = settle_choice(config, scope, map, room, missing);
  }
  auto const chosen = settle(config, map, room);
  Foreseer const here{config, map, room};
  Forecast result{.parameters = state::count_parameters(map.layers()),
                  .shard_elements = here.shard(),
                  .layers = config.model.layers,
                  .attention = attention.text,
                  .cudnn = attention.cudnn,
                  .state = describe_state(config.optimizer),
                  .chosen = std::move(why),
                  .config = {},
                  .activations = describe_activations(config),
                  .activations_why = chosen.why,
                  .link = link.text,
                  .batch = describe_step(config, scope.ranks),
                  .idle_ranks = warning_of_idle_ranks(config, scope.ranks),
                  .node_home = warning_of_node_home(config, map, room),
                  .sums = describe_sums(config),
                  .gathers = describe_gathers(config, scope.ranks),
                  .nodes = (scope.ranks + scope.ranks_per_node - 1) / scope.ranks_per_node,
                  .memory = here.memory(),
                  .host_limit = room.host_memory,
                  .device = here.device()};
  std::int64_t const stored = result.memory.subgroups - result.memory.cached;
  bool const doubled = keeps_versions(config) && !config.paths.empty();
  result.rows =
      memory_rows(config, {.plan = result.memory,
                           .device = result.device,
                           .shard_elements = result.shard_elements,
                           .gradient_bytes = extent_sum_bytes(config),
                           .parameter_bytes = config.numerics.element_bytes(),
                           .stored_activations = stored_activations(config, result.memory),
                           .spare_slots = doubled ? stored : 0});
  result.paths = here.paths();
  result.tokens = config.train.global_batch * config.train.sequence;
  result.update = here.update(missing);
  result.compute_known = config::known_compute(config) > 0.0;
  if (result.update.problem.empty() && !scope.memory_alone) {
    result.step = here.step(result.update.share);
    for (std::size_t i = 0; i < std::min(result.paths.size(), result.step.paths.size()); ++i) {
      result.paths[i].written = result.step.paths[i].written * scope.ranks_per_node;
    }
    if (!result.compute_known) {
      missing.insert("platform.products");
    }
  }
  if (!device_is_cores(config.device)) {
    result.stride = stride_of(config::known_rates(config));
  }
  result.missing.assign(missing.begin(), missing.end());
  result.config = std::move(config);
  return result;
}

}  // namespace

bool have_same_bits(Forecast const& one, Forecast const& other) {
  return one.cudnn == other.cudnn && accumulates_fp32(one.config) == accumulates_fp32(other.config);
}

bool is_countable(config::RunConfig const& config) {
  auto const& model = config.model;
  auto const widest = static_cast<double>(std::max({model.vocab, model.ffn_hidden, model.hidden}));
  auto const rows =
      static_cast<double>(config.train.micro_batch) * static_cast<double>(config.train.sequence);
  return has_countable_tokens(config.train) &&
         rows * widest * static_cast<double>(model.layers + 1) * 64.0 <= most_countable;
}

Forecast forecast(config::RunConfig const& config, ForecastScope const& scope) {
  require(scope.ranks > 0 && scope.ranks_per_node > 0 && scope.ranks_per_node <= scope.ranks,
          "forecast: nodes have ranks");
  require_countable(config);
  return foresee(settled(config), scope);
}

}  // namespace offstage::train
