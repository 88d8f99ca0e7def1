#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "plan/extent_cache.hpp"
#include "tiers/buffer_pool.hpp"
#include "tiers/extent_store.hpp"
#include "tiers/lease.hpp"
#include "tiers/slot_table.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::tiers {

/// Purpose of a lease.
enum class Purpose {
  fetch,
  create,
  trial,  ///< to fetch what its commit puts on trial
};

/// Table of extents, buffers and versions: who has taken which, where each version is, who is next.
/// It moves no bytes. The thread that has taken an extent moves them, by a lease or to write it.
///
/// Threads: any. Only lend, take_stored and revert wait. accept and revert hold the lock while they
///          free slots; otherwise an extent might ask for a slot that is not free yet.
///
/// No deadlock. A thread waits here for an extent that another thread has taken, for a buffer, or
/// (the thread that has taken an extent) for a path. A worker holds at most one lease of this
/// object, and none while it waits for an extent or a buffer. (All workers take several objects in
/// one order.) One thread may hold a lease while it waits for a second one: the thread that loads a
/// checkpoint. No worker runs then and there are two buffers (Tiers::fits_beside), so the extent
/// that it waits for is being written and comes free.
///   paths    A thread inside a path waits for nothing, so each path comes free.
///   extents  An extent that is being written waits for paths only. A leased extent is given back
///            without a wait here. So each comes free, and so does what revert waits for.
///   buffers  Cached extents and versions before have at most `cached` + spare_buffers buffers
///            together: a commit that makes one too many takes one of them to be written, under the
///            same lock; accept and revert add none. The other buffers are free, or belong to
///            leases and to extents that are being written, which end. Where a miss is possible
///            there is at least one such buffer. Where all extents fit into the cache, a lease on
///            trial finds a buffer: it has a spare that no version before has, or it waits for
///            leases that had one when trials were accepted. A hit needs no buffer and passes those
///            that wait for one. Only failed writes can give all buffers to the cache and the
///            versions before. Waiting for a buffer is an error then.
///   spares   Nobody waits for one.
/// Nobody starves. An extent goes to the thread that asked first, and a buffer to the first thread
/// whose extent is free.
///
/// Slots: at most extents - `cached` + spare_slots are in use on all paths together, and one for
/// each held version that is not current. A cached extent has no slot but that of a version before.
/// An extent that leaves the cache takes one when the commit that drove it out has freed its own.
class ExtentTable {
 public:
  /// `store`: where the extents go that leave the cache; null if none does.
  ExtentTable(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings,
              ExtentStore* store);

  struct Lent {
    std::int64_t buffer{};                   ///< the lease's
    bool hit{};                              ///< the current version is in host memory,
    std::optional<std::int64_t> original{};  ///< in this buffer if the lease is to be a copy
  };
  /// Takes the extent, and a buffer if the lease needs one. Returns nothing if there is no spare
  /// for Purpose::trial.
  /// Errors: PreconditionError: no such key; a fetch of an extent that has no version. IoError: no
  ///         buffer will come free, because of the error that not_written was told.
  [[nodiscard]] std::optional<Lent> lend(Key key, Purpose purpose);
  /// Ends a lease.
  void discard(Key key, bool touched) noexcept;
  struct Committed {
    /// Where no version is now: for the caller to free, without this lock.
    std::optional<Place> freed;
    std::optional<Key> leaving;  ///< has to be written, and is taken for that
  };
  /// Ends a lease: its buffer has the current version.
  [[nodiscard]] Committed commit(Key key);
  /// Another one that has to be written, if the cache is too large even now; taken for that.
  [[nodiscard]] std::optional<Key> next_leaving();
  /// Ends the write of an extent that was taken for that. written: its place is in stored(key).
  /// not_written: it is in the cache again.
  void written(Key key);
  void not_written(Key key, char const* why) noexcept;

  /// See Tiers::has_spare.
  [[nodiscard]] bool has_spare(Key key) const;
  void accept();
  /// Returns the keys that were on trial.
  std::vector<Key> revert();

  /// See Tiers::hold.
  void hold();
  [[nodiscard]] bool is_held(Key key) const;
  /// Version that is held, for whoever reads it.
  [[nodiscard]] std::pair<Version, StoredExtent const&> held(Key key) const;
  void release_held(Key key) noexcept;

