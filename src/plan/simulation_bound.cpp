#include "plan/simulation.hpp"

#include <algorithm>
#include <cmath>

#include "base/units.hpp"
#include "plan/split.hpp"

namespace offstage::plan {
namespace {

/// The least work of each resource in a step.
class Least {
 public:
  Least(Machine const& machine, Workload const& work, Schedule const& schedule)
      : machine_{machine}, work_{work}, schedule_{schedule} {
    for (SubgroupWork const& each : work.subgroups) {
      auto const elements = static_cast<double>(each.elements);
      (each.resident ? resident_ : waiting_) += elements;
      largest_ = std::max(largest_, elements);
    }
    for (LayerWork const& layer : work.layers) {
      flops_ += layer.forward + layer.recompute + layer.backward;
      leaving_ += static_cast<double>(layer.leaving);
      largest_leaving_ = std::max(largest_leaving_, static_cast<double>(layer.leaving));
    }
  }

  [[nodiscard]] Bound longest() const {
    Bound longest;
    using Kind = Resource::Kind;
    auto const take = [&](Kind kind, double seconds) {
      if (seconds > longest.step.count()) {
        longest = {Seconds{seconds}, {kind}};
      }
    };
    UpdateRates const& rates = machine_.rates;
    take(Kind::device, over(rounds() * flops_, machine_.compute));
    take(Kind::cpu_update, over(cores(), rates.cpu_update));
    take(Kind::device_update, over(on_device() + resident_, rates.device_update));
    take(Kind::to_device,
         over(to_device(), std::max(rates.host_to_device, rates.host_to_device_both)));
    take(Kind::to_host, over(to_host(), std::max(rates.device_to_host, rates.device_to_host_both)));
    take(Kind::sums, over(summed(), machine_.host_sum));
    take(Kind::rank_link, over(from_ranks(), machine_.rank_link));
    if (!rates.paths.empty() && schedule_.split.rule == SplitRule::automatic) {
      take(Kind::storage,
           bandwidth_bound(static_cast<Bytes>(read()), static_cast<Bytes>(written()), rates.paths)
               .count());
    }
    return longest;
  }

 private:
  [[nodiscard]] static double over(double amount, double rate) {
    return rate > 0.0 ? amount / rate : 0.0;
  }
  [[nodiscard]] static double rest(double all, double less) { return std::max(0.0, all - less); }
  [[nodiscard]] double rounds() const { return static_cast<double>(work_.rounds); }
  /// Elements that the cores and the device update at least. Trips are whole subgroups.
  [[nodiscard]] double cores() const { return rest((1.0 - schedule_.share) * waiting_, largest_); }
  [[nodiscard]] double on_device() const { return rest(schedule_.share * waiting_, largest_); }

