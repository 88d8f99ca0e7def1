#include "tiers/extent_table.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::tiers {
namespace {

/// Enough for all extents if so few are not cached that they are leased at the same time.
std::int64_t buffers_of(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings) {
  std::int64_t const extents = std::ssize(extent_bytes);
  return extents - std::min(extents, settings.cached) <= settings.buffers
             ? extents
             : settings.cached + settings.buffers;
}

}  // namespace

ExtentTable::ExtentTable(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings,
                         ExtentStore* store)
    : store_{store},
      extents_(extent_bytes.size()),
      pool_{extent_bytes, buffers_of(extent_bytes, settings),
            std::min<std::int64_t>(settings.spare_buffers, std::ssize(extent_bytes)),
            settings.device},
      cache_{std::ssize(extent_bytes), settings.cached, settings.evict},
      spare_slots_{settings.spare_slots},
      spare_buffers_{settings.spare_buffers},
      holds_{settings.holds} {
  for (std::size_t key = 0; key < extents_.size(); ++key) {
    extents_[key].size = extent_bytes[key];
  }
}

std::span<std::byte> ExtentTable::padded(Key key, std::int64_t buffer) const {
  return pool_.bytes(buffer).first(
      static_cast<std::size_t>(round_up(at(key).size, aio::direct_alignment)));
}

void ExtentTable::require_key(Key key) const {
  require(key >= 0 && key < std::ssize(extents_), "VirtualTiers: no such key");
}

std::optional<ExtentTable::Lent> ExtentTable::lend(Key key, Purpose purpose) {
  require_key(key);
  Waiting const waiting{"a buffer and the lease of extent", key};
  std::unique_lock lock{mutex_};
  auto const me = waiters_.insert(waiters_.end(), {key, purpose});
  changed_.wait(lock, [&] { return is_first(me); });
  bool const refused = me->purpose == Purpose::trial && !begin_trial(at(key));
  if (!refused) {
    changed_.wait(lock, [&] { return may_begin(me) || is_stuck(*me); });
  }
  bool const stuck = !refused && !may_begin(me);
  Purpose const granted = me->purpose;  // accept has changed it, perhaps
  waiters_.erase(me);
  changed_.notify_all();  // whoever was behind this one
  if (refused) {
    return std::nullopt;
  }
  if (stuck) {
    if (granted == Purpose::trial) {
      end_trial(at(key));
    }
    throw IoError{failure_.empty() ? "an extent could not be written" : failure_};
  }
  return take(key, granted);
}

ExtentTable::Lent ExtentTable::take(Key key, Purpose purpose) {
  Extent& extent = at(key);
  if (purpose != Purpose::create) {
    require(extent.current.content != Content::none,
            "VirtualTiers: fetch of an extent that was never created");
    require(extent.current.content != Content::torn,
            "VirtualTiers: the extent was changed without commit");
  }
  extent.taken = true;
  ++leases_;
  bool const hit = extent.current.content == Content::memory;
  if (hit && purpose != Purpose::trial) {
    extent.lent = extent.current.buffer;
    return {.buffer = extent.lent, .hit = true};
  }
  extent.lent = pool_.take(key);
  Lent lent{.buffer = extent.lent, .hit = hit};
  if (hit) {
    lent.original = extent.current.buffer;
  }
  return lent;
}

/// True if the extent is there for this one to take.
bool ExtentTable::is_first(Waiters::const_iterator me) const {
  return !at(me->key).taken && std::none_of(waiters_.begin(), me, [&](Waiter const& earlier) {
    return earlier.key == me->key;
  });
}

/// True if nothing but a buffer may be missing. A fetch of what is nowhere fails and needs none.
bool ExtentTable::lacks_buffer(Waiter const& waiter) const {
  Extent const& extent = at(waiter.key);
  Content const content = extent.current.content;
  if (extent.taken) {
    return false;
  }
  switch (waiter.purpose) {
    case Purpose::fetch:
      return content == Content::storage;
    case Purpose::create:
      return content != Content::memory;
    case Purpose::trial:
      return content == Content::storage || content == Content::memory;
  }
  return false;
}

bool ExtentTable::may_begin(Waiters::const_iterator me) const {
  auto const earlier =
      std::count_if(waiters_.begin(), me, [&](Waiter const& each) { return lacks_buffer(each); });
  return is_first(me) && (pool_.free() > earlier || !lacks_buffer(*me));
}

bool ExtentTable::is_stuck(Waiter const& waiter) const {
  return lacks_buffer(waiter) && cache_.size() + kept_buffers_ == pool_.size();
}

