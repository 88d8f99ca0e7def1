#include "plan/swapping.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::plan {

SwapTimes swap_times(SwapDemand const& demand, Bytes swapped, double recomputed) {
  require(demand.compute > 0.0 && demand.host_to_device > 0.0 && demand.device_to_host > 0.0,
          "swap_times: rates are above 0");
  auto const seconds = [](double amount, double rate) { return Seconds{amount / rate}; };
  auto const activations = static_cast<double>(demand.always + swapped);
  auto const parameters = static_cast<double>(demand.parameters);
  return {.forward = std::max({seconds(demand.forward_flops, demand.compute),
                               seconds(parameters, demand.host_to_device),
                               seconds(activations, demand.device_to_host)}),
          .backward =
              std::max({seconds(2 * demand.forward_flops + recomputed, demand.compute),
                        seconds(parameters + activations, demand.host_to_device),
                        seconds(static_cast<double>(demand.gradients), demand.device_to_host)})};
}

std::size_t best_swap(SwapDemand const& demand, std::span<SwapItem const> items) {
  double recomputed = 0.0;
  for (SwapItem const& item : items) {
    recomputed += item.flops;
  }
  Bytes swapped = 0;
  std::size_t best = 0;
  Seconds least = swap_times(demand, swapped, recomputed).total();
  for (std::size_t count = 1; count <= items.size(); ++count) {
    swapped += items[count - 1].bytes;
    recomputed = std::max(0.0, recomputed - items[count - 1].flops);
    if (auto const now = swap_times(demand, swapped, recomputed).total(); now < least) {
      least = now;
      best = count;
    }
  }
  return best;
}

}  // namespace offstage::plan
