#pragma once

#include <chrono>
#include <thread>

#include "tiers/virtual_support.hpp"

namespace offstage::tiers {

/// A version on trial; false if there is no spare for one.
inline bool try_out(Tiers& tiers, Key key, int value) {
  auto lease = tiers.fetch_on_trial(key);
  if (!lease) {
    return false;
  }
  set(*lease, value);
  lease->commit();
  return true;
}
inline void replace(Tiers& tiers, Key key, int value) {
  Lease lease = tiers.fetch(key);
  set(lease, value);
  lease.commit();
}
inline bool holds(Tiers& tiers, Key key, int value) {
  return all(tiers.fetch(key).bytes(), value);
}
/// Long enough for a thread to come to where it waits.
inline void let_others_run() {
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
}

}  // namespace offstage::tiers