/// What a second version costs: the version before stays where it is.
std::int64_t ExtentTable::*ExtentTable::spares_for(Holding const& version) {
  return version.content == Content::memory ? &ExtentTable::spare_buffers_
                                            : &ExtentTable::spare_slots_;
}

/// Extents that are nowhere need no spare: to fetch one is an error.
bool ExtentTable::may_try(Extent const& extent) const {
  return !extent.before && !extent.trying &&
         (extent.current.is_nowhere() || this->*spares_for(extent.current) > 0);
}

/// False if there is no spare. From here on the extent stays where it is, so that the spare is of
/// the kind that it will take.
bool ExtentTable::begin_trial(Extent& extent) {
  if (!may_try(extent)) {
    return false;
  }
  if (!extent.current.is_nowhere()) {
    --(this->*spares_for(extent.current));
    extent.trying = true;
  }
  return true;
}

bool ExtentTable::has_spare(Key key) const {
  require_key(key);
  std::scoped_lock const lock{mutex_};
  return may_try(at(key));
}

void ExtentTable::end_trial(Extent& extent) noexcept {
  if (std::exchange(extent.trying, false)) {
    ++(this->*spares_for(extent.current));
  }
}

void ExtentTable::discard(Key key, bool touched) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    Extent& extent = at(key);
    end_trial(extent);
    bool const in_place = extent.lent == extent.current.buffer;
    if (in_place && touched) {
      extent.current.content = Content::torn;
      extent.current.buffer = no_buffer;
      cache_.remove(key);
    }
    if (!in_place || touched) {
      pool_.give_back(extent.lent);
    }
    extent.lent = no_buffer;
    extent.taken = false;
    --leases_;
  }
  changed_.notify_all();
}

/// Who has to leave is taken in the same breath: a cache above its limit is how is_stuck knows that
/// writes have failed.
ExtentTable::Committed ExtentTable::commit(Key key) {
  Committed committed;
  {
    std::scoped_lock const lock{mutex_};
    Extent& extent = at(key);
    Holding old = std::exchange(extent.current, {});
    extent.current.content = Content::memory;
    extent.current.buffer = std::exchange(extent.lent, no_buffer);
    extent.current.number = old.number + 1;
    extent.current.stored.writes = old.stored.writes;
    bool const was_cached = old.content == Content::memory;
    if (std::exchange(extent.trying, false)) {
      kept_buffers_ += was_cached ? 1 : 0;
      auto const cached = was_cached ? std::optional{cache_.commit_of(key)} : std::nullopt;
      extent.before = Before{std::move(old), cached};
    } else if (old.content == Content::storage) {
      committed.freed = leave(extent, old.stored.place);
    } else if (was_cached && old.buffer != extent.current.buffer) {
      pool_.give_back(old.buffer);  // the lease was on trial when the trials were accepted
    }
    extent.taken = false;
    --leases_;
    cache_.insert(key);
    committed.leaving = take_leaving();
  }
  changed_.notify_all();
  return committed;
}

/// Not one that somebody is about to copy: it would be elsewhere then.
std::optional<Key> ExtentTable::take_leaving() {
  auto const leaving = cache_.victim([&](Key key) { return at(key).taken || at(key).trying; });
  if (leaving) {
    cache_.remove(*leaving);
    at(*leaving).current.content = Content::leaving;
    at(*leaving).taken = true;
  }
  return leaving;
}

std::optional<Key> ExtentTable::next_leaving() {
  std::scoped_lock const lock{mutex_};
  return take_leaving();
}

void ExtentTable::written(Key key) {
  {
    std::scoped_lock const lock{mutex_};
    Extent& extent = at(key);
    extent.current.content = Content::storage;
    extent.taken = false;
    pool_.give_back(std::exchange(extent.current.buffer, no_buffer));
  }
  changed_.notify_all();
}

void ExtentTable::not_written(Key key, char const* why) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    try {
      failure_ = why;
    } catch (std::bad_alloc const&) {
      failure_.clear();  // whoever waits is told so without the reason
    }
    at(key).current.content = Content::memory;
    at(key).taken = false;
    cache_.insert(key);
  }
  changed_.notify_all();
}

/// Neither the current version nor one before it is in this slot any more. The slot, if it is to be
/// freed.
std::optional<Place> ExtentTable::leave(Extent& extent, Place place) noexcept {
  if (extent.held && extent.held->version.stored.place == place) {
    extent.held->alone = true;
    return std::nullopt;
  }
  return place;
}

