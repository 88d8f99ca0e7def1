#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace offstage::plan {

/// tiers.evict: the extent that leaves host memory when a commit finds the cache full.
enum class Evict {
  /// The extent that was committed first of those that this pass needs no more (committed in it).
  /// So extents that the pass still needs stay, whatever the order. The committed extent itself
  /// leaves if there is no other.
  farthest,
  /// The highest key that this pass needs no more: the lowest keys stay, whatever the order. It is
  /// for updates under backward, which reach the lowest keys last, while the next forward needs
  /// these first. It is no value of tiers.evict.
  highest,
  /// The least recently committed one, as in the papers' systems; ascending passes then thrash.
  oldest
};

/// Knows which extents' current versions are in host memory, in order of commit, and decides which
/// of them leaves when there are too many. It knows nothing of bytes.
/// Threads: none of its own; the owner's lock guards it.
class ExtentCache {
 public:
  /// The commit of a key.
  struct Commit {
    std::int64_t key{};
    std::int64_t pass{};
    std::int64_t number{};  ///< counts commits
  };

  /// A cache of at most `extents` keys at a time. Beyond `limit` one has to leave.
  ExtentCache(std::int64_t extents, std::int64_t limit, Evict evict);

  void begin_pass() noexcept { ++pass_; }
  /// Adds a new version of the key. It is the last in order now, and this pass needs it no more.
  void insert(std::int64_t key);
  void remove(std::int64_t key) noexcept;
  /// The commit of a key that is in the cache.
  [[nodiscard]] Commit commit_of(std::int64_t key) const;
  /// Restores the key's order and pass from before any later commit.
  void restore(Commit const& commit);
  [[nodiscard]] std::int64_t size() const noexcept { return std::ssize(order_); }

  /// The key that has to leave, if there are too many. None if `taken(key)` is true for all that
  /// could leave.
  template <class Taken>
  [[nodiscard]] std::optional<std::int64_t> victim(Taken const& taken) const {
    if (size() <= limit_) {
      return std::nullopt;
    }
    std::optional<std::int64_t> chosen;
    for (Commit const& commit : order_) {
      bool const allowed = evict_ == Evict::oldest || commit.pass == pass_;
      if (!allowed || taken(commit.key)) {
        continue;
      }
      if (evict_ != Evict::highest) {
        return commit.key;
      }
      chosen = std::max(chosen.value_or(commit.key), commit.key);
    }
    return chosen;
  }

 private:
  std::vector<Commit> order_;  ///< the first one was committed first
  std::int64_t limit_;
  Evict evict_;
  std::int64_t pass_ = 0;
  std::int64_t commits_ = 0;
};

}  // namespace offstage::plan
