#include "cli/plan_record.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/units.hpp"
#include "cli/plan_answers.hpp"
#include "train/forecast/remedies.hpp"
#include "train/report/json_line.hpp"

namespace offstage::cli {
namespace {

using Json = nlohmann::ordered_json;

Json known(double value) {
  return value > 0.0 ? Json(value) : Json();
}

Json limit_of(Bytes limit) {
  return limit > 0 ? Json(limit) : Json();
}

/// The times of a step; null if rates are missing.
Json step_of(train::Forecast const& forecast) {
  if (!train::has_times(forecast)) {
    return {};
  }
  auto const& step = forecast.step;
  Json record{{"seconds", step.step.count()},
              {"forward_seconds", step.forward.count()},
              {"backward_seconds", step.backward.count()},
              {"update_seconds", step.update.count()},
              {"tokens_per_second", static_cast<double>(forecast.tokens) / step.step.count()},
              {"device_share", forecast.update.share},
              {"not_timed", train::untimed_keys(forecast)},
              {"busy", Json::array()}};
  for (auto const& use : step.uses) {
    record["busy"].push_back(
        {{"resource", name_of(use.resource, forecast.paths)}, {"part", use.busy / step.step}});
  }
  return record;
}

Json memory_of(train::Forecast const& forecast) {
  auto rows = Json::array();
  for (train::MemoryRow const& row : forecast.rows) {
    rows.push_back(
        {{"what", row.what}, {"device", row.device}, {"host", row.host}, {"storage", row.storage}});
  }
  return rows;
}

Json paths_of(train::Forecast const& forecast) {
  auto paths = Json::array();
  for (train::PathForecast const& path : forecast.paths) {
    paths.push_back({{"path", path.directory},
                     {"bytes", path.weighed ? Json(path.bytes) : Json()},
                     {"written_bytes_per_step", path.written},
                     {"read_bytes_per_second", known(path.rate.read)},
                     {"write_bytes_per_second", known(path.rate.write)}});
  }
  return paths;
}

Json helps_of(train::Forecast const& forecast, bool fits, PlanOptions const& options,
              train::ForecastScope const& scope) {
  auto helps = Json::array();
  bool const timed = fits && train::has_times(forecast);
  if (fits && !timed) {
    return helps;
  }
  auto const before = timed ? std::optional{forecast.step.step} : std::nullopt;
  for (train::Help const& help :
       train::what_helps(options.config, scope, before, !options.config.plan.choose)) {
    helps.push_back(
        {{"change", help.words},
         {"step_seconds",
          train::has_times(help.forecast) ? Json(help.forecast.step.step.count()) : Json()}});
  }
  return helps;
}

}  // namespace

std::string plan_record(std::optional<train::Forecast> const& forecast, std::string const& problem,
                        PlanOptions const& options, train::ForecastScope const& scope) {
  auto const& config = options.config;
  auto const shortage = forecast ? train::shortage_of(*forecast, config.device.memory) : problem;
  bool const fits = shortage.empty();
  Json record{{"fits", fits}, {"problem", fits ? Json() : Json(shortage)}};
  record["ranks"] = options.ranks;
  if (forecast) {
    Bytes const checkpoint = config.optimizer.checkpoint_layout().bytes(forecast->parameters);
    record["nodes"] = forecast->nodes;
    record["parameters"] = forecast->parameters;
    record["tokens_per_step"] = forecast->tokens;
    record["host_memory_per_node"] = {{"planned", forecast->memory.node_total},
                                      {"limit", forecast->host_limit}};
    record["device_memory_per_rank"] = {{"planned", forecast->device.total()},
                                        {"limit", limit_of(config.device.memory)}};
    record["memory_per_rank"] = memory_of(*forecast);
    record["paths_per_node"] = paths_of(*forecast);
    record["checkpoint_bytes"] = checkpoint;
    record["step"] = step_of(*forecast);
    if (config.steps_are_given() && train::has_times(*forecast)) {
      record["run_seconds"] = forecast->step.step.count() * static_cast<double>(config.train.steps);
    }
    record["not_known"] = forecast->missing;
    record["chosen"] = forecast->chosen;
  }
  record["policies"] = Json::array();
  auto const rows = forecast_rows(options.policies, scope, forecast ? &*forecast : nullptr);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PolicyRow const& row = options.policies[i];
    RowForecast const& of_row = rows[i];
    bool const has_step = of_row.problem.empty() && train::has_times(of_row.forecast);
    record["policies"].push_back(
        {{"policy", row.name},
         {"same_bits", !forecast || !of_row.problem.empty() ||
                           train::have_same_bits(of_row.forecast, *forecast)},
         {"problem", of_row.problem.empty() ? Json() : Json(of_row.problem)},
         {"step_seconds", has_step ? Json(of_row.forecast.step.step.count()) : Json()}});
  }
  record["would_help"] = helps_of(forecast ? *forecast : train::Forecast{}, fits, options, scope);
  return train::json_line(record);
}

}  // namespace offstage::cli
