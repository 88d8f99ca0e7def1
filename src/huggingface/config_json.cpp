#include <nlohmann/json.hpp>

#include "huggingface/config.hpp"
#include "huggingface/names.hpp"

namespace offstage::huggingface {
namespace {

nlohmann::ordered_json rope_scaling_of(state::ModelShape const& shape) {
  switch (shape.rope_scaling) {
    case state::RopeScaling::linear:
      // By its older name, which all versions of transformers know; OLMo 2 took no other before 5.
      return {{"type", "linear"}, {"factor", shape.rope_factor}};
    case state::RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", shape.rope_factor},
              {"low_freq_factor", shape.rope_low_frequency},
              {"high_freq_factor", shape.rope_high_frequency},
              {"original_max_position_embeddings", shape.rope_original_sequence}};
    case state::RopeScaling::yarn:
      return {{"rope_type", "yarn"},
              {"factor", shape.rope_factor},
              {"beta_fast", shape.rope_high_frequency},
              {"beta_slow", shape.rope_low_frequency},
              {"original_max_position_embeddings", shape.rope_original_sequence},
              {"attention_factor", shape.rope_attention_factor}};
    case state::RopeScaling::none:
      break;
  }
  return nullptr;
}

void put_gpt2(nlohmann::ordered_json& config, state::ModelShape const& shape) {
  config["architectures"] = {"GPT2LMHeadModel"};
  config["model_type"] = "gpt2";
  config["n_layer"] = shape.layers;
  config["n_embd"] = shape.hidden;
  config["n_head"] = shape.heads;
  config["n_inner"] = shape.ffn_hidden;
  config["n_positions"] = shape.max_sequence;
  config["layer_norm_epsilon"] = shape.norm_epsilon;
  config["activation_function"] = shape.exact_gelu ? "gelu" : "gelu_new";
  for (char const* const dropout : gpt2_dropouts) {
    config[dropout] = 0.0;  // as it was trained; transformers' default is 0.1
  }
  config["scale_attn_weights"] = true;
  config["scale_attn_by_inverse_layer_idx"] = false;
}

struct KindNames {
  char const* model_type;
  char const* architecture;
};
/// The kind of the LLaMA family that has what the shape has.
KindNames kind_of(state::ModelShape const& shape) {
  if (shape.qk_norm == state::QkNorm::head) {
    return {"qwen3", "Qwen3ForCausalLM"};
  }
  if (shape.norms_after) {
    return {"olmo2", "Olmo2ForCausalLM"};
  }
  if (shape.qkv_bias) {
    return {"qwen2", "Qwen2ForCausalLM"};
  }
  // LlamaConfig of transformers refuses heads that do not divide the hidden size.
  bool const is_llama = shape.window == 0 && shape.hidden % shape.heads == 0;
  return is_llama ? KindNames{"llama", "LlamaForCausalLM"}
                  : KindNames{"mistral", "MistralForCausalLM"};
}

/// Options that some types alone have.
void put_variant(nlohmann::ordered_json& config, std::string const& type,
                 state::ModelShape const& shape) {
  bool const window = shape.window > 0;
  if (type == "qwen2" || type == "qwen3") {
    config["use_sliding_window"] = window;
    if (window) {
      config["max_window_layers"] = 0;  // all layers have it
    }
  }
  if (window) {
    config["sliding_window"] = shape.window;
  } else if (type == "mistral") {
    config["sliding_window"] = nullptr;  // left out, it would be 4096
  }
  if (type == "llama" || type == "qwen3" || type == "olmo2") {
    config["attention_bias"] = false;
  }
  if (type == "llama") {
    config["mlp_bias"] = false;
  }
}

void put_llama(nlohmann::ordered_json& config, state::ModelShape const& shape) {
  auto const [type, architecture] = kind_of(shape);
  config["architectures"] = {architecture};
  config["model_type"] = type;
  config["num_hidden_layers"] = shape.layers;
  config["hidden_size"] = shape.hidden;
  config["num_attention_heads"] = shape.heads;
  config["num_key_value_heads"] = shape.kv_heads;
  config["head_dim"] = shape.head_dim();
  config["intermediate_size"] = shape.ffn_hidden;
  config["max_position_embeddings"] = shape.max_sequence;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = shape.norm_epsilon;
  config["rope_theta"] = shape.rope_theta;
  config["rope_scaling"] = rope_scaling_of(shape);
  put_variant(config, type, shape);
}

char const* torch_name_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::fp16:
      return "float16";
    case DType::fp32:
      break;
  }
  return "float32";
}

}  // namespace

std::string config_json(state::ModelShape const& shape, DType dtype, TokenIds const& ids) {
  nlohmann::ordered_json config;
  if (shape.family == state::Family::gpt2) {
    put_gpt2(config, shape);
  } else {
    put_llama(config, shape);
  }
  config["vocab_size"] = shape.vocab;
  config["tie_word_embeddings"] = shape.tied_head;
  // Null where nobody knows the tokenizer: the defaults of transformers would name tokens.
  config["bos_token_id"] = nlohmann::ordered_json::parse(ids.bos);
  config["eos_token_id"] = nlohmann::ordered_json::parse(ids.eos);
  config["pad_token_id"] = nlohmann::ordered_json::parse(ids.pad);
  if (!ids.tokenizer_class.empty()) {
    config["tokenizer_class"] = ids.tokenizer_class;  // AutoTokenizer goes by it
  }
  config["torch_dtype"] = torch_name_of(dtype);
  return config.dump(2) + "\n";
}

}  // namespace offstage::huggingface
