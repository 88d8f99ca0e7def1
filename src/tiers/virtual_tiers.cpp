#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "tiers/buffer_pool.hpp"
#include "tiers/extent_cache.hpp"
#include "tiers/extent_store.hpp"
#include "tiers/planned_space.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {
namespace {

/// Locks: mutex_, the slot table's and the paths'. Nobody asks for one with another in his hands, but for
/// the slot table, which asks the paths for their rates.
///
/// No deadlock. A thread waits here for one of three things: an extent that another thread has taken, by
/// a lease or to write it; a buffer; a path. Every worker holds at most one lease of this object, and
/// none while it waits for an extent or a buffer. (Several objects: all workers take them in one order.)
///   paths    Whoever is inside one waits for nothing, so each comes free.
///   extents  What is being written waits for paths alone, what is leased ends without waiting here: so
///            each comes free.
///   buffers  The cache has `cached` of them, the others, `buffers` at least, are free or belong to a
///            lease or to an extent being written, which end. A hit needs none: it passes misses that
///            wait for one. Only failed writes can leave the cache all buffers; waiting for one is an
///            error then.
/// Nobody starves: an extent goes to whoever asked for it first, a buffer to the first of those whose
/// extent is there for the taking.
class VirtualTiers final : public Tiers {
 public:
  VirtualTiers(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings);

  Lease fetch(Key key) override;
  Lease create(Key key) override;
  void begin_pass() override;
  [[nodiscard]] bool in_memory(Key key) const override;
  [[nodiscard]] std::optional<SharedExtent> share(Key key, std::string const& name) override;
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] Residence residence() const override;
  [[nodiscard]] std::vector<PathSpace> space() const override;
  [[nodiscard]] Bytes host_bytes() const override { return pool_.host_bytes(); }

 protected:
  void commit(Key key, std::int64_t ticket) override;
  void discard(Key key, std::int64_t ticket, bool touched) noexcept override;

 private:
  static constexpr std::int64_t no_buffer = -1;

  /// Where the current version is. `leaving`: in memory, being written. `torn`: it was in memory and was
  /// changed without commit.
  enum class Content { none, memory, leaving, storage, torn };
  struct Extent {
    Bytes size{};
    Content content = Content::none;
    bool taken = false;  ///< leased, or being written
    std::int64_t buffer = no_buffer;
    std::int64_t version = 0;  ///< counts commits
    StoredExtent stored{};     ///< where it lies, of content `storage`
  };
  enum class Purpose { fetch, create };
  struct Waiter {
    Key key{};
    Purpose purpose{};
  };
  using Waiters = std::list<Waiter>;

  [[nodiscard]] Extent& at(Key key) { return extents_[static_cast<std::size_t>(key)]; }
  [[nodiscard]] Extent const& at(Key key) const { return extents_[static_cast<std::size_t>(key)]; }
  [[nodiscard]] std::span<std::byte> padded(Extent const& extent) const {
    Bytes const size = round_up(extent.size, aio::direct_alignment);
    return pool_.bytes(extent.buffer).first(static_cast<std::size_t>(size));
  }
  [[nodiscard]] Lease lease_of(Key key) {
    auto const size = static_cast<std::size_t>(at(key).size);
    return {*this, key, padded(at(key)).first(size), at(key).buffer};
  }
  [[nodiscard]] Version version_of(Key key) const { return {key, at(key).version, at(key).size}; }
  [[nodiscard]] std::string const& row(Extent const& extent) const {
    return rows_[static_cast<std::size_t>(extent.buffer)];
  }

  bool begin(Key key, Purpose purpose);
  [[nodiscard]] bool lacks_buffer(Waiter const& waiter) const;
  [[nodiscard]] bool may_begin(Waiters::const_iterator me) const;
  [[nodiscard]] bool is_stuck(Waiter const& waiter) const;
  std::optional<Key> make_current(Key key);
  std::optional<Key> take_victim();
  std::optional<Key> next_victim();
  void evict(Key key);

  std::shared_ptr<PathSet> paths_;
  trace::Trace* trace_;
  std::vector<std::string> rows_;     ///< of the trace, one per buffer
  std::optional<ExtentStore> store_;  ///< if not every extent stays in memory

  /// Guards all below, but an extent's bytes, version and line in storage: they are its taker's.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Extent> extents_;
  BufferPool pool_;
  ExtentCache cache_;
  Waiters waiters_;  ///< in order of arrival
  std::int64_t leases_ = 0;
  std::string failure_;  ///< of the last extent that no path took
  Traffic traffic_;      ///< without the paths'
};

std::int64_t buffers_of(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings) {
  require(settings.buffers >= 1, "VirtualTiers: at least one buffer is needed");
  require(settings.cached >= 0, "VirtualTiers: the cache cannot be smaller than none");
  std::int64_t const extents = std::ssize(extent_bytes);
  return extents - std::min(extents, settings.cached) <= settings.buffers
             ? extents
             : settings.cached + settings.buffers;
}

