#include "model/tensors.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"

namespace offstage::model {

template <class Element>
template <class... Suffixes>
std::span<Element> LayerView<Element>::at(Suffixes... suffixes) const {
  std::int64_t begin = -1;
  std::int64_t end = -1;
  for (char const* const suffix : {suffixes...}) {
    state::TensorLayout const& tensor = layout_.tensor(suffix);
    require(end < 0 || tensor.offset == end, "LayerView: tensors do not stand side by side");
    begin = end < 0 ? tensor.offset : begin;
    end = tensor.offset + tensor.elements();
  }
  return memory_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

template <class Element>
EmbeddingTensors<Element> LayerView<Element>::embedding() const {
  if (dims_.family == state::Family::gpt2) {
    return {.table = at("wte.weight"), .positions = at("wpe.weight")};
  }
  return {.table = at("embed_tokens.weight"), .positions = {}};
}

template <class Element>
AttentionTensors<Element> LayerView<Element>::attention() const {
  if (dims_.family == state::Family::gpt2) {
    return {.norm = {at("ln_1.weight"), at("ln_1.bias")},
            .q_norm = {},
            .k_norm = {},
            .qkv = {at("attn.c_attn.weight"), at("attn.c_attn.bias")},
            .o = {at("attn.c_proj.weight"), at("attn.c_proj.bias")}};
  }
  bool const normalised = dims_.qk_norm != state::QkNorm::none;
  auto const norm = [&](char const* name) -> NormTensors<Element> {
    return {normalised ? at(name) : std::span<Element>{}, {}};
  };
  return {
      .norm = {at(dims_.norms_after ? "post_attention_layernorm.weight" : "input_layernorm.weight"),
               {}},
      .q_norm = norm("q_norm.weight"),
      .k_norm = norm("k_norm.weight"),
      .qkv = {at("q_proj.weight", "k_proj.weight", "v_proj.weight"),
              dims_.qkv_bias ? at("q_proj.bias", "k_proj.bias", "v_proj.bias")
                             : std::span<Element>{}},
      .o = {at("o_proj.weight"), {}}};
}

template <class Element>
MlpTensors<Element> LayerView<Element>::mlp() const {
  if (dims_.family == state::Family::gpt2) {
    return {.norm = {at("ln_2.weight"), at("ln_2.bias")},
            .up = {at("mlp.c_fc.weight"), at("mlp.c_fc.bias")},
            .down = {at("mlp.c_proj.weight"), at("mlp.c_proj.bias")}};
  }
  return {.norm = {at(dims_.norms_after ? "post_feedforward_layernorm.weight"
                                        : "post_attention_layernorm.weight"),
                   {}},
          .up = {at("gate_proj.weight", "up_proj.weight"), {}},
          .down = {at("down_proj.weight"), {}}};
}

template <class Element>
HeadTensors<Element> LayerView<Element>::head(std::span<Element> table) const {
  auto const matrix = table.empty() ? at("lm_head.weight") : table;
  if (dims_.family == state::Family::gpt2) {
    return {.norm = {at("ln_f.weight"), at("ln_f.bias")}, .matrix = matrix};
  }
  return {.norm = {at("norm.weight"), {}}, .matrix = matrix};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, LayerView)
template class LayerView<float const>;
template class LayerView<bfloat16 const>;
template class LayerView<float16 const>;
template class LayerView<double const>;

}  // namespace offstage::model
