#include "huggingface/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "huggingface/sample.hpp"

namespace offstage::huggingface {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string const llama =
    R"("architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const qwen2 =
    R"("architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const qwen3 =
    R"("architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const mistral =
    R"("architectures":["MistralForCausalLM"],"model_type":"mistral","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const phi3 =
    R"("architectures":["Phi3ForCausalLM"],"model_type":"phi3","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const olmo2 =
    R"("architectures":["Olmo2ForCausalLM"],"model_type":"olmo2","vocab_size":256,)"
    R"("hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
    R"("max_position_embeddings":128)";
std::string const gpt2 =
    R"("architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":256,"n_embd":32,)"
    R"("n_layer":2,"n_head":4,"n_positions":64)";

state::ModelShape parse(std::string const& base, std::string const& more = "") {
  return parse_config(fmt::format("{{{}{}{}}}", base, more.empty() ? "" : ",", more),
                      "config.json");
}
std::string refusal(std::string const& base, std::string const& more) {
  return message_of<DataError>([&] { (void)parse(base, more); });
}

TEST(Config, ReadsLlamaWithTheDefaultsOfTransformers) {
  state::ModelShape const shape = parse(llama);
  state::ModelShape const expected{.family = state::Family::llama,
                                   .layers = 2,
                                   .hidden = 32,
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .ffn_hidden = 64,
                                   .vocab = 256,
                                   .max_sequence = 128,
                                   .norm_epsilon = 1e-6};
  EXPECT_EQ(shape, expected);
}

TEST(Config, ReadsQwen2WithItsBiases) {
  state::ModelShape const shape =
      parse(qwen2, R"("use_sliding_window":false,"sliding_window":4096,"max_window_layers":1,)"
                   R"("num_key_value_heads":2,"tie_word_embeddings":true,"rope_theta":1000000.0,)"
                   R"("layer_types":["full_attention","full_attention"],"torch_dtype":"bfloat16")");
  EXPECT_TRUE(shape.qkv_bias);
  EXPECT_TRUE(shape.tied_head);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.rope_theta, 1e6);
}

TEST(Config, ReadsQwen3WithItsNormsAndHeadsOfTheirOwnWidth) {
  state::ModelShape const shape =
      parse(qwen3, R"("head_dim":16,"attention_bias":false,"sliding_window":null,)"
                   R"("use_sliding_window":false,"max_window_layers":28,"num_key_value_heads":2)");
  EXPECT_EQ(shape.qk_norm, state::QkNorm::head);
  EXPECT_FALSE(shape.qkv_bias);
  EXPECT_EQ(shape.head_dim(), 16);
  EXPECT_EQ(parse(qwen3).head_dim(), 128) << "as transformers has it where the file says nothing";
  EXPECT_EQ(parse(llama, R"("head_dim":16)").head_dim(), 16);
}

TEST(Config, ReadsWindows) {
  EXPECT_EQ(parse(mistral).window, 4096) << "as transformers has it where the file says nothing";
  EXPECT_EQ(parse(mistral, R"("sliding_window":null)").window, 0);
  EXPECT_EQ(parse(mistral, R"("sliding_window":16)").window, 16);
  EXPECT_EQ(parse(qwen2, R"("use_sliding_window":true,"sliding_window":8)").window, 0)
      << "max_window_layers is 28 where the file says nothing";
  EXPECT_EQ(parse(qwen2, R"("use_sliding_window":true,"max_window_layers":0)").window, 4096)
      << "as transformers has it where the file says nothing";
  EXPECT_EQ(
      parse(qwen3, R"("use_sliding_window":true,"sliding_window":8,"max_window_layers":0)").window,
      8);
}

