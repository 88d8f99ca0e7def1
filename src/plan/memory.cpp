#include "plan/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::plan {
namespace {

constexpr Bytes fp32_bytes = 4;
/// Buffers for one extent that is fetched, one updated and one flushed.
constexpr std::int64_t least_buffers = 3;
/// Least numbers of subgroups of a node on several paths, and of each rank, as far as subgroups do
/// not become too small. With fewer the paths do not end together, and are idle at both ends of an
/// update.
constexpr std::int64_t node_subgroups = 32;
constexpr std::int64_t rank_subgroups = 8;
constexpr std::int64_t least_split_elements = 2 << 20;
/// Subgroups for which one more buffer is worth that gradients spill for it.
constexpr std::int64_t subgroups_per_buffer = 32;
/// More paths than any node has. A product with it does not overflow.
constexpr std::int64_t most_paths = 1024;

/// The largest number, at which sums and products end. It fits into no limit, so that absurd
/// demands end in the same error as large ones.
constexpr Bytes largest = std::numeric_limits<Bytes>::max();
/// More bytes per element than any layout has.
constexpr Bytes most_state_bytes = 64;
Bytes times(Bytes a, Bytes b) {
  Bytes product{};
  return __builtin_mul_overflow(a, b, &product) ? largest : product;
}
Bytes plus(Bytes a, Bytes b) {
  Bytes sum{};
  return __builtin_add_overflow(a, b, &sum) ? largest : sum;
}

/// Number of pieces of a whole, also for values with which round_up and ceil_div would overflow.
std::int64_t pieces_of(std::int64_t whole, std::int64_t piece) {
  return whole / piece + (whole % piece != 0 ? 1 : 0);
}

void check(MemoryDemand const& demand) {
  require(demand.ranks_per_node > 0, "a node has ranks");
  require(demand.resident_elements >= 0 && demand.resident_elements <= demand.shard_elements,
          "what is resident is part of the shard");
  require(demand.shard_elements >= 0 && demand.paths >= 0 && demand.exchange_bytes >= 0 &&
              demand.activation_bytes >= 0 && demand.reserve_bytes >= 0 &&
              demand.host_memory >= 0 && demand.gradient_bytes_per_element > 0 &&
              demand.parameter_bytes_per_element >= 0 && demand.shared_parameters >= 0 &&
              demand.parameter_buffers >= 0,
          "memory demands are not negative");
  require(demand.activation_extents >= 0 && demand.activation_extent >= 0 &&
              (demand.activation_extents == 0 || demand.paths > 0),
          "activations wait on a storage path");
  require(!demand.flush_fp32 || demand.paths > 0, "gradients are flushed to a storage path");
  require(!demand.parameters_on_storage || demand.paths > 0,
          "parameters are kept on a storage path");
}

/// The division of one rank's memory, stage by stage.
class Division {
 public:
  explicit Division(MemoryDemand const& demand)
      : demand_{demand},
        waiting_{demand.shard_elements - demand.resident_elements},
        all_gradients_{times(demand.gradient_bytes_per_element, demand.shard_elements)} {
    std::int64_t const largest_part = std::max(waiting_, demand.resident_elements);
    std::int64_t const whole =
        times(std::max<std::int64_t>(1, pieces_of(largest_part, chunk_elements)), chunk_elements);
    set_subgroup(std::clamp(demand.subgroup_elements / chunk_elements * chunk_elements,
                            chunk_elements, whole / chunk_elements * chunk_elements));
  }

  MemoryPlan in_host_memory() {
    plan_.activations = demand_.activation_bytes;
    plan_.cached = plan_.subgroups;
    plan_.gradients_cached = gradient_extents();
    plan_.gradients = plus(all_gradients_, demand_.exchange_bytes);
    plan_.state = whole_state();
    plan_.parameters = least_parameters();
    if (whole() > per_rank()) {
      throw UsageError{
          fmt::format("tiers.host-memory={} is too small: the optimizer state needs {}{}{} and the "
                      "gradients {} on each node; {}",
                      limit_in_words(), on_node(plan_.state), parameters_in_words(),
                      activations_in_words(), on_node(plan_.gradients), remedies())};
    }
    return finished();
  }

