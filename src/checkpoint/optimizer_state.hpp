#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/state_layout.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {

/// The form in which a checkpoint, or a run, keeps the optimizer's state. The defaults are those of
/// formats 1 to 3.
struct OptimizerState {
  std::string optimizer = "adamw";  ///< optimizer.kind
  std::string moments = "fp32";     ///< optimizer.moments
  StateLayout layout = adamw_layout();
};

/// The planes in their order, as "parameter:fp32,momentum:signed8,momentum_scale:fp32/256".
[[nodiscard]] std::string to_text(StateLayout const& layout);
/// The layout of such a text. None if it is no such text, or if a checkpoint may not hold its
/// planes. The parameter comes first, as FP32. Each name occurs once. Each plane X of codes has
/// FP32 scales X_scale beside it, and no other plane has such a name.
[[nodiscard]] std::optional<StateLayout> parse_layout(std::string_view text);

/// The type of the plane's dataset.
[[nodiscard]] h5::Type dataset_type(Plane const& plane);
/// Number of values of the plane's dataset for N elements, with the plane's padding.
[[nodiscard]] std::int64_t dataset_values(StateLayout const& layout, std::size_t plane,
                                          std::int64_t elements);

}  // namespace offstage::checkpoint
