#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/state_layout.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {

/// How a checkpoint, or a run, keeps the optimizer's state; what formats 1 to 3 had, unless something else is said.
struct OptimizerState {
  std::string optimizer = "adamw";  ///< optimizer.kind
  std::string moments = "fp32";     ///< optimizer.moments
  StateLayout layout = adamw_layout();
};

/// "parameter:fp32,momentum:signed8,momentum_scale:fp32/256": the planes in their order.
[[nodiscard]] std::string to_text(StateLayout const& layout);
/// None if it is no such text, or its planes are not what a checkpoint may hold: the parameter first, as FP32,
/// each name once, and beside each plane X of codes FP32 scales X_scale, which no other plane is.
[[nodiscard]] std::optional<StateLayout> parse_layout(std::string_view text);

/// The type of the plane's dataset.
[[nodiscard]] h5::Type dataset_type(Plane const& plane);
/// Values of the plane's dataset of N elements: with what pads the plane.
[[nodiscard]] std::int64_t dataset_values(StateLayout const& layout, std::size_t plane,
                                          std::int64_t elements);

}  // namespace offstage::checkpoint
