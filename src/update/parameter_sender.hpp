#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "update/lane_figures.hpp"

namespace offstage::update {

/// The way of the CPU's new parameters to the device: a ring of pinned host memory and a stream.
///
/// Memory:  host, pinned: buffers * buffer_bytes.
/// Threads: one calls staging and send; any the others.
/// Errors:  construction: those of Device::pin. Members: what the stream throws.
class ParameterSender {
 public:
  ParameterSender(device::Device& device, int buffers, Bytes buffer_bytes, LaneFigures& figures);
  ~ParameterSender();
  ParameterSender(ParameterSender const&) = delete;
  ParameterSender& operator=(ParameterSender const&) = delete;

  /// As of DeviceLane.
  [[nodiscard]] kernels::WorkingCopyView staging(kernels::WorkingCopyView const& target,
                                                 std::int64_t begin, std::int64_t count);
  [[nodiscard]] std::shared_ptr<device::Event> send();
  /// Counts what has been sent; returns when it is there.
  void count();
  /// Returns when nothing is on its way. Errors are lost.
  void settle() noexcept;

 private:
  struct Buffer {
    std::span<std::byte> memory;
    Stretch sent;  ///< null: it is empty
    Bytes bytes{};
  };
  /// Waits until the buffer is empty, and counts what was in it.
  void empty(Buffer& buffer);

  Bytes buffer_bytes_;
  LaneFigures& figures_;
  memory::HugeBuffer memory_;
  std::unique_ptr<device::Pinned> pinned_;
  std::mutex mutex_;  ///< guards all below
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
  std::byte* target_ = nullptr;  ///< target of the memory that staging handed out
  std::unique_ptr<device::Stream> stream_;
};

}  // namespace offstage::update
