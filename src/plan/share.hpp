#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace offstage::plan {

/// What one rank's resources do while all ranks of the node do the same. 0: no limit is known.
struct UpdateRates {
  double cpu_update{};  ///< elements per second: AdamW on the rank's cores, 16-bit result included
  double device_update{};   ///< elements per second: AdamW on the device
  double host_to_device{};  ///< bytes per second from pinned memory, the other direction idle
  double device_to_host{};
  double host_to_device_both{};  ///< bytes per second while the other direction runs too
  double device_to_host_both{};
  double host_memory{};  ///< bytes per second that cores and copies draw from memory together
};

/// How CPU and device take turns.
enum class Transfers {
  overlap,  ///< everything at once (DOS section 4.1)
  /// The CPU waits for each copy of its new parameters to the device, and starts when the resident
  /// subgroups are done: ZeRO-3 and TwinFlow as DOS describes them (Figure 5, top).
  blocking
};

struct UpdateDemand {
  std::int64_t elements{};    ///< of the shard, resident ones included
  double resident{};          ///< share of them whose state lives on the device
  Bytes gradient_bytes = 2;   ///< per element, from host memory to the device
  Bytes parameter_bytes = 2;  ///< per element of the working copy
  std::int64_t
      chunk{};  ///< elements that go to the device at a time: the pipeline's fill and drain
  bool direct_copy =
      false;  ///< the CPU writes new parameters to where they are used (host_visible)
  Transfers transfers = Transfers::overlap;
  Seconds
      storage{};  ///< what storage takes for the update, whatever the share (split.hpp, bandwidth_bound)
};

/// Busy times of the resources and what follows from them.
struct UpdateTimes {
  Seconds cpu{}, device{}, host_to_device{}, device_to_host{}, host_memory{}, storage{};
  Seconds total{};  ///< makespan
};

/// The update's time if a share of the elements that are not resident, in [0, 1], is updated on the device.
/// overlap: the largest of the busy times, and the fill and drain of one chunk. Host memory carries 24 B
/// of state, gradient and parameter per element updated by the CPU and what crosses the link for the others.
/// Errors: PreconditionError: a share or `resident` outside of [0, 1]; a rate that is needed is 0.
[[nodiscard]] UpdateTimes update_times(UpdateDemand const& demand, UpdateRates const& rates,
                                       double share);

/// The share of least total, 0 if no share helps. Not rounded to a stride: what DOS's equation 1 cannot say
/// (above one half) and what it leaves out (host memory, overlap of transfer and device update) counts.
[[nodiscard]] double best_share(UpdateDemand const& demand, UpdateRates const& rates);

/// DOS equation 1: CPU updates per device update, k; to be printed beside best_share. `conversion`: FP32 to
/// 16 bit on the cores, elements per second (0: part of the update). Not finite if the CPU needs no help.
/// Its rates: `link` in FP32 elements per second.
[[nodiscard]] double paper_stride(double cpu_update, double conversion, double device_update,
                                  double link);

}  // namespace offstage::plan
