#include "tiers/lease.hpp"

#include <utility>

#include "base/error.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {

void Lease::commit() {
  require(owner_ != nullptr, "Lease: commit of a lease that has ended");
  bytes_ = {};
  std::exchange(owner_, nullptr)->commit(key_);
}

void Lease::discard() noexcept {
  if (owner_ != nullptr) {
    std::exchange(owner_, nullptr)->discard(key_, touched_);
  }
}

}  // namespace offstage::tiers
