#include "huggingface/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "huggingface/json_text.hpp"
#include "huggingface/names.hpp"

namespace offstage::huggingface {
namespace {

using Tree = nlohmann::json;

// Beyond any model, and no product of two of them overflows before state::validate looks.
constexpr std::int64_t largest_size = std::int64_t{1} << 30;

// Keys of any model that say nothing about what it computes in training without dropout: names and
// versions, kinds of numbers, tokens, how text is sampled from it, how it was initialised.
constexpr std::array harmless{"_name_or_path",
                              "_commit_hash",
                              "transformers_version",
                              "auto_map",
                              "unsloth_fixed",
                              "unsloth_version",
                              "_attn_implementation_internal",
                              "_flash_attn_2_enabled",
                              "_from_model_config",
                              "torch_dtype",
                              "dtype",
                              "bos_token_id",
                              "eos_token_id",
                              "pad_token_id",
                              "unk_token_id",
                              "sep_token_id",
                              "cls_token_id",
                              "mask_token_id",
                              "decoder_start_token_id",
                              "forced_bos_token_id",
                              "forced_eos_token_id",
                              "tokenizer_class",
                              "prefix",
                              "use_cache",
                              "initializer_range",
                              llama_dropout,
                              "output_attentions",
                              "output_hidden_states",
                              "output_past",
                              "return_dict",
                              "torchscript",
                              "use_bfloat16",
                              "tf_legacy_loss",
                              "_attn_implementation",
                              "attn_implementation",
                              "_attn_implementation_autoset",
                              "chunk_size_feed_forward",
                              "is_decoder",
                              "tie_encoder_decoder",
                              "task_specific_params",
                              "finetuning_task",
                              "problem_type",
                              "id2label",
                              "label2id",
                              "num_labels",
                              "_num_labels",
                              "max_length",
                              "min_length",
                              "do_sample",
                              "early_stopping",
                              "num_beams",
                              "num_beam_groups",
                              "diversity_penalty",
                              "temperature",
                              "top_k",
                              "top_p",
                              "typical_p",
                              "repetition_penalty",
                              "length_penalty",
                              "no_repeat_ngram_size",
                              "encoder_no_repeat_ngram_size",
                              "bad_words_ids",
                              "num_return_sequences",
                              "output_scores",
                              "return_dict_in_generate",
                              "remove_invalid_values",
                              "exponential_decay_length_penalty",
                              "suppress_tokens",
                              "begin_suppress_tokens"};

constexpr std::array harmless_in_gpt2{"n_ctx",
                                      gpt2_dropouts[0],
                                      gpt2_dropouts[1],
                                      gpt2_dropouts[2],
                                      "summary_activation",
                                      "summary_first_dropout",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "reorder_and_upcast_attn",
                                      "gradient_checkpointing",
                                      "n_special",
                                      "predict_special_tokens"};

// Old names of max_position_embeddings, and of the trainer and the library that wrote the file.
// pretraining_tp only cuts products into parts.
constexpr std::array harmless_in_llama{"pretraining_tp", "max_sequence_length", "is_llama_config",
                                       "transformers.js_config"};

// The length before RoPE was scaled, which no phi3 that is read here did.
constexpr std::array harmless_in_phi3{"original_max_position_embeddings", gpt2_dropouts[0],
                                      gpt2_dropouts[1]};

// Where a file says nothing, as in transformers.
constexpr std::int64_t qwen3_head_dim = 128;
constexpr std::int64_t qwen_window_layers = 28;
constexpr std::int64_t usual_window = 4096;  // of Mistral and Qwen

/// The library's own comparison makes a value of the text, where nothing may be thrown.
bool is_text(Tree const& value, std::string_view text) {
  return value.is_string() && value.get_ref<std::string const&>() == text;
}

/// A value for an error line.
std::string text_of(Tree const& value) {
  return printable_name(value.dump(-1, ' ', true, Tree::error_handler_t::replace));
}

/// Gives the values of an object one by one, and knows in the end which nobody asked for. A null
/// counts as left out, as it does in transformers.
class Options {
 public:
  /// `inside` is "" or "rope_scaling."; errors write it before the keys.
  Options(Tree const& object, std::string inside, std::string const& path)
      : object_{object}, inside_{std::move(inside)}, path_{path} {}