VirtualTiers::VirtualTiers(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings)
    : paths_{settings.paths},
      trace_{settings.trace},
      pool_{extent_bytes, buffers_of(extent_bytes, settings), settings.device},
      cache_{std::ssize(extent_bytes), settings.cached, settings.evict} {
  for (Bytes const size : extent_bytes) {
    extents_.push_back({.size = size});
  }
  for (std::int64_t i = 0; i < pool_.size(); ++i) {
    rows_.push_back(fmt::format("{} buffer {}", settings.name, i));
  }
  if (auto const demand = demand_of(extent_bytes, settings)) {
    store_.emplace(paths_, *demand, settings.verify, settings.name);
  }
}

/// Takes the extent, and a buffer if it has none. True if the current version is in it.
bool VirtualTiers::begin(Key key, Purpose purpose) {
  require(key >= 0 && key < std::ssize(extents_), "VirtualTiers: no such key");
  Waiting const waiting{"a buffer and the lease of extent", key};
  std::unique_lock lock{mutex_};
  auto const me = waiters_.insert(waiters_.end(), {key, purpose});
  changed_.wait(lock, [&] { return may_begin(me) || is_stuck(*me); });
  bool const stuck = !may_begin(me);
  waiters_.erase(me);
  changed_.notify_all();  // whoever was behind this one
  if (stuck) {
    throw IoError{failure_};
  }
  Extent& extent = at(key);
  if (purpose == Purpose::fetch) {
    require(extent.content != Content::none,
            "VirtualTiers: fetch of an extent that was never created");
    require(extent.content != Content::torn, "VirtualTiers: the extent was changed without commit");
  }
  extent.taken = true;
  ++leases_;
  if (extent.buffer == no_buffer) {
    extent.buffer = pool_.take(key);
  }
  return extent.content == Content::memory;
}

/// True if nothing but a buffer may be missing. A fetch of what is nowhere fails and needs none.
bool VirtualTiers::lacks_buffer(Waiter const& waiter) const {
  Extent const& extent = at(waiter.key);
  return !extent.taken && extent.buffer == no_buffer &&
         (waiter.purpose == Purpose::create || extent.content == Content::storage);
}

bool VirtualTiers::may_begin(Waiters::const_iterator me) const {
  std::int64_t free = pool_.free();
  for (auto earlier = waiters_.begin(); earlier != me; ++earlier) {
    if (earlier->key == me->key) {
      return false;
    }
    free -= lacks_buffer(*earlier) ? 1 : 0;
  }
  return !at(me->key).taken && (free > 0 || !lacks_buffer(*me));
}

bool VirtualTiers::is_stuck(Waiter const& waiter) const {
  return lacks_buffer(waiter) && cache_.size() == pool_.size();
}

Lease VirtualTiers::fetch(Key key) {
  Waiting const waiting{"the fetch of extent", key};
  Stopwatch const watch;
  bool const hit = begin(key, Purpose::fetch);
  Lease lease = lease_of(key);  // ends if what follows throws
  if (!hit) {
    Extent const& extent = at(key);
    trace::Scope const scope{trace_, row(extent), "read", key, extent.size};
    store_->read(version_of(key), padded(extent), extent.stored);
  }
  std::scoped_lock const lock{mutex_};
  ++(hit ? traffic_.hits : traffic_.misses);
  traffic_.fetched_bytes += at(key).size;
  traffic_.fetch_seconds += watch.elapsed();
  return lease;
}

Lease VirtualTiers::create(Key key) {
  begin(key, Purpose::create);
  return lease_of(key);
}

void VirtualTiers::discard(Key key, std::int64_t /*ticket*/, bool touched) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    Extent& extent = at(key);
    if (touched && extent.content == Content::memory) {
      extent.content = Content::torn;
      cache_.remove(key);
    }
    if (extent.content != Content::memory) {
      pool_.give_back(std::exchange(extent.buffer, no_buffer));
    }
    extent.taken = false;
    --leases_;
  }
  changed_.notify_all();
}

void VirtualTiers::commit(Key key, std::int64_t /*ticket*/) {
  Waiting const waiting{"the commit of extent", key};
  Stopwatch const watch;
  // One at most, unless writes have failed before.
  for (auto victim = make_current(key); victim; victim = next_victim()) {
    evict(*victim);
  }
  std::scoped_lock const lock{mutex_};
  traffic_.flush_seconds += watch.elapsed();
}

