#include "parameters/extent_reader.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::parameters {

ExtentReader::ExtentReader(tiers::Tiers& tiers, int ahead, std::function<void(tiers::Key)> before)
    : tiers_{tiers}, ahead_{static_cast<std::size_t>(ahead)}, before_{std::move(before)} {
  require(ahead >= 1, "ExtentReader: at least one extent has to be read ahead");
  threads_.reserve(ahead_);
  try {
    for (int i = 0; i < ahead; ++i) {
      threads_.emplace_back("parameters-" + std::to_string(i), [this] { work(); });
    }
  } catch (...) {  // threads that have started wait for extents to come
    stop();
    throw;
  }
}

void ExtentReader::expect(std::span<tiers::Key const> keys) {
  {
    std::scoped_lock const lock{mutex_};
    for (tiers::Key const key : keys) {
      entries_.push_back({.key = key});
    }
  }
  changed_.notify_all();
}

// A second lease of a key that is leased already would wait for pop(), and could be granted before
// the first.
bool ExtentReader::may_begin() const {
  if (begun_ == entries_.size() || begun_ == ahead_) {
    return false;
  }
  auto const next = entries_.begin() + static_cast<std::ptrdiff_t>(begun_);
  return std::find_if(entries_.begin(), next,
                      [&](Entry const& entry) { return entry.key == next->key; }) == next;
}

void ExtentReader::work() noexcept {
  std::unique_lock lock{mutex_};
  for (;;) {
    {
      Waiting const idle{"parameters to be wanted"};
      changed_.wait(lock, [this] { return stopping_ || may_begin(); });
    }
    if (stopping_) {
      return;
    }
    // The entry stays at its place until it is settled and popped.
    Entry& entry = entries_[begun_++];
    tiers::Key const key = entry.key;
    lock.unlock();
    std::optional<tiers::Lease> lease;
    std::exception_ptr error;
    try {
      before_(key);
      lease.emplace(tiers_.fetch(key));
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (lease) {
      entry.lease.emplace(*std::move(lease));
    }
    entry.error = error;
    changed_.notify_all();
  }
}

std::span<std::byte const> ExtentReader::front() {
  std::unique_lock lock{mutex_};
  require(!entries_.empty(), "ExtentReader: no extent is expected");
  if (!entries_.front().settled()) {
    Waiting const waiting{"parameters from storage", entries_.front().key};
    changed_.wait(lock, [this] { return stopping_ || entries_.front().settled(); });
  }
  require(!stopping_, "ExtentReader: it has been stopped");
  if (entries_.front().error) {
    std::rethrow_exception(entries_.front().error);
  }
  return entries_.front().lease->bytes();
}

void ExtentReader::pop() {
  {
    std::scoped_lock const lock{mutex_};
    require(!entries_.empty() && entries_.front().lease, "ExtentReader: nothing is at the front");
    entries_.pop_front();  // before a second fetch of the key may begin
    --begun_;
  }
  changed_.notify_all();
}

void ExtentReader::stop() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

}  // namespace offstage::parameters
