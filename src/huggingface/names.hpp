#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "state/model_shape.hpp"

namespace offstage::huggingface {

constexpr char const* config_name = "config.json";
/// The configuration of PEFT's adapters, which transformers adds to weights beside it or elsewhere.
constexpr char const* adapter_name = "adapter_config.json";
constexpr char const* single_name = "model.safetensors";
constexpr char const* index_name = "model.safetensors.index.json";
/// Weights as transformers wrote them before safetensors, and DeepSpeed's zero_to_fp32.py does.
constexpr char const* torch_name = "pytorch_model.bin";
constexpr char const* torch_index_name = "pytorch_model.bin.index.json";
constexpr char const* head_name = "lm_head.weight";
constexpr char const* gpt2_prefix = "transformer.";
constexpr char const* llama_prefix = "model.";
/// Keys of a config.json: probabilities of dropout in training.
inline constexpr std::array gpt2_dropouts{"resid_pdrop", "embd_pdrop", "attn_pdrop"};
constexpr char const* llama_dropout = "attention_dropout";

/// A tensor's shape as safetensors write it.
[[nodiscard]] inline std::vector<std::int64_t> shape_of(state::TensorLayout const& tensor) {
  return tensor.columns == 0 ? std::vector{tensor.rows} : std::vector{tensor.rows, tensor.columns};
}

}  // namespace offstage::huggingface
