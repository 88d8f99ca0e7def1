#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::update {

/// Host memory in equal parts, which are handed out in turn: while one is read the next is filled.
///
/// Memory:  host: count * bytes, pinned if a device is given.
/// Threads: one takes; any gives back.
/// Waiting: take waits for whoever has the part that was taken longest ago.
class StagingBuffers {
 public:
  /// `device`: copies to and from the parts by itself; null: none does. Errors: those of
  /// Device::pin.
  StagingBuffers(int count, Bytes bytes, device::Device* device);

  /// Gives its part back when it ends; whoever has it sees to it that a copy which is still under
  /// way does no harm.
  class Part {
   public:
    Part(Part&& other) noexcept
        : owner_{std::exchange(other.owner_, nullptr)}, index_{other.index_} {}
    ~Part();
    Part(Part const&) = delete;
    Part& operator=(Part const&) = delete;
    Part& operator=(Part&&) = delete;
    [[nodiscard]] std::span<std::byte> memory() const noexcept;

   private:
    friend class StagingBuffers;
    Part(StagingBuffers& owner, std::size_t index) noexcept : owner_{&owner}, index_{index} {}
    StagingBuffers* owner_;  ///< null: moved from
    std::size_t index_;
  };
  /// Blocks until the next part in turn is free.
  [[nodiscard]] Part take();

 private:
  void give_back(std::size_t index) noexcept;

  Bytes bytes_;
  memory::HugeBuffer memory_;
  std::unique_ptr<device::Pinned> pinned_;
  std::mutex mutex_;  ///< guards all below
  std::condition_variable freed_;
  std::vector<bool> taken_;
  std::size_t next_ = 0;
};

}  // namespace offstage::update