  MemoryPlan over_storage() {
    if (demand_.subgroup_is_default && demand_.paths > 1) {
      divide_among_paths();
    }
    Bytes const wished = per_rank() - demand_.reserve_bytes;
    std::int64_t const unshrunk = plan_.subgroup_elements;
    shrink_subgroups(wished);
    if (demand_.subgroup_is_default && least() > wished) {  // the reserve has no room with any size
      set_subgroup(unshrunk);
      shrink_subgroups(per_rank());
    }
    left_ = least() > wished ? per_rank() : wished;
    if (least() > left_) {
      throw too_small();
    }
    left_ -= demand_.exchange_bytes + least_activations();
    left_ -= few() * extent() + least_parameters();
    Bytes const buffers = std::min(left_ - least_gradients(), more_buffers());
    left_ -= buffers;
    place_gradients();
    place_activations();
    left_ += buffers;
    place_parameters();
    place_state();
    return finished();
  }

 private:
  /// Halves the size of subgroups that is a default until the least memory fits into `limit`.
  void shrink_subgroups(Bytes limit) {
    while (demand_.subgroup_is_default && plan_.subgroup_elements > chunk_elements &&
           least() > limit) {
      set_subgroup(
          std::max(chunk_elements, plan_.subgroup_elements / 2 / chunk_elements * chunk_elements));
    }
  }

  void divide_among_paths() {
    std::int64_t const wanted =
        std::max(rank_subgroups, pieces_of(node_subgroups, demand_.ranks_per_node));
    std::int64_t const chunks = pieces_of(pieces_of(waiting_, wanted), chunk_elements);
    set_subgroup(
        std::min(plan_.subgroup_elements, std::max(least_split_elements, chunks * chunk_elements)));
  }

  void set_subgroup(std::int64_t elements) {
    plan_.subgroup_elements = elements;
    plan_.subgroups = pieces_of(waiting_, elements);
  }

  [[nodiscard]] Bytes per_rank() const { return demand_.host_memory / demand_.ranks_per_node; }
  [[nodiscard]] Bytes extent() const { return state_of(plan_.subgroup_elements); }
  [[nodiscard]] Bytes gradient_extent() const {
    return times(demand_.gradient_bytes_per_element, plan_.subgroup_elements);
  }
  [[nodiscard]] Bytes whole_state() const {
    return plus(times(waiting_ / plan_.subgroup_elements, extent()),
                state_of(waiting_ % plan_.subgroup_elements));
  }
  [[nodiscard]] Bytes state_of(std::int64_t elements) const {
    return elements > largest / most_state_bytes ? largest : demand_.state.bytes(elements);
  }
  [[nodiscard]] std::int64_t gradient_extents() const {
    return plan_.subgroups + pieces_of(demand_.resident_elements, plan_.subgroup_elements);
  }
  /// The number of buffers without which nothing overlaps; fewer if there are fewer subgroups.
  [[nodiscard]] std::int64_t few() const { return std::min(least_buffers, plan_.subgroups); }
  [[nodiscard]] std::int64_t few_gradients() const {
    return std::min(least_buffers, gradient_extents());
  }

  [[nodiscard]] Bytes least_gradients() const {
    if (demand_.flush_fp32) {
      return plus(all_gradients_, times(few_gradients() * fp32_bytes, plan_.subgroup_elements));
    }
    return std::min(all_gradients_, times(few_gradients(), gradient_extent()));
  }
  [[nodiscard]] Bytes parameter_extent() const {
    return times(demand_.parameter_bytes_per_element, plan_.subgroup_elements);
  }
  /// The least number of places for parameters. An extent takes one place; resident subgroups have
  /// extents too.
  [[nodiscard]] std::int64_t few_parameters() const { return few_gradients(); }
  [[nodiscard]] Bytes least_parameters() const {
    std::int64_t const elements = demand_.shared_parameters > 0
                                      ? pieces_of(demand_.shared_parameters, demand_.ranks_per_node)
                                      : demand_.shard_elements;
    Bytes const all = times(demand_.parameter_bytes_per_element, elements);
    return demand_.parameters_on_storage
               ? std::min(all, times(few_parameters(), parameter_extent()))
               : all;
  }
  /// The least memory of a rank.
  [[nodiscard]] Bytes least() const {
    return plus(
        plus(plus(plus(demand_.exchange_bytes, least_activations()), times(few(), extent())),
             least_gradients()),
        least_parameters());
  }

  /// Buffers for one extent that leaves and one that comes.
  [[nodiscard]] std::int64_t few_activations() const {
    return std::min<std::int64_t>(2, demand_.activation_extents);
  }
  [[nodiscard]] Bytes least_activations() const {
    return plus(demand_.activation_bytes, times(few_activations(), demand_.activation_extent));
  }

