#pragma once

#include <optional>

#include "kernels/pointwise/rope.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// How a model's RoPE frequencies are stretched, as the kernels take it.
[[nodiscard]] inline std::optional<kernels::Llama3Scaling> scaling_of(
    state::ModelShape const& shape) {
  if (shape.rope_scaling == state::RopeScaling::none) {
    return std::nullopt;
  }
  return kernels::Llama3Scaling{
      .factor = shape.rope_factor,
      .low_frequency = shape.rope_low_frequency,
      .high_frequency = shape.rope_high_frequency,
      .original_sequence = static_cast<double>(shape.rope_original_sequence)};
}

}  // namespace offstage::model
