#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/lease.hpp"

namespace offstage::tiers {

/// Host memory for extents. If there is a buffer for every extent, and none to spare, each has its
/// own, of its size; otherwise all are as large as the largest. Sizes are rounded up to
/// aio::direct_alignment.
///
/// Threads: none of its own; the owner's lock. The bytes belong to whoever took the buffer.
class BufferPool {
 public:
  /// `buffers`: at most as many as there are extents. `spare`: so many more, at most as many too,
  /// for second versions. `device`: pinned for it; null: for none.
  BufferPool(std::vector<Bytes> const& extent_bytes, std::int64_t buffers, std::int64_t spare,
             device::Device* device);

  [[nodiscard]] std::int64_t size() const noexcept { return std::ssize(buffers_); }
  [[nodiscard]] std::int64_t free() const noexcept { return std::ssize(free_); }
  /// A buffer that the key's extent fits into. At least one is free; the key has none, unless there
  /// are some to spare.
  [[nodiscard]] std::int64_t take(Key key);
  void give_back(std::int64_t buffer) noexcept;
  [[nodiscard]] std::span<std::byte> bytes(std::int64_t buffer) const;
  [[nodiscard]] Bytes host_bytes() const;

 private:
  bool one_each_;
  std::vector<memory::HugeBuffer> buffers_;
  std::vector<std::unique_ptr<device::Pinned>> pinned_;
  std::vector<std::int64_t> free_;
};

}  // namespace offstage::tiers