/// Nobody will read this version, but for one who holds it.
void ExtentTable::release(Extent& extent, Holding const& version) noexcept {
  if (version.content == Content::storage) {
    if (auto const freed = leave(extent, version.stored.place)) {
      store_->free(*freed);
    }
  } else if (version.content == Content::memory) {
    pool_.give_back(version.buffer);
  }
}

void ExtentTable::give_spare_back(Before const& before) noexcept {
  kept_buffers_ -= before.cached ? 1 : 0;
  ++(this->*spares_for(before.version));
}

void ExtentTable::accept() {
  {
    std::scoped_lock const lock{mutex_};
    for (Waiter& waiter : waiters_) {
      waiter.purpose = waiter.purpose == Purpose::trial ? Purpose::fetch : waiter.purpose;
    }
    for (Extent& extent : extents_) {
      end_trial(extent);
      if (extent.before) {
        give_spare_back(*extent.before);
        release(extent, extent.before->version);
        extent.before.reset();
      }
    }
  }
  changed_.notify_all();
}

std::vector<Key> ExtentTable::revert() {
  Waiting const waiting{"extents on trial to be written"};
  std::vector<Key> keys;
  {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] {
      return std::ranges::none_of(extents_, [](Extent const& extent) {
        return extent.before && extent.current.content == Content::leaving;
      });
    });
    require_no_trial_leases();
    for (Key key = 0; key < std::ssize(extents_); ++key) {
      Extent& extent = at(key);
      if (!extent.before) {
        continue;
      }
      keys.push_back(key);
      release(extent, extent.current);
      if (extent.before->cached) {
        cache_.restore(*extent.before->cached);
      } else {
        cache_.remove(key);
      }
      give_spare_back(*extent.before);
      extent.current = std::move(extent.before->version);
      extent.before.reset();
    }
  }
  changed_.notify_all();
  return keys;
}

void ExtentTable::require_no_trial_leases() const {
  require(std::ranges::none_of(
              waiters_, [](Waiter const& waiter) { return waiter.purpose == Purpose::trial; }),
          "VirtualTiers: trials are reverted while one is asked for");
  require(std::ranges::none_of(extents_,
                               [](Extent const& extent) {
                                 return extent.trying || (extent.before && extent.taken);
                               }),
          "VirtualTiers: trials are reverted while an extent on trial is leased");
}

void ExtentTable::hold() {
  std::scoped_lock const lock{mutex_};
  for (Extent& extent : extents_) {
    require(!extent.held && !extent.before && !extent.trying,
            "VirtualTiers: a version is held while one is held or on trial");
    if (holds_ && extent.current.content == Content::storage) {
      extent.held = Held{extent.current};
    }
  }
}

bool ExtentTable::is_held(Key key) const {
  require_key(key);
  std::scoped_lock const lock{mutex_};
  return at(key).held.has_value();
}

std::pair<Version, StoredExtent const&> ExtentTable::held(Key key) const {
  require(is_held(key), "VirtualTiers: no version of the extent is held");
  Holding const& version = at(key).held->version;
  return {{key, version.number, at(key).size}, version.stored};
}

void ExtentTable::release_held(Key key) noexcept {
  std::scoped_lock const lock{mutex_};
  Extent& extent = at(key);
  if (extent.held && extent.held->alone) {
    store_->free(extent.held->version.stored.place);
  }
  extent.held.reset();
}

bool ExtentTable::take_stored(Key key) {
  require_key(key);
  std::unique_lock lock{mutex_};
  Extent& extent = at(key);
  changed_.wait(lock, [&] { return !extent.taken; });
  require(!extent.before, "VirtualTiers: an extent is given away while it is on trial");
  extent.taken = extent.current.content == Content::storage;
  return extent.taken;
}

void ExtentTable::give_back(Key key) {
  {
    std::scoped_lock const lock{mutex_};
    at(key).taken = false;
  }
  changed_.notify_all();
}

void ExtentTable::begin_pass() {
  std::scoped_lock const lock{mutex_};
  require(leases_ == 0, "VirtualTiers: a pass begins while a lease is held");
  cache_.begin_pass();
}

bool ExtentTable::in_memory(Key key) const {
  require_key(key);
  std::scoped_lock const lock{mutex_};
  return at(key).current.content == Content::memory;
}

Residence ExtentTable::residence(std::size_t paths) const {
  Residence residence;
  residence.paths.resize(paths);
  std::scoped_lock const lock{mutex_};
  for (Extent const& extent : extents_) {
    Holding const& current = extent.current;
    if (current.content == Content::memory || current.content == Content::leaving) {
      residence.host += extent.size;
    } else if (current.content == Content::storage) {
      residence.paths[current.stored.place.path] += extent.size;
    }
  }
  return residence;
}

}  // namespace offstage::tiers
