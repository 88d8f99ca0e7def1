#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "platform/trace/trace.hpp"

namespace offstage::update {

/// Busy times so far, and what they were busy with: from these rates are measured.
struct DeviceLaneStats {
  Seconds host_to_device{}, device_to_host{}, kernel{};
  Bytes to_device_bytes{}, to_host_bytes{};
  std::int64_t updated{};  ///< elements
};
[[nodiscard]] DeviceLaneStats operator-(DeviceLaneStats const& after,
                                        DeviceLaneStats const& before);

/// How long a resource was busy, of spans that may overlap: two streams that share a copy engine
/// each see the time that they wait for the other.
/// Threads: one at a time.
class BusyTime {
 public:
  using Point = std::chrono::steady_clock::time_point;

  void add(Point begin, Point end) { spans_.push_back({begin, end}); }
  /// Length of all spans so far; time that several have in common counts once. Spans that are added
  /// later count from the latest end of those before on.
  [[nodiscard]] Seconds total();

 private:
  struct Span {
    Point begin, end;
  };

  std::vector<Span> spans_;  ///< not in the total yet
  Point until_{};            ///< the total's latest end
  Seconds total_{};
};

/// A piece of queued work on one stream.
struct Stretch {
  std::shared_ptr<device::Event> begin, end;
};

/// Times and bytes of the device's side of updates.
/// Threads: any.
class LaneFigures {
 public:
  enum class Row { host_to_device, kernel, device_to_host, parameters };

  explicit LaneFigures(trace::Trace* trace) : trace_{trace} {}

  /// Counts work that is done: so many bytes, or elements of a kernel. `subgroup` -1: not shown.
  /// Errors: those of the stream.
  void add(Row row, Stretch const& work, std::int64_t amount, std::int64_t subgroup = -1);
  [[nodiscard]] DeviceLaneStats stats() const;

 private:
  enum Resource : std::uint8_t { to_device, to_host, kernel, resources };

  trace::Trace* trace_;
  mutable std::mutex mutex_;  ///< guards all below
  mutable std::array<BusyTime, resources> busy_;
  std::array<std::int64_t, resources> amounts_{};
};

}  // namespace offstage::update