  void place_gradients() {
    Bytes taken = all_gradients_;
    plan_.gradients_cached = gradient_extents();
    if (demand_.flush_fp32) {
      plan_.gradient_buffers = static_cast<int>(few_gradients());
      taken = least_gradients();
    } else if (all_gradients_ > left_) {
      plan_.gradient_buffers = static_cast<int>(few_gradients());
      plan_.gradients_cached = left_ / gradient_extent() - few_gradients();
      taken = (plan_.gradient_buffers + plan_.gradients_cached) * gradient_extent();
    }
    left_ -= taken;
    plan_.gradients = demand_.exchange_bytes + taken;
  }

  void place_activations() {
    std::int64_t const all = demand_.activation_extents;
    plan_.activations = least_activations();
    if (all == 0) {
      return;
    }
    Bytes const extent_bytes = std::max<Bytes>(1, demand_.activation_extent);
    std::int64_t const places = std::min(all, few_activations() + left_ / extent_bytes);
    std::int64_t const wished = std::max<std::int64_t>(2, demand_.activation_buffers);
    plan_.activation_buffers = static_cast<int>(std::clamp<std::int64_t>(places, 2, wished));
    plan_.activations_cached =
        places == all ? all : std::max<std::int64_t>(0, places - plan_.activation_buffers);
    plan_.activations = demand_.activation_bytes + times(places, demand_.activation_extent);
    left_ -= plan_.activations - least_activations();
  }

  /// Memory for buffers beyond the least, with which a node's ranks keep its paths busy: one extent
  /// is fetched and one flushed on each, and one is updated. It comes before that of gradients and
  /// activations: a path that waits for a buffer costs more than their spill, as long as that is a
  /// small part of all that moves.
  [[nodiscard]] Bytes more_buffers() const {
    std::int64_t const busy = 1 + 2 * std::min(demand_.paths, most_paths);
    std::int64_t const wished = pieces_of(busy, demand_.ranks_per_node) - few();
    return times(std::clamp<std::int64_t>(wished, 0, plan_.subgroups / subgroups_per_buffer),
                 extent());
  }

  void place_parameters() {
    plan_.parameters = least_parameters();
    if (!demand_.parameters_on_storage || demand_.parameter_bytes_per_element == 0) {
      return;
    }
    std::int64_t const wished =
        std::min<std::int64_t>(demand_.parameter_buffers, gradient_extents()) - few_parameters();
    std::int64_t const more =
        std::clamp<std::int64_t>(left_ / parameter_extent(), 0, std::max<std::int64_t>(0, wished));
    plan_.parameter_buffers = static_cast<int>(few_parameters() + more);
    plan_.parameters = std::min(times(demand_.parameter_bytes_per_element, demand_.shard_elements),
                                times(plan_.parameter_buffers, parameter_extent()));
    left_ -= plan_.parameters - least_parameters();
  }

  void place_state() {
    std::int64_t const extents = few() + left_ / extent();
    std::int64_t const in_flight = 2 + 2 * std::min(demand_.paths, most_paths);
    std::int64_t const buffers = std::min({std::max(few(), in_flight), extents, plan_.subgroups});
    Bytes const cache =
        demand_.most_cache < 0 ? largest : demand_.most_cache / demand_.ranks_per_node;
    std::int64_t const most_cached =
        cache >= whole_state() ? plan_.subgroups : std::min(plan_.subgroups, cache / extent());
    // An extent takes one place, in the cache or in a buffer. If there is a place for each, all
    // stay.
    bool const all_stay = extents >= plan_.subgroups && most_cached == plan_.subgroups;
    plan_.buffers = static_cast<int>(buffers);
    plan_.cached = all_stay ? plan_.subgroups : std::min(extents - buffers, most_cached);
    plan_.state = std::min(whole_state(), times(plan_.buffers + plan_.cached, extent()));
  }

  [[nodiscard]] MemoryPlan finished() {
    if (demand_.spares && plan_.cached == plan_.subgroups && plan_.subgroups > 0) {
      // With second versions every place is as large as the largest extent.
      Bytes const left = per_rank() - demand_.reserve_bytes - plan_.gradients - plan_.parameters -
                         plan_.activations;
      plan_.spares =
          std::clamp<std::int64_t>(left / extent() - plan_.subgroups, 0, plan_.subgroups);
      if (plan_.spares > 0) {
        plan_.state = (plan_.subgroups + plan_.spares) * extent();
      }
    }
    plan_.node_total = (plan_.gradients + plan_.state + plan_.parameters + plan_.activations) *
                       demand_.ranks_per_node;
    return plan_;
  }

