#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/tiers.hpp"

namespace offstage::update {

/// Stands for tiers on storage: keys below `in_memory` are leased where they lie, the others
/// through `buffers`, so that a thread which waits for a lease waits as it would for a real one.
/// What create hands out is garbage. Remembers what was asked for; a hook delays and fails it.
/// Threads: any.
class MemoryTiers final : public tiers::Tiers {
 public:
  enum class Call { fetch, create, commit, discard };
  struct Event {
    Call call;
    tiers::Key key;
    bool operator==(Event const&) const = default;
  };
  struct Settings {
    int buffers = 3;
    std::int64_t in_memory = 0;
    /// Called in fetch, create and commit while the key is leased; what it throws, they throw.
    std::function<void(Event)> hook{};
  };

  explicit MemoryTiers(std::vector<Bytes> const& extent_bytes)
      : MemoryTiers{extent_bytes, Settings{}} {}
  MemoryTiers(std::vector<Bytes> const& extent_bytes, Settings settings)
      : settings_{std::move(settings)} {
    Bytes largest = 0;
    for (Bytes const size : extent_bytes) {
      extents_.push_back({memory::HugeBuffer{size}});
      largest = std::max(largest, size);
    }
    for (int i = 0; i < settings_.buffers; ++i) {
      buffers_.emplace_back(largest);
      free_.push_back(i);
    }
  }

  tiers::Lease fetch(tiers::Key key) override {
    tiers::Lease lease = lease_of({Call::fetch, key});
    Extent const& extent = extents_[static_cast<std::size_t>(key)];
    require(extent.valid, "MemoryTiers: fetch of an extent that has no version");
    std::memmove(const_cast<std::byte*>(lease.bytes().data()), extent.memory.bytes().data(),
                 lease.bytes().size());
    return lease;
  }
  tiers::Lease create(tiers::Key key) override {
    tiers::Lease lease = lease_of({Call::create, key});
    std::ranges::fill(lease.mutable_bytes(), std::byte{0xE1});
    return lease;
  }
  void begin_pass() override {
    std::scoped_lock const lock{mutex_};
    require(held_ == 0, "MemoryTiers: begin_pass while a lease is held");
    ++passes_;
  }
  [[nodiscard]] tiers::Traffic traffic() const override {
    std::scoped_lock const lock{mutex_};
    tiers::Traffic traffic;
    traffic.misses = std::ranges::count(events_, Call::fetch, &Event::call);
    return traffic;
  }
  [[nodiscard]] Bytes host_bytes() const override { return 0; }

  [[nodiscard]] std::vector<Event> events() const {
    std::scoped_lock const lock{mutex_};
    return events_;
  }
  [[nodiscard]] std::vector<tiers::Key> keys_of(Call call) const {
    std::vector<tiers::Key> keys;
    for (Event const& event : events()) {
      if (event.call == call) {
        keys.push_back(event.key);
      }
    }
    return keys;
  }
  void forget_events() {
    std::scoped_lock const lock{mutex_};
    events_.clear();
  }
  /// Leases that have not ended.
  [[nodiscard]] int held() const {
    std::scoped_lock const lock{mutex_};
    return held_;
  }
  [[nodiscard]] int passes() const {
    std::scoped_lock const lock{mutex_};
    return passes_;
  }

 protected:
  void commit(tiers::Key key) override {
    Extent& extent = extents_[static_cast<std::size_t>(key)];
    try {
      call_hook({Call::commit, key});
    } catch (...) {
      end(key, extent.valid && extent.buffer != in_place);
      throw;
    }
    if (extent.buffer != in_place) {
      std::memcpy(extent.memory.bytes().data(), buffer(extent.buffer).data(),
                  extent.memory.bytes().size());
    }
    end(key, true);
  }
  void discard(tiers::Key key, bool touched) noexcept override {
    Extent const& extent = extents_[static_cast<std::size_t>(key)];
    bool const torn = touched && extent.buffer == in_place;
    bool const valid = extent.valid && !torn;
    {
      std::scoped_lock const lock{mutex_};
      events_.push_back({Call::discard, key});
    }
    end(key, valid);
  }

 private:
  static constexpr std::int64_t in_place = -1;
  struct Extent {
    memory::HugeBuffer memory;
    // The next two are changed by the holder of the lease alone.
    bool valid = false;
    std::int64_t buffer = in_place;  ///< of the lease
    bool leased = false;
  };

  [[nodiscard]] std::span<std::byte> buffer(std::int64_t number) const {
    return buffers_[static_cast<std::size_t>(number)].bytes();
  }
  void call_hook(Event event) {
    {
      std::scoped_lock const lock{mutex_};
      events_.push_back(event);
    }
    if (settings_.hook) {
      settings_.hook(event);
    }
  }
  tiers::Lease lease_of(Event event) {
    require(event.key >= 0 && event.key < std::ssize(extents_), "MemoryTiers: no such key");
    Extent& extent = extents_[static_cast<std::size_t>(event.key)];
    bool const stays = event.key < settings_.in_memory;
    {
      std::unique_lock lock{mutex_};
      ended_.wait(lock, [&] { return !extent.leased && (stays || !free_.empty()); });
      extent.leased = true;
      ++held_;
      if (!stays) {
        extent.buffer = free_.back();
        free_.pop_back();
      }
    }
    auto const size = extent.memory.bytes().size();
    tiers::Lease lease{*this, event.key,
                       stays ? extent.memory.bytes() : buffer(extent.buffer).first(size)};
    call_hook(event);
    return lease;
  }
  void end(tiers::Key key, bool valid) noexcept {
    {
      std::scoped_lock const lock{mutex_};
      Extent& extent = extents_[static_cast<std::size_t>(key)];
      extent.valid = valid;
      extent.leased = false;
      --held_;
      if (extent.buffer != in_place) {
        free_.push_back(std::exchange(extent.buffer, in_place));
      }
    }
    ended_.notify_all();
  }

  Settings settings_;
  mutable std::mutex mutex_;  ///< guards all below, but for what a lease's holder has
  std::condition_variable ended_;
  std::vector<Extent> extents_;
  std::vector<memory::HugeBuffer> buffers_;
  std::vector<std::int64_t> free_;
  std::vector<Event> events_;
  int held_ = 0;
  int passes_ = 0;
};

}  // namespace offstage::update
