#pragma once

#include "base/units.hpp"
#include "state/rank_link.hpp"

namespace offstage::train {

/// The room that a run has to fit in: the places of its ranks, and the memory of the node and of
/// the device that have least.
struct Room {
  int ranks_per_node = 1;
  /// Route of layers between ranks. in_place: the host sees the device's memory. With one rank it
  /// is never direct.
  state::Route route = state::Route::in_place;
  Bytes rank_link{};      ///< device memory that the link takes for itself
  Bytes device_memory{};  ///< a rank's; 0: no limit
  Bytes host_memory{};    ///< a node's; 0: not looked at
  Bytes shared_memory{};  ///< a node's that its ranks can share, for parameters.home=node

  [[nodiscard]] bool host_visible() const noexcept { return route == state::Route::in_place; }
};

}  // namespace offstage::train
