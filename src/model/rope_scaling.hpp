#pragma once

#include "kernels/pointwise/rope.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// The stretching of a model's RoPE frequencies, in the kernels' form.
[[nodiscard]] inline kernels::RopeScaling scaling_of(state::ModelShape const& shape) {
  auto const original = static_cast<double>(shape.rope_original_sequence);
  switch (shape.rope_scaling) {
    case state::RopeScaling::linear:
      return kernels::LinearScaling{.factor = shape.rope_factor};
    case state::RopeScaling::llama3:
      return kernels::Llama3Scaling{.factor = shape.rope_factor,
                                    .low_frequency = shape.rope_low_frequency,
                                    .high_frequency = shape.rope_high_frequency,
                                    .original_sequence = original};
    case state::RopeScaling::yarn:
      return kernels::YarnScaling{.factor = shape.rope_factor,
                                  .slow = shape.rope_low_frequency,
                                  .fast = shape.rope_high_frequency,
                                  .original_sequence = original,
                                  .attention_factor = shape.rope_attention_factor};
    case state::RopeScaling::none:
      break;
  }
  return {};
}

}  // namespace offstage::model
