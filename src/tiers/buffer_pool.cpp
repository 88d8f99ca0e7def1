#include "tiers/buffer_pool.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "platform/aio/file.hpp"

namespace offstage::tiers {

BufferPool::BufferPool(std::vector<Bytes> const& extent_bytes, std::int64_t buffers,
                       std::int64_t spare, device::Device* device)
    : one_each_{buffers >= std::ssize(extent_bytes) && spare == 0} {
  require(std::ranges::all_of(extent_bytes, [](Bytes size) { return size > 0; }),
          "BufferPool: an extent must have bytes");
  std::vector<Bytes> sizes{extent_bytes};
  if (!one_each_) {
    sizes.assign(static_cast<std::size_t>(buffers + spare), std::ranges::max(extent_bytes));
  }
  buffers_.reserve(sizes.size());
  pinned_.reserve(device != nullptr ? sizes.size() : 0);
  for (Bytes const size : sizes) {
    auto const& buffer = buffers_.emplace_back(round_up(size, aio::direct_alignment));
    if (device != nullptr) {
      pinned_.push_back(device->pin(buffer.bytes()));
    }
  }
  free_.resize(buffers_.size());
  std::iota(free_.rbegin(), free_.rend(), std::int64_t{0});
}

std::int64_t BufferPool::take(Key key) {
  auto const taken = one_each_ ? std::ranges::find(free_, key) : std::prev(free_.end());
  require(taken != free_.end(), "BufferPool: no buffer is free");
  std::int64_t const buffer = *taken;
  free_.erase(taken);
  return buffer;
}

void BufferPool::give_back(std::int64_t buffer) noexcept {
  free_.push_back(buffer);  // within the capacity it was built with
}

std::span<std::byte> BufferPool::bytes(std::int64_t buffer) const {
  return buffers_[static_cast<std::size_t>(buffer)].bytes();
}

Bytes BufferPool::host_bytes() const {
  Bytes sum = 0;
  for (memory::HugeBuffer const& buffer : buffers_) {
    sum += buffer.size();
  }
  return sum;
}

}  // namespace offstage::tiers
