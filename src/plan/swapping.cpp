#include "plan/swapping.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::plan {

namespace {

Seconds seconds(double amount, double rate) {
  return Seconds{amount > 0.0 ? amount / rate : 0.0};
}

/// Seconds of storage; infinite if there are bytes and no storage.
Seconds storage_seconds(PathRate const& rate, Bytes read, Bytes written) {
  Seconds const reading = seconds(static_cast<double>(read), rate.read);
  Seconds const writing = seconds(static_cast<double>(written), rate.write);
  return rate.full_duplex ? std::max(reading, writing) : reading + writing;
}

}  // namespace

SwapTimes swap_times(SwapDemand const& demand, Bytes swapped, double recomputed) {
  require(demand.compute > 0.0 && demand.host_to_device > 0.0 && demand.device_to_host > 0.0,
          "swap_times: rates are above 0");
  auto const& company = demand.company;
  Bytes const leaving = demand.always + swapped;
  Bytes const stored = std::max<Bytes>(0, leaving - company.host_room);
  auto const activations = static_cast<double>(leaving);
  auto const parameters = static_cast<double>(company.parameters);
  return {.forward = std::max({seconds(demand.forward_flops, demand.compute),
                               seconds(parameters, demand.host_to_device),
                               seconds(activations, demand.device_to_host),
                               storage_seconds(demand.storage, company.stored_read, stored)}),
          .backward = std::max(
              {seconds(2 * demand.forward_flops + recomputed, demand.compute), company.update,
               seconds(parameters + activations, demand.host_to_device),
               seconds(static_cast<double>(company.gradients), demand.device_to_host),
               storage_seconds(demand.storage, company.stored_read + company.update_read + stored,
                               company.update_written)})};
}

std::size_t best_swap(SwapDemand const& demand, std::span<SwapItem const> items, std::size_t most) {
  double recomputed = 0.0;
  for (SwapItem const& item : items) {
    recomputed += item.flops;
  }
  Bytes swapped = 0;
  std::size_t best = 0;
  Seconds least = swap_times(demand, swapped, recomputed).total();
  for (std::size_t count = 1; count <= std::min(most, items.size()); ++count) {
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
