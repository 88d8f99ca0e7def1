#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "plan/split.hpp"

namespace offstage::plan {

/// Rates of one rank's resources while all ranks of the node do the same. 0: not known.
struct UpdateRates {
  /// Elements per second: an update on the rank's cores, 16-bit result included.
  double cpu_update{};
  double device_update{};   ///< elements per second: the same on the device
  double host_to_device{};  ///< bytes per second from pinned memory, the other direction idle
  double device_to_host{};
  /// Bytes per second while the other direction runs too; 0: the same as alone.
  double host_to_device_both{};
  double device_to_host_both{};
  double host_memory{};  ///< bytes per second of cores and copies together; 0: no limit
  /// The storage paths that are written to, with each one's rates divided by the ranks that use it.
  /// Not needed if nothing is stored.
  std::vector<PathRate> paths{};
};

/// Traffic of one update of a rank on its storage paths.
struct StorageTraffic {
  Bytes read{}, written{};  ///< bytes of state and parameters, whatever the share
  /// Elements whose gradient has no place in host memory. It is read, unless it is held on the
  /// device.
  std::int64_t spilled{};

  [[nodiscard]] bool none() const { return read == 0 && written == 0 && spilled == 0; }
};

/// The way in which CPU and device take turns.
enum class Transfers {
  overlap,  ///< everything at once (DOS section 4.1)
  /// The CPU waits for each copy of its new parameters to the device, and starts when the resident
  /// subgroups are done: ZeRO-3 and TwinFlow as DOS describes them (Figure 5, top).
  blocking
};

struct UpdateDemand {
  std::int64_t elements{};    ///< elements of the shard, resident ones included
  double resident{};          ///< part of them whose state lives on the device
  double state_bytes = 12.0;  ///< per element: all planes, and the half that the working copy has
  Bytes gradient_bytes = 2;   ///< per element, from host memory to the device
  /// Elements whose gradient is on the device before the update, if the device updates them;
  /// residents first.
  std::int64_t held{};
  Bytes parameter_bytes = 2;  ///< per element of the working copy
  /// Elements that go to the device at a time; they fill and drain the pipeline.
  std::int64_t chunk{};
  bool direct_copy =
      false;  ///< the CPU writes new parameters to the place where they are used (host_visible)
  Transfers transfers = Transfers::overlap;
  StorageTraffic storage{};
};

/// Busy times of the resources, and the times that follow from them.
struct UpdateTimes {
  Seconds cpu{}, device{}, host_to_device{}, device_to_host{}, host_memory{}, storage{};
  Seconds total{};  ///< makespan
};

/// Time of an update if a share of the elements that are not resident, in [0, 1], is updated on the
/// device.
///
/// Link:        a device update takes the state there and back, and the gradient there unless it is
///              held. For a resident element only the gradient crosses, and for one that the CPU
///              updates only the new parameter. The direction with less to move runs wholly beside
///              the other. The rest of the other goes at the rate of one direction.
/// Host memory: an element that the CPU updates costs its state twice, gradient and parameter.
///              Bytes that cross the link are read or written once more. So is a staged parameter,
///              which is written past the caches. Work of an emulated device inside its own memory
///              is not counted.
/// Storage:     bandwidth_bound (split.hpp) of the bytes read and written, beside everything else.
/// overlap:     the longest of: each resource's busy time with the time of one chunk before it
///              (filling) and after it (draining), host memory, storage.
/// blocking:    residents first, then the CPU and its copies in turns; no less than overlap.
/// Not counted: forward and backward, if the update goes on beside them.
/// Errors:      PreconditionError: a share or `resident` outside of [0, 1]; a rate that is needed
///              is not known.
[[nodiscard]] UpdateTimes update_times(UpdateDemand const& demand, UpdateRates const& rates,
                                       double share);

/// The share with the least total. If storage takes longest whatever the share is, it is the share
/// that keeps the other resources furthest behind storage, because a pipeline with few buffers
/// loses time if two resources are equally busy. Of equal shares it is the smallest (0 if no share
/// helps). It is not rounded to a stride. It may be above one half, which DOS's equation 1 cannot
/// express. It counts host memory and the overlap of transfer and device update, which that
/// equation leaves out.
[[nodiscard]] double best_share(UpdateDemand const& demand, UpdateRates const& rates);

/// The stride k of DOS equation 1, CPU updates per device update, to be printed beside best_share.
/// Rates are parameters per second; that of `link` is for FP32 (bytes / 4). `conversion` is that
/// from FP32 to 16 bit on the cores (0: part of the update). Algorithm 1 of the paper and its text
/// take k = 2 for every second subgroup, which equation 1 would call 1. Infinite if the CPU keeps
/// up with the link.
/// Errors: PreconditionError: a rate is not positive.
[[nodiscard]] double paper_stride(double cpu_update, double conversion, double device_update,
                                  double link);

}  // namespace offstage::plan
