#include "plan/extent_cache.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::plan {

ExtentCache::ExtentCache(std::int64_t extents, std::int64_t limit, Evict evict)
    : limit_{limit}, evict_{evict} {
  order_.reserve(static_cast<std::size_t>(extents));
}

void ExtentCache::insert(std::int64_t key) {
  remove(key);
  order_.push_back({key, pass_, ++commits_});
}

void ExtentCache::remove(std::int64_t key) noexcept {
  auto const found = std::ranges::find(order_, key, &Commit::key);
  if (found != order_.end()) {
    order_.erase(found);
  }
}

ExtentCache::Commit ExtentCache::commit_of(std::int64_t key) const {
  auto const found = std::ranges::find(order_, key, &Commit::key);
  require(found != order_.end(), "ExtentCache: the key is not in it");
  return *found;
}

void ExtentCache::restore(Commit const& commit) {
  remove(commit.key);
  order_.insert(std::ranges::lower_bound(order_, commit.number, {}, &Commit::number), commit);
}

}  // namespace offstage::plan
