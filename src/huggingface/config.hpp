#pragma once

#include <string>
#include <string_view>

#include "base/dtype.hpp"
#include "state/model_shape.hpp"

namespace offstage::huggingface {

/// The model that a config.json describes (model_type llama, qwen2, qwen3, mistral, phi3, olmo2 or
/// gpt2). `path` is named in errors.
/// Errors: DataError naming the option, its value and what is supported: any option that would
///         change what the model computes and that Offstage does not have (windows of some layers,
///         kinds of RoPE scaling, biases, activations, GPT-2's scale_attn_by_inverse_layer_idx,
///         ...) is refused, never ignored; so is a missing or ill-typed size. Options that do not
///         change what is computed in training without dropout (token ids, dtype, dropout, cache,
///         names) are not looked at.
[[nodiscard]] state::ModelShape parse_config(std::string_view json, std::string const& path);

/// The dropout above 0 that a config.json names: "resid_pdrop=0.1, embd_pdrop=0.1"; empty: none.
/// Errors: DataError if it is no JSON.
[[nodiscard]] std::string dropout_in(std::string_view json, std::string const& path);

/// Facts of a config.json about the tokenizer. Tokens are JSON: a number, an array of numbers, or
/// null.
struct TokenIds {
  std::string bos = "null";
  std::string eos = "null";  ///< without one transformers stops nowhere by itself
  std::string pad = "null";
  std::string tokenizer_class{};  ///< empty: not there
};

/// config.json of this shape for transformers. model_type is gpt2, or of the LLaMA family the one
/// that has what the shape has, which a phi3 shares with others: qwen3 and olmo2 with norms of q
/// and k, qwen2 with their biases, else mistral with a window or with heads that do not divide the
/// hidden size, else llama.
[[nodiscard]] std::string config_json(state::ModelShape const& shape, DType dtype,
                                      TokenIds const& ids = {});

}  // namespace offstage::huggingface
