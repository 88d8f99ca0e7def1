#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/pacer.hpp"
#include "device/device.hpp"

namespace offstage::device {

/// Engine that streams of the emulated device share: a copy engine, the unit that updates, or the
/// unit that makes products. It does one thing at a time, in order of arrival.
/// Threads: any.
class Engine {
 public:
  /// Units per second; 0: as fast as it can.
  explicit Engine(double rate) noexcept : pacer_{rate} {}
  /// Runs `work`, which is worth so many units, on the calling thread when its turn comes; returns
  /// when it is due. Errors: what `work` throws.
  void run(double units, std::function<void()> const& work);
  [[nodiscard]] bool is_paced() const noexcept { return pacer_.is_paced(); }

 private:
  std::mutex mutex_;  ///< guards the tickets
  std::condition_variable changed_;
  std::int64_t next_ticket_{};
  std::int64_t served_{};  ///< whose turn it is
  Pacer pacer_;            ///< pacer of the thread whose turn it is
};

struct HostEngines {
  explicit HostEngines(Emulation const& emulation)
      : to_device{emulation.host_to_device},
        to_host{emulation.device_to_host},
        update{emulation.device_update},
        products{emulation.compute} {}

  Engine to_device, to_host;  ///< bytes
  Engine update;              ///< elements of the state
  Engine products;            ///< floating-point operations
};

/// Streams of the emulated device; `engines` must outlive them. One has a thread, with OpenMP teams
/// of so many threads, the other runs its work on the caller's: see Device::make_stream and
/// make_calling_stream.
[[nodiscard]] std::unique_ptr<Stream> make_queued_stream(HostEngines& engines,
                                                         std::string const& name, int team = 1);
[[nodiscard]] std::unique_ptr<Stream> make_inline_stream(HostEngines& engines);

}  // namespace offstage::device