/// The lease's buffer is the current version, and the lease has ended. Returns who has to leave, taken:
/// in the same breath, for a cache above its limit is how is_stuck knows that writes have failed.
std::optional<Key> VirtualTiers::make_current(Key key) {
  std::optional<Place> old;
  std::optional<Key> victim;
  {
    std::scoped_lock const lock{mutex_};
    Extent& extent = at(key);
    if (extent.content == Content::storage) {
      old = extent.stored.place;
    }
    extent.content = Content::memory;
    ++extent.version;
    extent.taken = false;
    --leases_;
    cache_.insert(key);
    victim = take_victim();
  }
  changed_.notify_all();
  if (old) {
    store_->free(*old);
  }
  return victim;
}

/// Under mutex_.
std::optional<Key> VirtualTiers::take_victim() {
  auto const victim = cache_.victim([&](Key key) { return at(key).taken; });
  if (victim) {
    cache_.remove(*victim);
    at(*victim).content = Content::leaving;
    at(*victim).taken = true;
  }
  return victim;
}

std::optional<Key> VirtualTiers::next_victim() {
  std::scoped_lock const lock{mutex_};
  return take_victim();
}

/// Writes an extent that take_victim took, and frees its buffer. If that fails it is in the cache again.
void VirtualTiers::evict(Key key) {
  Waiting const waiting{"the flush of extent", key};
  Extent& extent = at(key);
  try {
    {
      trace::Scope const scope{trace_, row(extent), "write", key, extent.size};
      store_->write(version_of(key), padded(extent), extent.stored);
    }
    std::scoped_lock const lock{mutex_};
    extent.content = Content::storage;
    extent.taken = false;
    pool_.give_back(std::exchange(extent.buffer, no_buffer));
  } catch (std::exception const& error) {
    std::scoped_lock const lock{mutex_};
    failure_ = error.what();
    extent.content = Content::memory;
    extent.taken = false;
    cache_.insert(key);
    changed_.notify_all();
    throw;
  }
  changed_.notify_all();
}

void VirtualTiers::begin_pass() {
  std::scoped_lock const lock{mutex_};
  require(leases_ == 0, "VirtualTiers: a pass begins while a lease is held");
  cache_.begin_pass();
}

bool VirtualTiers::in_memory(Key key) const {
  require(key >= 0 && key < std::ssize(extents_), "VirtualTiers: no such key");
  std::scoped_lock const lock{mutex_};
  return at(key).content == Content::memory;
}

std::optional<SharedExtent> VirtualTiers::share(Key key, std::string const& name) {
  require(key >= 0 && key < std::ssize(extents_), "VirtualTiers: no such key");
  Waiting const waiting{"the file of extent", key};
  Extent& extent = at(key);
  {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return !extent.taken; });
    if (extent.content != Content::storage) {
      return std::nullopt;
    }
    extent.taken = true;
  }
  auto const give_back = [&] {
    {
      std::scoped_lock const lock{mutex_};
      extent.taken = false;
    }
    changed_.notify_all();
  };
  try {
    auto shared = store_->share(extent.stored, name);
    give_back();
    return shared;
  } catch (...) {
    give_back();
    throw;
  }
}

Traffic VirtualTiers::traffic() const {
  Traffic traffic;
  {
    std::scoped_lock const lock{mutex_};
    traffic = traffic_;
  }
  if (paths_) {
    for (auto const& path : *paths_) {
      traffic.paths.push_back(path->traffic());
    }
  }
  return traffic;
}

Residence VirtualTiers::residence() const {
  Residence residence;
  residence.paths.resize(paths_ ? paths_->size() : 0);
  std::scoped_lock const lock{mutex_};
  for (Extent const& extent : extents_) {
    if (extent.content == Content::memory || extent.content == Content::leaving) {
      residence.host += extent.size;
    } else if (extent.content == Content::storage) {
      residence.paths[extent.stored.place.path] += extent.size;
    }
  }
  return residence;
}

std::vector<PathSpace> VirtualTiers::space() const {
  std::vector<PathSpace> space(paths_ ? paths_->size() : 0);
  if (store_) {
    auto const slots = store_->slots().slots();
    for (std::size_t i = 0; i < space.size(); ++i) {
      space[i] = {slots[i], store_->slots().slot_bytes()};
    }
  }
  return space;
}

}  // namespace

Bytes Traffic::read_bytes() const {
  Bytes sum = 0;
  for (PathTraffic const& path : paths) {
    sum += path.read.bytes;
  }
  return sum;
}

Bytes Traffic::write_bytes() const {
  Bytes sum = 0;
  for (PathTraffic const& path : paths) {
    sum += path.write.bytes;
  }
  return sum;
}

std::unique_ptr<Tiers> make_virtual_tiers(std::vector<Bytes> const& extent_bytes,
                                          VirtualSettings const& settings) {
  return std::make_unique<VirtualTiers>(extent_bytes, settings);
}

std::unique_ptr<Tiers> make_host_tiers(std::vector<Bytes> const& extent_bytes) {
  VirtualSettings settings;
  settings.cached = std::ssize(extent_bytes);
  return make_virtual_tiers(extent_bytes, settings);
}

}  // namespace offstage::tiers