TEST(Config, ReadsPhi3AsLlamaOrMistral) {
  auto const phi4 =
      parse(phi3, R"("num_key_value_heads":2,"rope_theta":250000,"sliding_window":null,)"
                  R"("original_max_position_embeddings":128,"resid_pdrop":0.0,)"
                  R"("embd_pdrop":0.0,"rope_scaling":null,"attention_bias":false)");
  EXPECT_EQ(phi4.norm_epsilon, 1e-5) << "as transformers has it where the file says nothing";
  EXPECT_EQ(phi4.window, 0);
  EXPECT_EQ(phi4.kv_heads, 2);
  EXPECT_THAT(config_json(phi4, DType::fp32), HasSubstr("LlamaForCausalLM"));
  auto const mini = parse(phi3, R"("sliding_window":47)");
  EXPECT_EQ(mini.window, 47);
  EXPECT_THAT(config_json(mini, DType::fp32), HasSubstr("MistralForCausalLM"));
}

TEST(Config, ReadsOlmo2WithNormsBehindItsLayers) {
  auto const shape = parse(olmo2, R"("attention_bias":false)");
  EXPECT_TRUE(shape.norms_after);
  EXPECT_EQ(shape.qk_norm, state::QkNorm::all);
  EXPECT_EQ(shape.norm_epsilon, 1e-5);
}

TEST(Config, ReadsLinearAndYarnScaling) {
  auto const linear = parse(llama, R"("rope_scaling":{"type":"linear","factor":2.0})");
  EXPECT_EQ(linear.rope_scaling, state::RopeScaling::linear);
  EXPECT_EQ(linear.rope_factor, 2.0);
  auto const yarn = parse(llama, R"("rope_scaling":{"rope_type":"yarn","factor":4.0,)"
                                 R"("original_max_position_embeddings":32})");
  EXPECT_EQ(yarn.rope_scaling, state::RopeScaling::yarn);
  EXPECT_EQ(yarn.rope_high_frequency, 32.0);
  EXPECT_EQ(yarn.rope_original_sequence, 32);
  EXPECT_DOUBLE_EQ(yarn.rope_attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(parse_config(config_json(yarn, DType::fp32), "again"), yarn);
  EXPECT_EQ(parse_config(config_json(linear, DType::fp32), "again"), linear);
  EXPECT_THAT(config_json(linear, DType::fp32), HasSubstr(R"("type": "linear")"))
      << "OLMo 2 refuses rope_type in transformers 4";
}

TEST(Config, TakesKeysOfToolsThatChangeNothing) {
  EXPECT_EQ(parse(llama, R"("unsloth_fixed":true,"unsloth_version":"2025.1",)"
                         R"("auto_map":{"AutoModel":"x.y"})"),
            parse(llama));
}

TEST(Config, TakesOtherNamesOfTheSame) {
  EXPECT_EQ(parse(llama, R"("pretraining_tp":2,"hidden_act":"swish")"), parse(llama));
  EXPECT_EQ(parse(mistral, R"("attention_bias":false)"), parse(mistral));
  for (std::string const name : {"LlamaModel", "LLaMAForCausalLM"}) {
    std::string other = llama;
    other.replace(other.find("LlamaForCausalLM"), 16, name);
    EXPECT_EQ(parse(other), parse(llama)) << name;
  }
}

TEST(Config, NamesDropoutAboveZero) {
  EXPECT_EQ(dropout_in(R"({"attn_pdrop":0.25,"resid_pdrop":0.1,"embd_pdrop":0.0})", "config.json"),
            "resid_pdrop=0.1, attn_pdrop=0.25");
  EXPECT_EQ(dropout_in(R"({"attention_dropout":0.5})", "config.json"), "attention_dropout=0.5");
  EXPECT_EQ(dropout_in(R"({"attention_dropout":0,"resid_pdrop":null})", "config.json"), "");
}

TEST(Config, IsWrittenWithoutTheDropoutThatGpt2HasByDefault) {
  auto const written = config_json(parse(gpt2), DType::fp32);
  for (char const* const key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    EXPECT_THAT(written, HasSubstr(fmt::format(R"("{}": 0.0)", key)));
  }
}

TEST(Config, IsWrittenAsTransformersTakesIt) {
  EXPECT_THAT(config_json(parse(olmo2), DType::fp32), HasSubstr(R"("pad_token_id": null)"))
      << "left out, it would be 1";
  state::ModelShape wide = parse(llama, R"("head_dim":16)");
  EXPECT_THAT(config_json(wide, DType::fp32), HasSubstr(R"("model_type": "llama")"));
  wide.hidden = 30;  // no multiple of the heads, which LlamaConfig refuses
  EXPECT_THAT(config_json(wide, DType::fp32), AllOf(HasSubstr(R"("model_type": "mistral")"),
                                                    HasSubstr(R"("sliding_window": null)")));
  EXPECT_EQ(parse_config(config_json(wide, DType::fp32), "again"), wide);
}

TEST(Config, ReadsGpt2WithATiedHeadAndFourTimesTheWidth) {
  state::ModelShape const shape =
      parse(gpt2, R"("n_inner":null,"resid_pdrop":0.1,"n_ctx":64,"summary_type":"cls_index")");
  EXPECT_EQ(shape.family, state::Family::gpt2);
  EXPECT_TRUE(shape.tied_head);
  EXPECT_EQ(shape.ffn_hidden, 128);
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.max_sequence, 64);
  EXPECT_EQ(shape.norm_epsilon, 1e-5);
  EXPECT_EQ(parse(gpt2, R"("n_inner":96)").ffn_hidden, 96);
  EXPECT_FALSE(parse(gpt2, R"("tie_word_embeddings":false)").tied_head);
}