  /// Takes an extent until give_back, if it is in storage. Errors: PreconditionError: it is on
  /// trial.
  [[nodiscard]] bool take_stored(Key key);
  void give_back(Key key);

  void begin_pass();
  [[nodiscard]] bool in_memory(Key key) const;
  [[nodiscard]] Residence residence(std::size_t paths) const;

  /// Version of a taken extent, for its taker.
  [[nodiscard]] Version version(Key key) const {
    return {key, at(key).current.number, at(key).size};
  }
  [[nodiscard]] StoredExtent& stored(Key key) { return at(key).current.stored; }
  [[nodiscard]] std::int64_t buffer(Key key) const { return at(key).current.buffer; }
  /// A buffer's bytes for the extent, up to a whole block.
  [[nodiscard]] std::span<std::byte> padded(Key key, std::int64_t buffer) const;
  [[nodiscard]] BufferPool const& pool() const noexcept { return pool_; }

 private:
  static constexpr std::int64_t no_buffer = -1;

  /// Where a version is. `leaving`: in memory, being written. `torn`: it was in memory and was
  /// changed without commit.
  enum class Content { none, memory, leaving, storage, torn };
  struct Holding {
    [[nodiscard]] bool is_nowhere() const {
      return content == Content::none || content == Content::torn;
    }
    Content content = Content::none;
    std::int64_t buffer = no_buffer;
    std::int64_t number = 0;  ///< counts commits
    StoredExtent stored{};    ///< where it lies, of content `storage`
  };
  /// A version before one on trial: in memory or in storage.
  struct Before {
    Holding version;
    std::optional<plan::ExtentCache::Commit> cached;  ///< in memory: when it came in
  };
  /// A version that hold() found in storage.
  struct Held {
    Holding version;
    bool alone = false;  ///< it is neither current nor before one on trial
  };
  struct Extent {
    Bytes size{};
    bool taken = false;   ///< leased, or being written
    bool trying = false;  ///< for a lease on trial, held or still without a buffer; has a spare
    std::int64_t lent =
        no_buffer;  ///< the lease's buffer: the current version's, if that is not a copy
    Holding current{};
    std::optional<Before> before{};  ///< version before the one on trial; it has a spare
    std::optional<Held> held{};
  };
  struct Waiter {
    Key key{};
    Purpose purpose{};
  };
  using Waiters = std::list<Waiter>;

  [[nodiscard]] Extent& at(Key key) { return extents_[static_cast<std::size_t>(key)]; }
  [[nodiscard]] Extent const& at(Key key) const { return extents_[static_cast<std::size_t>(key)]; }
  void require_key(Key key) const;

  // All under mutex_.
  [[nodiscard]] bool is_first(Waiters::const_iterator me) const;
  [[nodiscard]] bool lacks_buffer(Waiter const& waiter) const;
  [[nodiscard]] bool may_begin(Waiters::const_iterator me) const;
  [[nodiscard]] bool is_stuck(Waiter const& waiter) const;
  [[nodiscard]] static std::int64_t ExtentTable::*spares_for(Holding const& version);
  [[nodiscard]] bool may_try(Extent const& extent) const;
  bool begin_trial(Extent& extent);
  void end_trial(Extent& extent) noexcept;
  Lent take(Key key, Purpose purpose);
  std::optional<Key> take_leaving();
  [[nodiscard]] static std::optional<Place> leave(Extent& extent, Place place) noexcept;
  void release(Extent& extent, Holding const& version) noexcept;
  void give_spare_back(Before const& before) noexcept;
  void require_no_trial_leases() const;

  ExtentStore* store_;
  /// Guards all below, but an extent's bytes, number and line in storage: they are its taker's.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Extent> extents_;
  BufferPool pool_;
  plan::ExtentCache cache_;
  Waiters waiters_;  ///< in order of arrival
  std::int64_t leases_ = 0;
  std::int64_t spare_slots_;
  std::int64_t spare_buffers_;
  bool holds_;
  std::int64_t kept_buffers_ = 0;  ///< buffers of versions before
  std::string failure_;            ///< error of the last extent that no path took
};

}  // namespace offstage::tiers
