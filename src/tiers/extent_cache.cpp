#include "tiers/extent_cache.hpp"

#include <algorithm>

namespace offstage::tiers {

ExtentCache::ExtentCache(std::int64_t extents, std::int64_t limit, Evict evict)
    : limit_{limit}, evict_{evict} {
  order_.reserve(static_cast<std::size_t>(extents));
}

void ExtentCache::insert(Key key) {
  remove(key);
  order_.push_back({key, pass_});
}

void ExtentCache::remove(Key key) noexcept {
  auto const found = std::ranges::find(order_, key, &Commit::key);
  if (found != order_.end()) {
    order_.erase(found);
  }
}

}  // namespace offstage::tiers