  /// Elements of the rank's part of parameters that are brought in a step. A layer that is in a
  /// slot already is not brought.
  [[nodiscard]] double brought() const {
    bool const slots = schedule_.layer_slots > 0 || work_.ranks > 1;
    if (!slots) {
      return 0.0;
    }
    double all = 0.0, largest = 0.0;
    for (LayerWork const& layer : work_.layers) {
      all += static_cast<double>(layer.count);
      largest = std::max(largest, static_cast<double>(layer.count));
    }
    double const passes = 2.0 * (work_.vertical ? 1.0 : rounds());
    return passes * rest(all, kept() * largest);
  }
  /// Number of layers that may be in a slot already when they are used.
  [[nodiscard]] int kept() const {
    return std::max(2, schedule_.layer_slots) + (schedule_.large_layers.empty() ? 0 : 1) + 1;
  }
  /// Bytes that come from other ranks: parameters of layers, and this rank's part of gradients.
  [[nodiscard]] double from_ranks() const {
    if (work_.ranks == 1) {
      return 0.0;
    }
    double own = 0.0;
    for (LayerWork const& layer : work_.layers) {
      own += static_cast<double>(layer.count);
    }
    std::int64_t const others = work_.ranks - 1;
    auto const gradients =
        own * static_cast<double>((work_.exchanges() - 1) * others + std::min(last(), others));
    return gathered() * static_cast<double>(work_.working_bytes) +
           gradients * static_cast<double>(work_.exchanged_bytes());
  }
  /// Ranks that have a gradient in the last round.
  [[nodiscard]] std::int64_t last() const {
    std::int64_t const left = work_.micro_batches - (work_.rounds - 1) * work_.ranks;
    return work_.row > 1 ? 1 : std::clamp<std::int64_t>(left, 1, work_.ranks);
  }
  /// Bytes that the cores read and write to add gradients.
  [[nodiscard]] double summed() const {
    auto const each = static_cast<double>(work_.exchanged_bytes() + 2 * work_.gradient_bytes) *
                      static_cast<double>((work_.exchanges() - 1) * work_.ranks + last());
    return each * not_held();
  }
  /// Elements of which no sums are on the device. Of a vertical schedule all may have been.
  [[nodiscard]] double not_held() const {
    bool const in_turn = !schedule_.sum_blocks.empty() && schedule_.held > 0;
    return in_turn ? 0.0 : rest(waiting_ + resident_, static_cast<double>(schedule_.held));
  }
  /// Elements of layers that come from other ranks.
  [[nodiscard]] double gathered() const {
    bool const on_node = schedule_.home == ParameterHome::node;
    double all = 0.0, largest = 0.0;
    auto const from_others = [&](LayerWork const& layer) {
      return static_cast<double>(on_node ? layer.count * (work_.nodes - 1)
                                         : layer.elements - layer.count);
    };
    for (LayerWork const& layer : work_.layers) {
      all += from_others(layer);
      largest = std::max(largest, from_others(layer));
    }
    double const times = work_.vertical ? 1.0 : rounds();
    if (on_node || schedule_.gathers_once) {
      return all;
    }
    if (schedule_.home != ParameterHome::device) {
      return 2.0 * times * rest(all, kept() * largest);
    }
    double uses = 0.0;
    for (auto const* const order : {&work_.forward, &work_.backward}) {
      for (int const layer : *order) {
        uses += from_others(work_.layers[static_cast<std::size_t>(layer)]);
      }
    }
    return times * uses;
  }
  [[nodiscard]] double to_device() const {
    auto const parameter = static_cast<double>(work_.working_bytes);
    bool const streamed = schedule_.home != ParameterHome::device;
    double const halves = streamed && work_.splits_parameters ? parameter : 0.0;
    return (streamed ? parameter * brought() : 0.0) + on_device() * (work_.state_bytes + halves) +
           (schedule_.stages ? parameter * cores() : 0.0) +
           (work_.vertical ? 0.0 : rounds() * leaving_);
  }
  [[nodiscard]] double to_host() const {
    auto const gradient = static_cast<double>(work_.exchanged_bytes());
    double const leaves = not_held() * gradient * static_cast<double>(work_.exchanges());
    double tensors = rounds() * leaving_;
    if (work_.vertical) {
      // An input leaves once, a gradient before each layer.
      auto const layers = static_cast<double>(work_.blocks() + 1);
      auto const staying = static_cast<double>(work_.vertical->staying);
      double const gradients = std::min(rounds(), staying);
      double const stay = gradients * layers + staying - gradients;
      tensors = (2.0 * rounds() * layers - stay) * work_.vertical->tensor;
    }
    return leaves + tensors + on_device() * work_.state_bytes;
  }

  [[nodiscard]] double stored_state() const {
    bool const any = schedule_.buffers > 0;
    return any ? work_.state_bytes *
                     rest(waiting_, static_cast<double>(schedule_.cached) * largest_)
               : 0.0;
  }
  [[nodiscard]] double spilled() const {
    if (schedule_.gradient_buffers == 0) {
      return 0.0;
    }
    double const stays = static_cast<double>(schedule_.gradients_cached) * largest_ +
                         static_cast<double>(schedule_.held);
    return static_cast<double>(work_.bytes_of_extents()) * rest(waiting_ + resident_, stays) *
           (work_.vertical ? 1.0 : static_cast<double>(work_.exchanges()));
  }
  /// Bytes of activations that go to storage and come back. Those that find a place in host memory,
  /// or come back while they are in a buffer, do neither. Of a vertical schedule inputs of blocks
  /// count.
  [[nodiscard]] double stored_activations() const {
    if (!schedule_.activations_on_storage) {
      return 0.0;
    }
    auto const stay = static_cast<double>(
        schedule_.activations_cached + schedule_.activation_writers + schedule_.activation_readers);
    if (work_.vertical) {
      double const inputs = rounds() * static_cast<double>(work_.blocks() + 1);
      return work_.vertical->tensor *
             rest(inputs, stay + static_cast<double>(work_.vertical->slabs));
    }
    return rounds() * rest(leaving_, stay * largest_leaving_);
  }
  [[nodiscard]] double read() const {
    bool const stored = schedule_.home == ParameterHome::storage;
    return stored_state() + spilled() + stored_activations() +
           (stored ? static_cast<double>(work_.working_bytes) * brought() : 0.0);
  }
  [[nodiscard]] double written() const {
    bool const stored = schedule_.home == ParameterHome::storage;
    return stored_state() + spilled() + stored_activations() +
           (stored ? static_cast<double>(work_.working_bytes) * (waiting_ + resident_) : 0.0);
  }

  Machine const& machine_;
  Workload const& work_;
  Schedule const& schedule_;
  double waiting_ = 0.0, resident_ = 0.0, largest_ = 0.0;  ///< elements
  double flops_ = 0.0, leaving_ = 0.0;                     ///< of one round
  double largest_leaving_ = 0.0;                           ///< bytes of a layer
};

}  // namespace

Bound least_time(Machine const& machine, Workload const& workload, Schedule const& schedule) {
  return Least{machine, workload, schedule}.longest();
}

}  // namespace offstage::plan
