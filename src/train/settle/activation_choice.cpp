#include "train/settle/activation_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ranges>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "config/known_rates.hpp"
#include "model/dims.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_demand.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {
namespace {

using activations::Policy;
using Rule = Policy::Rule;

/// The facts by which a policy is chosen, and the choice.
class Chooser {
 public:
  Chooser(config::RunConfig const& config, state::ShardMap const& map, Room const& room)
      : config_{config}, map_{map}, room_{room}, dims_{run_dims(config)} {
    if (config.train.activations.rule == Rule::automatic) {
      needs_buffer_ = fits({Rule::recompute}) || fits(swap(0.0));
    }
  }

  /// The policy that swaps this share. With paths, activations for which host memory has no room
  /// may go to storage. If it has room for all, no byte goes there and no time is lost.
  [[nodiscard]] Policy swap(double share) const {
    return {Rule::swap, share, !config_.paths.empty()};
  }
  [[nodiscard]] Bytes device_bytes(Policy const& policy) const {
    return demand(with(policy), room_).total();
  }
  /// The policy that keeps most on the device and leaves to everything else there the memory that
  /// it has with `recompute`, or all that it wants; `recompute` if there is none left.
  [[nodiscard]] Policy most_kept() const;
  /// Returns whether the policy fits on the device beside attention's buffer.
  [[nodiscard]] bool fits_device(Policy const& policy) const {
    return room_.device_memory == 0 || suffices(demand(with(policy), room_));
  }
  [[nodiscard]] bool fits_host(Policy const& policy) const;
  /// Returns whether the policy fits on the device, and in host memory if activations go there.
  [[nodiscard]] bool fits(Policy const& policy) const {
    return fits_device(policy) && (policy.rule != Rule::swap || fits_host(policy));
  }
  [[nodiscard]] plan::SwapCompany company() const;
  /// Returns whether anything goes to storage under forward or backward, if as much leaves as can.
  [[nodiscard]] bool uses_storage(plan::SwapCompany const& company) const;
  [[nodiscard]] ActivationChoice choose(ActivationRates const& rates) const;

 private:
  [[nodiscard]] DeviceDemand demand(config::RunConfig const& config, Room const& room) const;
  [[nodiscard]] bool suffices(DeviceDemand const& needed) const {
    return needed.total() <= room_.device_memory &&
           !(needs_buffer_ && needed.lacks_attention_buffer);
  }
  [[nodiscard]] config::RunConfig with(Policy const& policy) const {
    config::RunConfig config = config_;
    config.train.activations = policy;
    return config;
  }
  /// The memory plan with this policy. Errors: UsageError: host memory is too small.
  [[nodiscard]] plan::MemoryPlan host_plan(Policy const& policy) const {
    return train::host_plan(with(policy), map_, room_);
  }
  [[nodiscard]] Bytes leaving(Policy const& policy) const {
    auto config = with(policy);
    config.train.activations.storage = false;
    return activation_bytes(config);
  }
  void add_room(plan::SwapCompany& company) const;
  void add_update(plan::SwapCompany& company, plan::MemoryPlan const& plan) const;

