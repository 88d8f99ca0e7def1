#pragma once

#include "base/units.hpp"

namespace offstage::train {

/// How one step's update was shared between cores and device, rank 0's.
struct ShareStep {
  bool used{};     ///< a device took part, or received the cores' parameters
  double share{};  ///< of what is not resident, that the device updated
  Seconds
      expected{};  ///< of the whole update by itself, from the rates so far; 0: one is not known yet
  Bytes gradients_held{};  ///< gradients that waited for it on the device
  bool overlapped{};       ///< the update began under backward
  bool redone{};           ///< and was reverted, as the norm was another than presumed
};

}  // namespace offstage::train