TEST(Config, KnowsWhichGeluGpt2Has) {
  EXPECT_FALSE(parse(gpt2).exact_gelu);
  for (char const* const word : {"gelu_new", "gelu_pytorch_tanh"}) {
    EXPECT_FALSE(parse(gpt2, fmt::format(R"("activation_function":"{}")", word)).exact_gelu);
  }
  state::ModelShape const cerebras = parse(gpt2, R"("activation_function":"gelu")");
  EXPECT_TRUE(cerebras.exact_gelu);
  std::string const written = config_json(cerebras, DType::fp32);
  EXPECT_THAT(written, HasSubstr(R"("activation_function": "gelu",)"));
  EXPECT_EQ(parse_config(written, "again"), cerebras);
}

TEST(Config, ReadsRopeOfOldAndNewVersions) {
  EXPECT_EQ(parse(llama, R"("rope_theta":5e5,"rope_scaling":null)").rope_theta, 5e5);
  EXPECT_EQ(
      parse(llama, R"("rope_parameters":{"rope_theta":5e5,"rope_type":"default"})").rope_theta,
      5e5);
  for (char const* type : {"type", "rope_type"}) {
    state::ModelShape const shape =
        parse(llama, std::string{R"("rope_theta":5e5,"rope_scaling":{")"} + type +
                         R"(":"llama3","factor":32.0,"low_freq_factor":1.0,)"
                         R"("high_freq_factor":4,"original_max_position_embeddings":64})");
    EXPECT_EQ(shape.rope_scaling, state::RopeScaling::llama3);
    EXPECT_EQ(shape.rope_factor, 32.0);
    EXPECT_EQ(shape.rope_high_frequency, 4.0);
    EXPECT_EQ(shape.rope_original_sequence, 64);
  }
}

TEST(Config, TakesWhatPublishedModelsCarryAlong) {
  // gpt2-large and distilgpt2; SmolLM; the first LLaMA.
  state::ModelShape const plain_gpt2 = parse(gpt2);
  EXPECT_EQ(parse(gpt2, R"("n_special":0,"predict_special_tokens":true,"output_past":true)"),
            plain_gpt2);
  EXPECT_EQ(parse(gpt2, R"("_num_labels":1,"id2label":{"0":"LABEL_0"},"num_labels":1)"),
            plain_gpt2);
  state::ModelShape const plain_llama = parse(llama);
  EXPECT_EQ(parse(llama, R"("is_llama_config":true,"rope_interleaved":false,"head_dim":8,)"
                         R"("transformers.js_config":{"kv_cache_dtype":{"q4f16":"float16"}})"),
            plain_llama);
  EXPECT_EQ(parse(llama, R"("max_sequence_length":128,"pad_token_id":-1)"), plain_llama);
}

