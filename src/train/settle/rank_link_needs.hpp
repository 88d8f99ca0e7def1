#pragma once

#include "base/units.hpp"
#include "config/run_config.hpp"

namespace offstage::train {

/// Least device memory that a rank of a run takes without the link's own, for each way of slices of
/// gradients.
struct RankLinkNeeds {
  Bytes direct{};  ///< slices go from device to device, which takes a layer's memory; 0: not known
  Bytes staged{};  ///< slices go through host memory
  /// Returns whether slices may go from device to device beside `own` bytes of the link: if they
  /// fit, or if the other way does not fit either. `memory` is the device's; 0: not known.
  [[nodiscard]] bool take_direct(Bytes own, Bytes memory) const {
    return memory == 0 || direct + own <= memory || (staged > memory && own <= memory);
  }
};

/// The needs of `ranks` ranks on GPUs, with two slots of parameters, and with the cheapest schedule
/// and activations that train.schedule and train.activations allow. Keys that plan.choose=on leaves
/// open have the cheapest values. Memory for uses that only take the rest is not counted.
[[nodiscard]] RankLinkNeeds rank_link_needs(config::RunConfig const& config, int ranks);

}  // namespace offstage::train
