#include "update/chunk_buffers.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {
namespace {

/// A buffer's alignment, with which kernels and copies are fastest.
constexpr Bytes alignment = 256;

/// To the first aligned byte.
Bytes skip_of(std::span<std::byte> memory) {
  auto const address = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(memory.data()));
  return round_up(address, alignment) - address;
}

}  // namespace

Bytes ChunkBuffers::stride(Bytes buffer_bytes) {
  return round_up(buffer_bytes, alignment);
}

int ChunkBuffers::lent_buffers(int count, Bytes buffer_bytes, std::span<std::byte> lent) {
  Bytes const room = std::max<Bytes>(0, std::ssize(lent) - skip_of(lent));
  return static_cast<int>(std::min<Bytes>(count, room / stride(buffer_bytes)));
}

ChunkBuffers::ChunkBuffers(device::Device& device, int count, Bytes buffer_bytes,
                           std::span<std::byte> lent, std::string const& purpose)
    : buffers_(static_cast<std::size_t>(count)) {
  int const borrowed = lent_buffers(count, buffer_bytes, lent);
  own_ = device.allocate((count - borrowed) * stride(buffer_bytes), purpose);
  std::byte* memory = borrowed > 0 ? lent.data() + skip_of(lent) : nullptr;
  for (int i = 0; i < count; ++i) {
    if (i == borrowed) {
      memory = own_.as<std::byte>().data();
    }
    buffers_[static_cast<std::size_t>(i)] = {memory, i < borrowed, false, {}};
    memory += stride(buffer_bytes);
  }
}

ChunkBuffers::Taken ChunkBuffers::take() {
  require(!buffers_.empty(), "ChunkBuffers: there is no buffer");
  std::unique_lock lock{mutex_};
  std::size_t index = next_;
  for (std::size_t tried = 0; buffers_[index].lent && !use_lent_; ++tried) {
    require(tried < buffers_.size(), "ChunkBuffers: every buffer is lent and given back");
    index = (index + 1) % buffers_.size();
  }
  next_ = (index + 1) % buffers_.size();
  Buffer& buffer = buffers_[index];
  require(!buffer.taken, "ChunkBuffers: one thread at a time takes buffers");
  buffer.taken = true;
  auto const left = buffer.left;
  lock.unlock();
  Taken place{*this, index};
  if (left) {
    Waiting const waiting{"a buffer of device memory"};
    left->wait();
  }
  return place;
}

void ChunkBuffers::use_lent() {
  std::scoped_lock const lock{mutex_};
  use_lent_ = true;
}

bool ChunkBuffers::leave_lent() {
  std::unique_lock lock{mutex_};
  use_lent_ = false;
  bool empty = true;
  for (Buffer& buffer : buffers_) {
    if (!buffer.lent) {
      continue;
    }
    Waiting const waiting{"lent device memory"};
    released_.wait(lock, [&] { return !buffer.taken; });
    if (auto const left = buffer.left) {
      lock.unlock();
      try {
        left->wait();
      } catch (...) {  // whoever filled the buffer gets the error
        empty = false;
      }
      lock.lock();
    }
  }
  return empty;
}

void ChunkBuffers::give_back(std::size_t index) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    buffers_[index].taken = false;
  }
  released_.notify_all();
}

ChunkBuffers::Taken::~Taken() {
  if (owner_ != nullptr) {
    owner_->give_back(index_);
  }
}

std::byte* ChunkBuffers::Taken::memory() const noexcept {
  return owner_->buffers_[index_].memory;
}

bool ChunkBuffers::Taken::is_lent() const noexcept {
  return owner_->buffers_[index_].lent;
}

void ChunkBuffers::Taken::fill_until(std::shared_ptr<device::Event> left) noexcept {
  {
    std::scoped_lock const lock{owner_->mutex_};
    owner_->buffers_[index_].left = std::move(left);
  }
  std::exchange(owner_, nullptr)->give_back(index_);
}

}  // namespace offstage::update