  [[nodiscard]] Tree const* find(char const* key) {
    looked_at_.insert(key);
    auto const found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] bool is_null(char const* key) const {
    auto const found = object_.find(key);
    return found != object_.end() && found->is_null();
  }

  [[nodiscard]] DataError wrong(char const* key, Tree const& value,
                                std::string const& right) const {
    return DataError{fmt::format("{}: {}{}={} {}", path_, inside_, key, text_of(value), right)};
  }
  [[nodiscard]] DataError missing(char const* key) const {
    return DataError{fmt::format("{}: {}{} is missing", path_, inside_, key)};
  }

  [[nodiscard]] std::int64_t size(char const* key, std::int64_t otherwise = 0) {
    Tree const* const value = find(key);
    if (value == nullptr) {
      if (otherwise == 0) {
        throw missing(key);
      }
      return otherwise;
    }
    if (!value->is_number_integer() || *value < 1 || *value > largest_size) {
      throw wrong(key, *value, fmt::format("must be a whole number from 1 to {}", largest_size));
    }
    return value->get<std::int64_t>();
  }

  [[nodiscard]] double positive(char const* key, std::optional<double> otherwise) {
    Tree const* const value = find(key);
    if (value == nullptr) {
      if (!otherwise) {
        throw missing(key);
      }
      return *otherwise;
    }
    if (!value->is_number() || !(value->get<double>() > 0.0)) {
      throw wrong(key, *value, "must be a number above 0");
    }
    return value->get<double>();
  }

  [[nodiscard]] bool truth(char const* key, bool otherwise) {
    Tree const* const value = find(key);
    if (value != nullptr && !value->is_boolean()) {
      throw wrong(key, *value, "must be true or false");
    }
    return value == nullptr ? otherwise : value->get<bool>();
  }

  /// The option may be left out or have one of these values.
  void only(char const* key, std::vector<Tree> const& allowed) {
    Tree const* const value = find(key);
    if (value != nullptr && std::ranges::find(allowed, *value) == allowed.end()) {
      std::string list = text_of(allowed.front());
      for (std::size_t i = 1; i < allowed.size(); ++i) {
        list += " or " + text_of(allowed[i]);
      }
      throw wrong(key, *value, "is not supported; it must be " + list);
    }
  }

  /// The option may be left out or be a list of one of these texts.
  void only_list_of(char const* key, std::span<char const* const> texts) {
    Tree const* const value = find(key);
    bool const good = value == nullptr || (value->is_array() && value->size() == 1 &&
                                           std::ranges::any_of(texts, [&](char const* text) {
                                             return is_text(value->front(), text);
                                           }));
    if (!good) {
      throw wrong(key, *value,
                  fmt::format(R"(is not supported; it must be ["{}"])", texts.front()));
    }
  }

  void ignore(std::span<char const* const> keys) { looked_at_.insert(keys.begin(), keys.end()); }

  /// Errors: DataError naming a key that nobody asked for and that is not null.
  void require_no_others() const {
    for (auto const& [key, value] : object_.items()) {
      if (!looked_at_.contains(key) && !value.is_null()) {
        throw DataError{fmt::format(
            "{}: {}{}={} is not known here and might change what the model computes; take it out "
            "if it does not",
            path_, inside_, printable_name(key), text_of(value))};
      }
    }
  }

