#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "state/model_shape.hpp"

namespace offstage::huggingface {

constexpr char const* config_name = "config.json";
constexpr char const* single_name = "model.safetensors";
constexpr char const* index_name = "model.safetensors.index.json";
constexpr char const* head_name = "lm_head.weight";
constexpr char const* gpt2_prefix = "transformer.";

/// A tensor's shape as safetensors write it.
[[nodiscard]] inline std::vector<std::int64_t> shape_of(state::TensorLayout const& tensor) {
  return tensor.columns == 0 ? std::vector{tensor.rows} : std::vector{tensor.rows, tensor.columns};
}

}  // namespace offstage::huggingface
