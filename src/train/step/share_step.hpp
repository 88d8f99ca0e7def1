#pragma once

#include "base/units.hpp"

namespace offstage::train {

/// The division of one step's update of a rank between cores and device.
struct ShareStep {
  bool used{};     ///< a device took part, or received the cores' parameters
  double share{};  ///< part of the elements that are not resident which the device updated
  /// Expected time of the whole update by itself, from the rates so far; 0: a rate is not known
  /// yet.
  Seconds expected{};
  Bytes gradients_held{};  ///< bytes of gradients that waited for the update on the device
  bool overlapped{};       ///< the update began under backward
  bool redone{};           ///< the update was reverted, because the norm was not the presumed one
};

}  // namespace offstage::train