 private:
  Tree const& object_;
  std::string inside_;
  std::string const& path_;
  std::set<std::string> looked_at_;
};

void take_linear(Options& rope, state::ModelShape& shape) {
  shape.rope_scaling = state::RopeScaling::linear;
  shape.rope_factor = rope.positive("factor", {});
}

/// YaRN; where attention_factor is left out, transformers computes it of the others.
void take_yarn(Options& rope, state::ModelShape& shape) {
  shape.rope_scaling = state::RopeScaling::yarn;
  shape.rope_factor = rope.positive("factor", {});
  shape.rope_high_frequency = rope.positive("beta_fast", 32.0);
  shape.rope_low_frequency = rope.positive("beta_slow", 1.0);
  shape.rope_original_sequence = rope.size("original_max_position_embeddings", shape.max_sequence);
  shape.rope_attention_factor =
      rope.positive("attention_factor", state::yarn_attention_factor(shape.rope_factor));
  rope.only("truncate", {true});
}

void take_llama3(Options& rope, state::ModelShape& shape) {
  shape.rope_scaling = state::RopeScaling::llama3;
  shape.rope_factor = rope.positive("factor", {});
  shape.rope_low_frequency = rope.positive("low_freq_factor", {});
  shape.rope_high_frequency = rope.positive("high_freq_factor", {});
  shape.rope_original_sequence = rope.size("original_max_position_embeddings");
}

/// One of the objects that say how RoPE goes; `theta` is of the places before, if any.
void take_rope(Options& options, char const* key, state::ModelShape& shape,
               std::optional<double>& theta, std::string const& path) {
  Tree const* const value = options.find(key);
  if (value == nullptr) {
    return;
  }
  if (!value->is_object()) {
    throw options.wrong(key, *value, "must be an object or null");
  }
  Options rope{*value, fmt::format("{}.", key), path};
  if (Tree const* const base = rope.find("rope_theta")) {
    double const here = rope.positive("rope_theta", {});
    if (theta && *theta != here) {
      throw rope.wrong("rope_theta", *base, fmt::format("contradicts rope_theta={}", *theta));
    }
    theta = here;
  }
  rope.only("rope_type", {"default", "linear", "llama3", "yarn"});
  rope.only("type", {"default", "linear", "llama3", "yarn"});
  rope.only("partial_rotary_factor", {1});
  Tree const* const kind = rope.find("rope_type");
  Tree const* const older = rope.find("type");
  if (kind != nullptr && older != nullptr && *kind != *older) {
    throw rope.wrong("type", *older, fmt::format("contradicts rope_type={}", text_of(*kind)));
  }
  Tree const* const named = kind != nullptr ? kind : older;
  auto const is = [&](char const* text) { return named != nullptr && is_text(*named, text); };
  if (is("llama3")) {
    take_llama3(rope, shape);
  } else if (is("linear")) {
    take_linear(rope, shape);
  } else if (is("yarn")) {
    take_yarn(rope, shape);
  }
  rope.require_no_others();
}

void take_all_rope(Options& options, state::ModelShape& shape, std::string const& path) {
  std::optional<double> theta;
  if (options.find("rope_theta") != nullptr) {
    theta = options.positive("rope_theta", {});
  }
  Tree const* const older = options.find("rope_scaling");
  Tree const* const newer = options.find("rope_parameters");
  if (older != nullptr && newer != nullptr && *older != *newer) {
    throw options.wrong("rope_scaling", *older,
                        "contradicts rope_parameters; leave one of them out");
  }
  take_rope(options, "rope_scaling", shape, theta, path);
  take_rope(options, "rope_parameters", shape, theta, path);
  shape.rope_theta = theta.value_or(10'000.0);
}

/// Whether all layers have the window of a Qwen: those from max_window_layers on, where
/// use_sliding_window is true. Errors: DataError if some have it and some have not.
bool takes_window(Options& options, std::int64_t layers) {
  Tree const* const first = options.find("max_window_layers");
  bool const is_null =
      options.find("sliding_window") == nullptr && options.is_null("sliding_window");
  if (!options.truth("use_sliding_window", false) || is_null) {
    return false;
  }
  auto const from = first != nullptr && first->is_number_integer() ? first->get<std::int64_t>()
                                                                   : qwen_window_layers;
  if (from > 0 && from < layers) {
    throw options.wrong("use_sliding_window", true,
                        fmt::format("with max_window_layers={} gives some of the {} layers a "
                                    "window and others none, which is not supported",
                                    from, layers));
  }
  return from <= 0;
}

/// Errors: DataError unless layer_types, if it is there, has this type alone.
void require_layers_of(Options& options, char const* type) {
  Tree const* const types = options.find("layer_types");
  if (types == nullptr) {
    return;
  }
  bool const alike = types->is_array() &&
                     std::ranges::all_of(*types, [&](Tree const& of) { return is_text(of, type); });
  if (!alike) {
    throw options.wrong("layer_types", *types,
                        fmt::format("is not supported; every layer must be \"{}\"", type));
  }
}

void take_qwen(Options& options, bool qwen3, state::ModelShape& shape) {
  shape.qkv_bias = !qwen3;
  shape.qk_norm = qwen3 ? state::QkNorm::head : state::QkNorm::none;
  bool const window = takes_window(options, shape.layers);
  shape.window = window ? options.size("sliding_window", usual_window) : 0;
  require_layers_of(options, window ? "sliding_attention" : "full_attention");
  options.only("attention_bias", {false});
  options.only("use_mrope", {false});
}

void take_mistral(Options& options, state::ModelShape& shape) {
  shape.window =
      options.is_null("sliding_window") ? 0 : options.size("sliding_window", usual_window);
  require_layers_of(options, shape.window > 0 ? "sliding_attention" : "full_attention");
  options.only("attention_bias", {false});
}

/// Phi-3 and Phi-4: a LLaMA whose files have q, k and v as one tensor, and gate and up as another.
/// Errors: DataError also for a scaling of RoPE that others have: transformers takes none of these.
void take_phi3(Options& options, state::ModelShape& shape) {
  bool const window = options.find("sliding_window") != nullptr;
  shape.window = window ? options.size("sliding_window") : 0;
  for (char const* const key : {"rope_scaling", "rope_parameters"}) {
    if (Tree const* const rope = options.find(key);
        rope != nullptr && shape.rope_scaling != state::RopeScaling::none) {
      throw options.wrong(key, *rope, "is not supported; a phi3 must have rope_type \"default\"");
    }
  }
  options.only("attention_bias", {false});
  options.ignore(harmless_in_phi3);
}

void take_olmo2(Options& options, state::ModelShape& shape) {
  shape.qk_norm = state::QkNorm::all;
  shape.norms_after = true;
  options.only("attention_bias", {false});
  require_layers_of(options, "full_attention");
}

void take_plain_llama(Options& options) {
  options.only("attention_bias", {false});
  options.only("mlp_bias", {false});
  options.ignore(harmless_in_llama);
  require_layers_of(options, "full_attention");
}

/// What tells the types of the LLaMA family from each other.
void take_variant(Options& options, std::string_view type, state::ModelShape& shape) {
  std::int64_t const derived = std::max<std::int64_t>(shape.hidden / shape.heads, 1);
  shape.set_head_dim(options.size("head_dim", type == "qwen3" ? qwen3_head_dim : derived));
  if (type == "qwen2" || type == "qwen3") {
    take_qwen(options, type == "qwen3", shape);
  } else if (type == "mistral") {
    take_mistral(options, shape);
  } else if (type == "phi3") {
    take_phi3(options, shape);
  } else if (type == "olmo2") {
    take_olmo2(options, shape);
  } else {
    take_plain_llama(options);
  }
}

state::ModelShape take_llama(Options& options, std::string_view type, std::string const& path) {
  state::ModelShape shape;
  shape.family = state::Family::llama;
  shape.layers = options.size("num_hidden_layers");
  shape.hidden = options.size("hidden_size");
  shape.heads = options.size("num_attention_heads");
  shape.kv_heads = options.size("num_key_value_heads", shape.heads);
  shape.ffn_hidden = options.size("intermediate_size");
  shape.vocab = options.size("vocab_size");
  shape.max_sequence = options.size("max_position_embeddings");
  shape.tied_head = options.truth("tie_word_embeddings", false);
  shape.norm_epsilon =
      options.positive("rms_norm_eps", type == "olmo2" || type == "phi3" ? 1e-5 : 1e-6);
  take_all_rope(options, shape, path);
  options.only("hidden_act", {"silu", "swish"});
  options.only("partial_rotary_factor", {1});
  options.only("rope_interleaved", {false});
  take_variant(options, type, shape);
  return shape;
}

state::ModelShape take_gpt2(Options& options) {
  state::ModelShape shape;
  shape.family = state::Family::gpt2;
  shape.layers = options.size("n_layer");
  shape.hidden = options.size("n_embd");
  shape.heads = options.size("n_head");
  shape.kv_heads = shape.heads;
  shape.ffn_hidden = options.size("n_inner", 4 * shape.hidden);
  shape.vocab = options.size("vocab_size");
  shape.max_sequence = options.size("n_positions");
  shape.tied_head = options.truth("tie_word_embeddings", true);
  shape.norm_epsilon = options.positive("layer_norm_epsilon", 1e-5);
  options.only("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu"});
  Tree const* const activation = options.find("activation_function");
  shape.exact_gelu = activation != nullptr && is_text(*activation, "gelu");
  options.only("scale_attn_weights", {true});
  options.only("scale_attn_by_inverse_layer_idx", {false});
  options.ignore(harmless_in_gpt2);
  return shape;
}

struct Kind {
  char const* model_type;
  /// The usual one, the one without a head, and an older one, or the usual one again.
  std::array<char const*, 3> architectures;
};
constexpr std::array<Kind, 7> kinds{{
    {"llama", {"LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"}},
    {"qwen2", {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForCausalLM"}},
    {"qwen3", {"Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForCausalLM"}},
    {"mistral", {"MistralForCausalLM", "MistralModel", "MistralForCausalLM"}},
    {"phi3", {"Phi3ForCausalLM", "Phi3Model", "Phi3ForCausalLM"}},
    {"olmo2", {"Olmo2ForCausalLM", "Olmo2Model", "Olmo2ForCausalLM"}},
    {"gpt2", {"GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"}},
}};

Kind const& take_kind(Options& options) {
  Tree const* const type = options.find("model_type");
  if (type == nullptr) {
    throw options.missing("model_type");
  }
  for (Kind const& kind : kinds) {
    if (is_text(*type, kind.model_type)) {
      options.only_list_of("architectures", kind.architectures);
      return kind;
    }
  }
  throw options.wrong(
      "model_type", *type,
      "is not supported; known are llama, qwen2, qwen3, mistral, phi3, olmo2 and gpt2");
}

}  // namespace

state::ModelShape parse_config(std::string_view json, std::string const& path) {
  JsonTree const parsed = parse_object(json, path);
  Tree const& object = *parsed;
  Options options{object, "", path};
  Kind const& kind = take_kind(options);
  std::string_view const type = kind.model_type;
  options.only("is_encoder_decoder", {false});
  options.only("add_cross_attention", {false});
  options.only("pruned_heads", {Tree::object()});
  options.ignore(harmless);
  if (Tree const* const quantized = options.find("quantization_config")) {
    throw options.wrong("quantization_config", *quantized,
                        "says that the weights are quantized, which are not read; dequantize the "
                        "model and save it again");
  }
  state::ModelShape const shape =
      type == "gpt2" ? take_gpt2(options) : take_llama(options, type, path);
  options.require_no_others();
  try {
    state::validate(shape);
  } catch (UsageError const& error) {
    throw DataError{fmt::format("{}: {}", path, error.what())};
  }
  return shape;
}

std::string dropout_in(std::string_view json, std::string const& path) {
  JsonTree const parsed = parse_object(json, path);
  std::vector<char const*> keys{gpt2_dropouts.begin(), gpt2_dropouts.end()};
  keys.push_back(llama_dropout);
  std::vector<std::string> found;
  for (char const* const key : keys) {
    auto const value = parsed->find(key);
    if (value != parsed->end() && value->is_number() && value->get<double>() > 0.0) {
      found.push_back(fmt::format("{}={}", key, text_of(*value)));
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace offstage::huggingface
