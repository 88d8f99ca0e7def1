#pragma once

#include "base/units.hpp"
#include "config/run_config.hpp"

namespace offstage::train {

/// Least device memory that a rank of a run takes for all but the link's own, by the way that
/// slices of gradients go.
struct LinkNeeds {
  Bytes direct{};  ///< from device to device, where they need a layer's memory; 0: not known
  Bytes staged{};  ///< by way of host memory
  /// Whether slices may go from device to device beside `own` bytes of the link: if they fit, or if
  /// the other way would not fit either. `memory`: of the device; 0: not known.
  [[nodiscard]] bool take_direct(Bytes own, Bytes memory) const {
    return memory == 0 || direct + own <= memory || (staged > memory && own <= memory);
  }
};

/// For `ranks` ranks on GPUs: with two slots of parameters, the cheapest schedule and activations
/// that train.schedule and train.activations allow, of what plan.choose=on leaves open the
/// cheapest, and nothing that takes what is left.
[[nodiscard]] LinkNeeds link_needs(config::RunConfig const& config, int ranks);

}  // namespace offstage::train