  [[nodiscard]] std::string on_node(Bytes bytes) const {
    return format_bytes(times(bytes, demand_.ranks_per_node));
  }

  [[nodiscard]] std::string parameters_in_words() const {
    return demand_.parameter_bytes_per_element == 0
               ? ""
               : fmt::format(", the parameters {} (parameters.home={})",
                             on_node(least_parameters()),
                             demand_.parameters_on_storage   ? "storage"
                             : demand_.shared_parameters > 0 ? "node"
                                                             : "host");
  }

  [[nodiscard]] std::string activations_in_words() const {
    return least_activations() == 0
               ? ""
               : fmt::format(", activations {} (train.activations)", on_node(least_activations()));
  }

  [[nodiscard]] std::string limit_in_words() const {
    return format_bytes(demand_.host_memory) + (demand_.host_memory_is_found
                                                    ? " (90 % of what the machine or a limit of "
                                                      "the job leaves free, as it is not given)"
                                                    : "");
  }

  [[nodiscard]] UsageError too_small() const {
    return UsageError{fmt::format(
        "tiers.host-memory={} is too small: on each node {} buffers of update.subgroup-size={} "
        "parameters need {}{}{}, gradients {} at least and their exchange {}; {}",
        limit_in_words(), few(), plan_.subgroup_elements, on_node(times(few(), extent())),
        parameters_in_words(), activations_in_words(), on_node(least_gradients()),
        on_node(demand_.exchange_bytes), remedies())};
  }

  /// Memory of a rank whose state stays in host memory.
  [[nodiscard]] Bytes whole() const {
    return plus(
        plus(plus(plus(all_gradients_, demand_.exchange_bytes), whole_state()), least_parameters()),
        demand_.activation_bytes);
  }

  /// Returns whether a demand fits into the least memory.
  [[nodiscard]] static bool fits(MemoryDemand const& demand) {
    Division division{demand};
    if (demand.paths > 0 && demand.subgroup_is_default) {
      division.set_subgroup(chunk_elements);
    }
    return (demand.paths == 0 ? division.whole() : division.least()) <= division.per_rank();
  }

  /// The keys that make the run fit, in words: each alone, or else all together, or else none.
  [[nodiscard]] std::string remedies() const {
    struct Remedy {
      char const* words;
      bool applies;
      void (*apply)(MemoryDemand&);
    };
    std::array const all{
        Remedy{"set tiers.path to a directory on local storage", demand_.paths == 0,
               [](MemoryDemand& demand) { demand.paths = 1; }},
        Remedy{"lower update.subgroup-size", !demand_.subgroup_is_default,
               [](MemoryDemand& demand) { demand.subgroup_elements = chunk_elements; }},
        Remedy{"set update.gradients=delayed, which lets gradients spill", demand_.flush_fp32,
               [](MemoryDemand& demand) { demand.flush_fp32 = false; }},
        Remedy{"set train.activations=recompute", least_activations() > 0,
               [](MemoryDemand& demand) {
                 demand.activation_bytes = demand.activation_extent = 0;
                 demand.activation_extents = 0;
               }},
        Remedy{"set parameters.home=storage",
               demand_.parameter_bytes_per_element > 0 && !demand_.parameters_on_storage,
               [](MemoryDemand& demand) { demand.parameters_on_storage = true; }}};
    std::string const begin =
        demand_.host_memory_is_found ? "give the job more memory" : "raise it";
    std::string alone = begin;
    std::string together = alone;
    char const* joint = ", or ";
    MemoryDemand with_all = demand_;
    for (Remedy const& remedy : all) {
      if (!remedy.applies) {
        continue;
      }
      MemoryDemand with = demand_;
      remedy.apply(with);
      remedy.apply(with_all);
      bool const is_legal = with.paths > 0 || !with.parameters_on_storage;
      alone += is_legal && fits(with) ? fmt::format(", or {}", remedy.words) : "";
      together += std::exchange(joint, " and ") + std::string{remedy.words};
    }
    bool const any_alone = alone.size() > begin.size();
    return any_alone || !fits(with_all) ? alone : together;
  }

  MemoryDemand const& demand_;
  std::int64_t waiting_;  ///< elements whose state is not resident on the device
  Bytes all_gradients_;
  MemoryPlan plan_;
  Bytes left_{};
};

}  // namespace

MemoryPlan plan_memory(MemoryDemand const& demand) {
  check(demand);
  Division division{demand};
  return demand.paths == 0 ? division.in_host_memory() : division.over_storage();
}

}  // namespace offstage::plan
