#include "train/forecast/run_forecast.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "base/dtype.hpp"
#include "base/rate.hpp"
#include "train/forecast/step_forecast.hpp"

namespace offstage::train {
namespace {

/// Returns whether extents of any kind wait on storage.
bool uses_storage(plan::Workload const& work, plan::Schedule const& schedule) {
  auto const waiting = std::ranges::count(work.subgroups, false, &plan::SubgroupWork::resident);
  return (schedule.buffers > 0 && schedule.cached < waiting) || schedule.gradient_buffers > 0 ||
         schedule.flush_fp32 || schedule.home == plan::ParameterHome::storage ||
         schedule.activations_on_storage;
}

bool is_known(config::RunConfig const& config, std::vector<plan::PathRate> const& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].known() && plan::takes_extents(config.storage.split, i)) {
      return false;
    }
  }
  return true;
}

void fill_in(plan::Machine& machine, plan::Workload const& work, StepFacts const& facts,
             ReachedRates const& reached) {
  auto& rates = machine.rates;
  if (machine.compute <= 0.0) {
    double forward = 0.0, backward = 0.0;
    for (plan::LayerWork const& layer : work.layers) {
      forward += layer.forward * static_cast<double>(work.rounds);
      backward += (layer.backward + layer.recompute) * static_cast<double>(work.rounds);
    }
    auto const rate = [](double flops, Seconds time) {
      return time > Seconds{} ? flops / time.count() : 0.0;
    };
    machine.compute = std::max(rate(forward, reached.forward), rate(backward, reached.backward));
  }
  rates.cpu_update = first_known(rates.cpu_update, reached.update.cpu_update);
  rates.device_update = first_known(rates.device_update, reached.update.device_update);
  if (!facts.room.host_visible()) {
    rates.host_to_device = first_known(rates.host_to_device, reached.update.host_to_device);
    rates.device_to_host = first_known(rates.device_to_host, reached.update.device_to_host);
  }
  for (std::size_t i = 0; i < std::min(rates.paths.size(), reached.paths.size()); ++i) {
    plan::PathRate& path = rates.paths[i];
    path.read = first_known(path.read, reached.paths[i].read / facts.room.ranks_per_node);
    path.write = first_known(path.write, reached.paths[i].write / facts.room.ranks_per_node);
  }
}

/// Resources that the step needs and whose rates are missing.
std::vector<std::string> unknown(config::RunConfig const& config, plan::Machine const& machine,
                                 plan::Workload const& work, plan::Schedule const& schedule,
                                 StepFacts const& facts) {
  std::vector<std::string> missing;
  auto const need = [&](bool is_used, double rate, std::string_view name) {
    if (is_used && rate <= 0.0) {
      missing.emplace_back(name);
    }
  };
  bool const waits = std::ranges::any_of(
      work.subgroups, [](plan::SubgroupWork const& each) { return !each.resident; });
  bool const resident = std::ranges::any_of(work.subgroups, &plan::SubgroupWork::resident);
  using Kind = plan::Resource::Kind;
  bool const link = !facts.room.host_visible();
  need(true, machine.compute, "products");
  need(waits && schedule.share < 1.0, machine.rates.cpu_update, words_of(Kind::cpu_update));
  need(resident || schedule.share > 0.0, machine.rates.device_update,
       words_of(Kind::device_update));
  need(link, machine.rates.host_to_device, words_of(Kind::to_device));
  need(link, machine.rates.device_to_host, words_of(Kind::to_host));
  need(uses_storage(work, schedule), is_known(config, machine.rates.paths) ? 1.0 : 0.0,
       "storage paths");
  return missing;
}

}  // namespace

std::optional<RunForecast> foresee_run(config::RunConfig const& config, StepFacts const& facts,
                                       ReachedRates const* reached,
                                       std::vector<plan::SimulatedEvent>* events) {
  auto machine = machine_of(config, facts);
  auto const work = workload_of(config, facts);
  auto const schedule = schedule_of(config, facts);
  RunForecast forecast;
  forecast.unknown = unknown(config, machine, work, schedule, facts);
  if (!forecast.unknown.empty()) {
    if (reached == nullptr) {
      return std::nullopt;
    }
    forecast.given = false;
    fill_in(machine, work, facts, *reached);
    forecast.unknown = unknown(config, machine, work, schedule, facts);
  }
  if (!is_known(config, machine.rates.paths)) {
    if (uses_storage(work, schedule)) {
      return std::nullopt;
    }
    machine.rates.paths.clear();
  }
  for (plan::PathRate const& path : machine.rates.paths) {
    forecast.paths.push_back({path.read * facts.room.ranks_per_node,
                              path.write * facts.room.ranks_per_node, path.full_duplex});
  }
  forecast.machine = machine;
  auto as_reached = config;
  if (reached != nullptr && reached->steps > 0) {
    as_reached.plan.clip_rate =
        static_cast<double>(reached->clipped) / static_cast<double>(reached->steps);
  }
  forecast.step = foresee_step(as_reached, facts, {.machine = &machine, .events = events});
  return forecast;
}

void draw(std::vector<plan::SimulatedEvent> const& events, trace::Trace& trace) {
  auto const at = [](double seconds) {
    return trace::Clock::time_point{
        std::chrono::duration_cast<trace::Clock::duration>(Seconds{seconds})};
  };
  for (plan::SimulatedEvent const& event : events) {
    trace.span(event.row, event.name, at(event.begin), at(event.end), event.key,
               static_cast<Bytes>(event.bytes));
  }
}

}  // namespace offstage::train