TEST(Config, RefusesWhatWouldChangeTheModelByName) {
  struct Case {
    std::string const& base;
    char const* more;
    char const* reason;
  };
  // clang-format off
  for (Case const& wrong : {
    Case{llama, R"("hidden_act":"gelu")", "hidden_act=\"gelu\" is not supported"},
    Case{llama, R"("attention_bias":true)", "attention_bias=true"},
    Case{llama, R"("mlp_bias":true)", "mlp_bias=true"},
    Case{llama, R"("head_dim":7)", "model.head-dim=7 must be even"},
    Case{llama, R"("head_dim":0)", "head_dim=0 must be a whole number"},
    Case{qwen3, R"("attention_bias":true)", "attention_bias=true"},
    Case{qwen3, R"("use_sliding_window":true,"sliding_window":8,"max_window_layers":1)", "use_sliding_window=true with max_window_layers=1"},
    Case{mistral, R"("layer_types":["full_attention","sliding_attention"])", "layer_types="},
    Case{mistral, R"("sliding_window":0)", "sliding_window=0 must be a whole number"},
    Case{mistral, R"("attention_bias":true)", "attention_bias=true is not supported"},
    Case{olmo2, R"("attention_bias":true)", "attention_bias=true"},
    Case{olmo2, R"("sliding_window":8)", "sliding_window=8 is not known"},
    Case{phi3, R"("partial_rotary_factor":0.75)", "partial_rotary_factor=0.75"},
    Case{phi3, R"("rope_scaling":{"type":"longrope","short_factor":[1.0]})", "rope_scaling.type=\"longrope\" is not supported"},
    Case{phi3, R"("rope_scaling":{"type":"yarn","factor":2.0})", "a phi3 must have rope_type \"default\""},
    Case{phi3, R"("attention_bias":true)", "attention_bias=true"},
    Case{llama, R"("partial_rotary_factor":0.5)", "partial_rotary_factor=0.5"},
    Case{llama, R"("rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5})", "rope_parameters.partial_rotary_factor=0.5"},
    Case{llama, R"("rope_scaling":{"type":"dynamic","factor":2.0})", "rope_scaling.type=\"dynamic\" is not supported"},
    Case{llama, R"("rope_scaling":{"rope_type":"linear"})", "rope_scaling.factor is missing"},
    Case{llama, R"("rope_scaling":{"rope_type":"yarn","factor":2.0,"mscale":1.0})", "rope_scaling.mscale=1.0 is not known"},
    Case{llama, R"("rope_scaling":{"rope_type":"yarn","factor":2.0,"truncate":false})", "rope_scaling.truncate=false"},
    Case{llama, R"("rope_scaling":{"rope_type":"llama3","factor":2.0})", "rope_scaling.low_freq_factor is missing"},
    Case{llama, R"("rope_scaling":{"rope_type":"default","mystery":2.0})", "rope_scaling.mystery=2.0 is not known"},
    Case{llama, R"("rope_scaling":{"rope_type":"default","type":"llama3"})", "contradicts"},
    Case{llama, R"("rope_theta":1e4,"rope_parameters":{"rope_theta":5e5})", "contradicts rope_theta=10000"},
    Case{llama, R"("rope_scaling":2)", "must be an object"},
    Case{llama, R"("rope_theta":0)", "rope_theta=0 must be a number above 0"},
    Case{llama, R"("quantization_config":{"bits":4})", "says that the weights are quantized, which are not read; dequantize"},
    Case{llama, R"("sliding_window":4096)", "sliding_window=4096 is not known"},
    Case{llama, R"("mystery":true)", "mystery=true is not known"},
    Case{llama, R"("num_key_value_heads":3)", "model.kv-heads=3 does not divide"},
    Case{llama, R"("num_key_value_heads":0)", "num_key_value_heads=0 must be a whole number"},
    Case{llama, R"("tie_word_embeddings":1)", "tie_word_embeddings=1 must be true or false"},
    Case{llama, R"("rms_norm_eps":"small")", "rms_norm_eps=\"small\" must be a number"},
    Case{qwen2, R"("use_sliding_window":1)", "use_sliding_window=1 must be true or false"},
    Case{qwen2, R"("layer_types":["full_attention","sliding_attention"])", "layer_types="},
    Case{qwen2, R"("attention_bias":true)", "attention_bias=true"},
    Case{gpt2, R"("activation_function":"relu")", "activation_function=\"relu\""},
    Case{gpt2, R"("scale_attn_weights":false)", "scale_attn_weights=false"},
    Case{gpt2, R"("scale_attn_by_inverse_layer_idx":true)", "scale_attn_by_inverse_layer_idx=true"},
    Case{gpt2, R"("add_cross_attention":true)", "add_cross_attention=true"},
    Case{gpt2, R"("pruned_heads":{"0":[1]})", "pruned_heads="},
    Case{gpt2, R"("n_inner":4000000000)", "n_inner=4000000000"},
    Case{gpt2, R"("n_inner":1e400)", "no JSON"},
    Case{gpt2, R"("n_inner":)", "(unexpected '}')"},
    Case{gpt2, R"("n_inner":96,"n_inner":97)", "has the key 'n_inner' twice"},
  }) {
    // clang-format on
    EXPECT_THAT(refusal(wrong.base, wrong.more),
                AllOf(StartsWith("config.json: "), HasSubstr(wrong.reason)))
        << wrong.more;
  }
}