  config::RunConfig const& config_;
  state::ShardMap const& map_;
  Room const& room_;
  model::Dims dims_;
  /// A policy fits beside attention's buffer alone. Not so if even the most frugal ones, of those
  /// that there is a choice of, have no room beside it.
  bool needs_buffer_ = true;
};

DeviceDemand Chooser::demand(config::RunConfig const& config, Room const& room) const {
  return device_demand(config, map_, state::fullest_rank, room, config.subgroup_size);
}

Policy Chooser::most_kept() const {
  auto config = with({Rule::recompute});
  settle_sharding(config, map_, room_);  // layers that stay whole come first
  Room ample = room_;
  ample.device_memory = std::numeric_limits<Bytes>::max();
  auto const of = [](int percents) { return Policy{Rule::part, percents / 100.0}; };
  auto const beside = [](DeviceDemand const& each) { return each.total() - each.model; };
  Bytes const least = beside(demand(config, room_));
  auto const has_room = [&](int percents) {
    config.train.activations = of(percents);
    auto const needed = demand(config, room_);
    // Backward gathers fewer layers at a time where every `mid` stays.
    Bytes const wanted = std::min(least, beside(demand(config, ample)));
    return suffices(needed) && beside(needed) >= wanted;
  };
  auto const shares = std::views::iota(1, 101);
  auto const end = std::ranges::partition_point(shares, has_room);
  return end == shares.begin() ? Policy{Rule::recompute} : of(*end - 1);
}

bool Chooser::fits_host(Policy const& policy) const {
  if (room_.host_memory == 0) {
    return true;
  }
  try {
    static_cast<void>(host_plan(policy));
    return true;
  } catch (UsageError const&) {
    return false;
  }
}

plan::SwapCompany Chooser::company() const {
  plan::SwapCompany company;
  for (state::LayerLayout const& layer : map_.layers()) {
    company.gradients += layer.padded_elements() * config_.numerics.element_bytes();
  }
  bool const streamed = config_.parameter_home != parameters::Home::device;
  company.parameters = streamed ? company.gradients : 0;
  if (config_.parameter_home == parameters::Home::storage) {
    company.stored_read =
        map_.shard_elements(state::fullest_rank) * config_.numerics.element_bytes();
  }
  if (room_.host_memory > 0) {
    add_room(company);
  }
  return company;
}

/// Adds the room in host memory. If it is too small for the run itself, another place reports that.
void Chooser::add_room(plan::SwapCompany& company) const {
  company.host_room = 0;
  try {
    if (config_.paths.empty()) {
      auto const plan = host_plan({Rule::keep});
      company.host_room = (room_.host_memory - plan.node_total) / room_.ranks_per_node;
      return;
    }
    auto const plan = host_plan(swap(1.0));
    company.host_room = leaving(swap(1.0)) - stored_activations(with(swap(1.0)), plan);
    if (company.host_room >= leaving(swap(1.0))) {
      company.host_room = std::numeric_limits<Bytes>::max();  // the last blocks stay on the device
    }
    if (config_.overlap != config::Switch::off) {
      add_update(company, plan);
    }
  } catch (UsageError const&) {
  }
}

/// Adds the update's traffic. An update has the time of one step, so each micro-batch of the step
/// gets a part.
void Chooser::add_update(plan::SwapCompany& company, plan::MemoryPlan const& plan) const {
  auto const rounds = dealt(config_, map_.ranks()).count();
  auto const shape =
      update_shape(config_, map_, state::fullest_rank, plan.subgroup_elements, room_.route);
  auto const traffic = storage_traffic(config_, shape, plan);
  company.update_read = traffic.read / rounds;
  company.update_written = traffic.written / rounds;
  double const rate = config::known_rates(config_).cpu_update;
  if (rate > 0.0) {
    double const on_cores =
        (1.0 - config_.share.device_resident) * (1.0 - config_.share.device_share.value_or(0.0));
    company.update = Seconds{static_cast<double>(shape.elements) * on_cores / rate /
                             static_cast<double>(rounds)};
  }
}

bool Chooser::uses_storage(plan::SwapCompany const& company) const {
  return !config_.paths.empty() &&
         (company.stored_read + company.update_read + company.update_written > 0 ||
          company.host_room < leaving(swap(1.0)));
}

ActivationChoice Chooser::choose(ActivationRates const& rates) const {
  auto const beside = company();
  bool const recomputes = fits({Rule::recompute});
  bool const known =
      rates.rates.known() && (!uses_storage(beside) || rates.rates.storage.read > 0.0);
  bool const may_keep = recomputes && config_.train.together == 0;
  Policy const kept = may_keep ? most_kept() : Policy{Rule::recompute};
  if (config_.train.together > 0 || !known) {
    return {recomputes ? kept : swap(0.0)};
  }
  auto const blocks = static_cast<int>(config_.model.layers);
  int const slabs = run_shape(config_).slabs;
  // A part that leaves has one more copy on the device than one that is computed again.
  int parts = activations::product_parts;
  while (parts > 0 && !fits_device(swap(share_of_parts(config_, parts)))) {
    --parts;
  }
  auto const paper = with_type(config_.numerics.dtype, [&]<class T>(T) {
    return activations::paper_choice<T>(rates.rates, beside, dims_,
                                        {.all = blocks, .staying = slabs}, parts);
  });
  // Parts that are only computed again have one copy on the device.
  auto const again = with_type(config_.numerics.dtype, [&]<class T>(T) {
    return activations::recompute_seconds<T>(rates.rates, beside, dims_,
                                             {.all = blocks, .staying = 1}, kept);
  });
  bool const swaps = fits(swap(paper.share));
  ActivationChoice choice{swaps ? swap(paper.share) : swap(0.0)};
  if (recomputes && (!swaps || again <= paper.seconds)) {
    choice.policy = kept;
  }
  choice.why = fmt::format(
      "keep would take {} of {}; a micro-batch {:.3g} s with {:.0f}% swapped{}, {:.3g} s with "
      "{} computed again{}; {}",
      format_bytes(device_bytes({Rule::keep})), format_bytes(room_.device_memory),
      paper.seconds.count(), 100 * paper.share, swaps ? "" : " (no room)", again.count(),
      kept.rule == Rule::part ? fmt::format("{:.0f}% kept and the rest", 100 * kept.share) : "all",
      recomputes ? "" : " (no room)", describe(rates));
  return choice;
}

}  // namespace

bool has_room(config::RunConfig const& config, state::ShardMap const& map, Room const& room) {
  Chooser const chooser{config, map, room};
  auto const& policy = config.train.activations;
  return chooser.fits_device(policy) && chooser.fits_host(policy);
}

WantedRates wanted_rates(config::RunConfig const& config, state::ShardMap const& map,
                         Room const& room, ActivationRates const& given) {
  if (config.train.activations.rule != Rule::automatic) {
    return {};
  }
  Chooser const chooser{config, map, room};
  if (chooser.fits({Rule::keep})) {
    return {};
  }
  auto const& rates = given.rates;
  return {.compute = rates.compute <= 0.0,
          .link = rates.host_to_device <= 0.0 || rates.device_to_host <= 0.0,
          .storage = rates.storage.read <= 0.0 && chooser.uses_storage(chooser.company())};
}

ActivationChoice settle_activations(config::RunConfig const& config, state::ShardMap const& map,
                                    Room const& room, ActivationRates const& rates) {
  if (config.train.activations.rule != Rule::automatic) {
    return {config.train.activations};
  }
  Chooser const chooser{config, map, room};
  bool const keeps = config.train.together == 0 && chooser.fits({Rule::keep});
  return keeps ? ActivationChoice{{Rule::keep}} : chooser.choose(rates);
}

}  // namespace offstage::train
