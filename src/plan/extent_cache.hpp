#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace offstage::plan {

/// tiers.evict: which extent leaves host memory when a commit finds the cache full.
enum class Evict {
  /// The one that this pass needs no more (committed in it) and that was committed first: what the
  /// pass still needs stays, whatever the order. The committed extent itself if there is no other.
  farthest,
  /// The highest key that this pass needs no more: the lowest keys stay, whatever the order. For
  /// updates under backward, which come to the lowest last, and the forward after it first; no
  /// value of tiers.evict.
  highest,
  oldest  ///< least recently committed, as the papers' systems do: ascending passes then thrash
};

/// Which extents' current versions are in host memory, in order of commit, and which of them leaves
/// when there are too many. Knows nothing of bytes. Threads: none of its own; the owner's lock.
class ExtentCache {
 public:
  /// When a key came in.
  struct Commit {
    std::int64_t key{};
    std::int64_t pass{};
    std::int64_t number{};  ///< counts commits
  };

  /// At most `extents` keys are in it at a time; beyond `limit` one has to leave.
  ExtentCache(std::int64_t extents, std::int64_t limit, Evict evict);

  void begin_pass() noexcept { ++pass_; }
  /// A new version of the key: it is the last in order now, and this pass needs it no more.
  void insert(std::int64_t key);
  void remove(std::int64_t key) noexcept;
  /// Commit of a key that is in the cache.
  [[nodiscard]] Commit commit_of(std::int64_t key) const;
  /// The key is where it was before any later commit of it, in order and pass.
  void restore(Commit const& commit);
  [[nodiscard]] std::int64_t size() const noexcept { return std::ssize(order_); }

  /// The key that has to leave, if there are too many; none while all that might are `taken` (of
  /// keys).
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
