#include "update/chunk_slots.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {
namespace {

/// Of a slot: what kernels and copies like best.
constexpr Bytes alignment = 256;

/// To the first aligned byte.
Bytes skip_of(std::span<std::byte> memory) {
  auto const address = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(memory.data()));
  return round_up(address, alignment) - address;
}

}  // namespace

Bytes ChunkSlots::stride(Bytes slot_bytes) {
  return round_up(slot_bytes, alignment);
}

int ChunkSlots::lent_slots(int count, Bytes slot_bytes, std::span<std::byte> lent) {
  Bytes const room = std::max<Bytes>(0, std::ssize(lent) - skip_of(lent));
  return static_cast<int>(std::min<Bytes>(count, room / stride(slot_bytes)));
}

ChunkSlots::ChunkSlots(device::Device& device, int count, Bytes slot_bytes,
                       std::span<std::byte> lent, std::string const& purpose)
    : slots_(static_cast<std::size_t>(count)) {
  int const borrowed = lent_slots(count, slot_bytes, lent);
  own_ = device.allocate((count - borrowed) * stride(slot_bytes), purpose);
  std::byte* memory = borrowed > 0 ? lent.data() + skip_of(lent) : nullptr;
  for (int i = 0; i < count; ++i) {
    if (i == borrowed) {
      memory = own_.as<std::byte>().data();
    }
    slots_[static_cast<std::size_t>(i)] = {memory, i < borrowed, false, {}};
    memory += stride(slot_bytes);
  }
}

ChunkSlots::Hold ChunkSlots::take() {
  require(!slots_.empty(), "ChunkSlots: there is no slot");
  std::unique_lock lock{mutex_};
  std::size_t index = next_;
  for (std::size_t tried = 0; slots_[index].lent && !use_lent_; ++tried) {
    require(tried < slots_.size(), "ChunkSlots: every slot is lent and given back");
    index = (index + 1) % slots_.size();
  }
  next_ = (index + 1) % slots_.size();
  Slot& slot = slots_[index];
  require(!slot.held, "ChunkSlots: one thread at a time takes slots");
  slot.held = true;
  auto const left = slot.left;
  lock.unlock();
  Hold hold{*this, index};
  if (left) {
    Waiting const waiting{"a slot of device memory"};
    left->wait();
  }
  return hold;
}

void ChunkSlots::use_lent() {
  std::scoped_lock const lock{mutex_};
  use_lent_ = true;
}

bool ChunkSlots::leave_lent() {
  std::unique_lock lock{mutex_};
  use_lent_ = false;
  bool empty = true;
  for (Slot& slot : slots_) {
    if (!slot.lent) {
      continue;
    }
    Waiting const waiting{"lent device memory"};
    released_.wait(lock, [&] { return !slot.held; });
    if (auto const left = slot.left) {
      lock.unlock();
      try {
        left->wait();
      } catch (...) {  // whoever filled the slot gets the error
        empty = false;
      }
      lock.lock();
    }
  }
  return empty;
}

void ChunkSlots::end_hold(std::size_t index) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    slots_[index].held = false;
  }
  released_.notify_all();
}

ChunkSlots::Hold::~Hold() {
  if (owner_ != nullptr) {
    owner_->end_hold(index_);
  }
}

std::byte* ChunkSlots::Hold::memory() const noexcept {
  return owner_->slots_[index_].memory;
}

bool ChunkSlots::Hold::is_lent() const noexcept {
  return owner_->slots_[index_].lent;
}

void ChunkSlots::Hold::fill_until(std::shared_ptr<device::Event> left) noexcept {
  {
    std::scoped_lock const lock{owner_->mutex_};
    owner_->slots_[index_].left = std::move(left);
  }
  std::exchange(owner_, nullptr)->end_hold(index_);
}

}  // namespace offstage::update