TEST(Config, RefusesOtherKindsOfModelsWithTheListOfKnownOnes) {
  EXPECT_THAT(refusal(R"("model_type":"mixtral")", R"("sliding_window":null)"),
              AllOf(HasSubstr("\"mixtral\""),
                    HasSubstr("llama, qwen2, qwen3, mistral, phi3, olmo2 and gpt2")));
  EXPECT_THAT(refusal(R"("a":1)", ""), HasSubstr("model_type is missing"));
  EXPECT_THAT(
      refusal(R"("model_type":"llama","architectures":["LlamaForSequenceClassification"])", ""),
      HasSubstr(R"(it must be ["LlamaForCausalLM"])"));
  EXPECT_THAT(refusal(R"("model_type":"gpt2")", ""), HasSubstr("n_layer is missing"));
}

TEST(Config, RefusesWhatIsNoObject) {
  for (char const* text : {"", "{", "[]", "3", "{} {}", "{\"a\":}"}) {
    EXPECT_THAT(message_of<DataError>([&] { (void)parse_config(text, "config.json"); }),
                AllOf(StartsWith("config.json: "), HasSubstr("JSON")))
        << text;
  }
  EXPECT_THAT(message_of<DataError>(
                  [&] { (void)parse_config("{\"a\":" + std::string(100, '['), "config.json"); }),
              HasSubstr("levels"));
}

TEST(Config, ReadsBackWhatItWrites) {
  for (std::string const& base : {llama, llama + R"(,"head_dim":16)", qwen2, qwen3,
                                  qwen3 + R"(,"use_sliding_window":true,"max_window_layers":0)",
                                  mistral, phi3, olmo2, gpt2}) {
    for (char const* tied : {"true", "false"}) {
      state::ModelShape const shape = parse(base, std::string{R"("tie_word_embeddings":)"} + tied);
      EXPECT_EQ(parse_config(config_json(shape, DType::bf16), "again"), shape);
    }
  }
  state::ModelShape scaled = parse(llama);
  scaled.rope_scaling = state::RopeScaling::llama3;
  scaled.rope_factor = 32.0;
  scaled.norm_epsilon = 1.0 / 3.0;
  EXPECT_EQ(parse_config(config_json(scaled, DType::fp32), "again"), scaled);
  EXPECT_THAT(config_json(scaled, DType::fp16), HasSubstr("\"float16\""));
}

}  // namespace
}  // namespace offstage::huggingface
