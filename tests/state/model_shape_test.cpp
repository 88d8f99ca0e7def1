#include "state/model_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace offstage::state {
namespace {

ModelShape tiny() {
  return {.layers = 2,
          .hidden = 8,
          .heads = 4,
          .kv_heads = 2,
          .ffn_hidden = 12,
          .vocab = 10,
          .max_sequence = 16};
}

ModelShape tiny_gpt2() {
  ModelShape shape = tiny();
  shape.family = Family::gpt2;
  shape.kv_heads = shape.heads;
  shape.tied_head = true;
  return shape;
}

TEST(ModelShape, LaysOutABlockAsTwoLayersWithMatricesFirstAndFusableNeighbours) {
  auto const layers = layers_of(tiny());

  ASSERT_EQ(layers.size(), 6U);
  EXPECT_EQ(attention_layer(1), 3);
  EXPECT_EQ(mlp_layer(1), 4);
  LayerLayout const& attention = layers[3];
  EXPECT_EQ(attention.name, "attention of block 1");
  EXPECT_EQ(attention.block, 1);
  TensorLayout const& q = attention.tensor("q_proj.weight");
  TensorLayout const& k = attention.tensor("k_proj.weight");
  TensorLayout const& v = attention.tensor("v_proj.weight");
  EXPECT_EQ(q.name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(q.offset, 0);
  EXPECT_EQ(k.offset, 8 * 8);
  EXPECT_EQ(v.offset, 8 * 8 + 4 * 8);
  // q 64, k 32, v 32, o 64; then a norm of 8 that is not decayed.
  EXPECT_EQ(attention.decayed_elements, 64 + 32 + 32 + 64);
  EXPECT_EQ(attention.tensor("input_layernorm.weight").offset, attention.decayed_elements);
  EXPECT_EQ(attention.elements, attention.decayed_elements + 8);
  EXPECT_EQ(attention.chunks(), 1);
  EXPECT_EQ(attention.padded_elements(), 4096);

  LayerLayout const& mlp = layers[4];
  EXPECT_EQ(mlp.name, "MLP of block 1");
  EXPECT_EQ(mlp.block, 1);
  EXPECT_EQ(mlp.tensor("gate_proj.weight").offset, 0);
  EXPECT_EQ(mlp.tensor("up_proj.weight").offset, 12 * 8);
  EXPECT_EQ(mlp.decayed_elements, 3 * 96);
  EXPECT_EQ(mlp.tensor("post_attention_layernorm.weight").offset, mlp.decayed_elements);
  EXPECT_EQ(mlp.elements, mlp.decayed_elements + 8);
}

TEST(ModelShape, SaysWhichLayersAreOfABlock) {
  std::vector<std::int64_t> blocks;
  for (LayerLayout const& layer : layers_of(tiny())) {
    blocks.push_back(layer.block);
  }
  EXPECT_EQ(blocks, (std::vector<std::int64_t>{-1, 0, 0, 1, 1, -1}));
}

TEST(ModelShape, BiasesOfQwen2StandSideBySideBehindTheNorm) {
  ModelShape shape = tiny();
  shape.qkv_bias = true;
  LayerLayout const block = layers_of(shape)[1];
  std::int64_t const plain = layers_of(tiny())[1].elements;
  TensorLayout const& q = block.tensor("q_proj.bias");
  EXPECT_EQ(q.name, "model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(q.offset, plain);
  EXPECT_EQ(block.tensor("k_proj.bias").offset, plain + 8);
  EXPECT_EQ(block.tensor("v_proj.bias").offset, plain + 8 + 4);
  EXPECT_EQ(block.elements, plain + 8 + 4 + 4);
  EXPECT_EQ(q.columns, 0);
  EXPECT_FALSE(q.decayed);
  EXPECT_EQ(q.initial.kind, Initial::Kind::zeros);
}

TEST(ModelShape, HeadsOfAnyWidthHaveTheirNormsOfQwen3) {
  ModelShape shape = tiny();
  shape.set_head_dim(6);
  shape.qk_norm = QkNorm::head;
  LayerLayout const block = layers_of(shape)[1];
  EXPECT_EQ(block.tensor("q_proj.weight").rows, 4 * 6);
  EXPECT_EQ(block.tensor("k_proj.weight").rows, 2 * 6);
  EXPECT_EQ(block.tensor("o_proj.weight").columns, 4 * 6);
  TensorLayout const& norm = block.tensor("q_norm.weight");
  EXPECT_EQ(norm.name, "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(norm.rows, 6);
  EXPECT_EQ(norm.initial.kind, Initial::Kind::ones);
  EXPECT_EQ(block.tensor("k_norm.weight").offset, norm.offset + 6);
  EXPECT_EQ(block.elements, block.decayed_elements + 8 + 6 + 6);
}

TEST(ModelShape, AHeadSizeThatIsHiddenByHeadsIsNoneOfItsOwn) {
  ModelShape shape = tiny();
  shape.set_head_dim(2);
  EXPECT_EQ(shape, tiny());
  shape.set_head_dim(4);
  EXPECT_EQ(shape.head_dim(), 4);
  EXPECT_NO_THROW(validate(shape));
}

TEST(ModelShape, LaysOutGpt2AsHuggingFaceStoresIt) {
  auto const layers = layers_of(tiny_gpt2());
  ASSERT_EQ(layers.size(), 6U);

  LayerLayout const& embedding = layers.front();
  EXPECT_EQ(embedding.tensor("wte.weight").name, "transformer.wte.weight");
  EXPECT_EQ(embedding.tensor("wpe.weight").name, "transformer.wpe.weight");
  EXPECT_EQ(embedding.tensor("wpe.weight").rows, 16);
  EXPECT_EQ(embedding.tensor("wpe.weight").offset, 10 * 8);
  EXPECT_EQ(embedding.elements, 10 * 8 + 16 * 8);

  LayerLayout const& attention = layers[3];
  TensorLayout const& qkv = attention.tensor("attn.c_attn.weight");
  EXPECT_EQ(qkv.name, "transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(qkv.rows, 8);  // (in, out)
  EXPECT_EQ(qkv.columns, 24);
  EXPECT_EQ(attention.decayed_elements, 8 * 24 + 8 * 8);
  // A norm of weight and bias; biases of 24 and 8.
  EXPECT_EQ(attention.elements, attention.decayed_elements + 2 * 8 + 24 + 8);
  EXPECT_EQ(attention.tensor("ln_1.weight").initial.kind, Initial::Kind::ones);
  EXPECT_EQ(attention.tensor("ln_1.bias").initial.kind, Initial::Kind::zeros);

  LayerLayout const& mlp = layers[4];
  EXPECT_EQ(mlp.tensor("mlp.c_fc.weight").columns, 12);
  EXPECT_EQ(mlp.tensor("mlp.c_proj.weight").rows, 12);
  EXPECT_EQ(mlp.decayed_elements, 2 * 8 * 12);
  EXPECT_EQ(mlp.elements, mlp.decayed_elements + 2 * 8 + 12 + 8);
  EXPECT_EQ(mlp.tensor("ln_2.weight").initial.kind, Initial::Kind::ones);
  for (LayerLayout const& layer : layers) {
    for (TensorLayout const& tensor : layer.tensors) {
      EXPECT_EQ(tensor.decayed, tensor.columns > 0) << tensor.name;
    }
  }

  EXPECT_EQ(layers.back().elements, 16);
  EXPECT_EQ(layers.back().tensor("ln_f.bias").name, "transformer.ln_f.bias");
}

TEST(ModelShape, TiedHeadHasNoMatrixOfItsOwn) {
  ModelShape shape = tiny();
  auto const untied = layers_of(shape);
  shape.tied_head = true;
  auto const tied = layers_of(shape);

  EXPECT_EQ(tied.back().elements, 8);
  EXPECT_EQ(untied.back().elements, 8 + 80);
  EXPECT_EQ(count_parameters(untied) - count_parameters(tied), 80);
}

// A block's matrices, then its vectors: the seed's weights are those of models whose blocks are one
// layer.
TEST(ModelShape, NumbersTensorsThroughTheWholeModelBlockByBlock) {
  std::map<std::int64_t, std::string> names;
  for (LayerLayout const& layer : layers_of(tiny())) {
    for (TensorLayout const& tensor : layer.tensors) {
      EXPECT_TRUE(names.emplace(tensor.index, tensor.name).second) << tensor.name;
    }
  }
  ASSERT_EQ(names.size(), 1U + 2 * 9 + 2);
  EXPECT_EQ(names.rbegin()->first, 1 + 2 * 9 + 1);
  EXPECT_EQ(names[1 + 3], "model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(names[1 + 6], "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(names[1 + 7], "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(names[1 + 9], "model.layers.1.self_attn.q_proj.weight");
}

void expect_refused(ModelShape const& shape, char const* part) {
  try {
    validate(shape);
    FAIL() << "accepted; expected a message with " << part;
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

TEST(ModelShape, RefusesShapesThatCannotBeAndNamesTheKey) {
  EXPECT_NO_THROW(validate(tiny()));
  ModelShape shape = tiny();
  shape.heads = 3;
  expect_refused(shape, "model.heads=3 does not divide model.hidden=8; use 2 or 4");
  shape = tiny();
  shape.kv_heads = 3;
  expect_refused(shape, "model.kv-heads=3 does not divide model.heads=4; use 2 or 4");
  shape.kv_heads = 5;
  expect_refused(shape, "model.kv-heads=5 does not divide model.heads=4; use 4");
  shape = tiny();
  shape.heads = 8;
  expect_refused(shape,
                 "model.hidden=8 with model.heads=8 leaves an odd head size of 1; use "
                 "model.hidden=16, or model.heads=4");
  shape = tiny();
  shape.hidden = 60;
  expect_refused(shape,
                 "model.hidden=60 with model.heads=4 leaves an odd head size of 15; use "
                 "model.hidden=56 or 64, or model.heads=3 or 5");
  shape.hidden = 15;
  shape.heads = 3;
  expect_refused(shape, "leaves an odd head size of 5; use model.hidden=12 or 18");
  shape = tiny();
  shape.layers = 0;
  expect_refused(shape, "model.layers=0");
}

TEST(ModelShape, RefusesARopeThatCannotBe) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  ModelShape const plain = tiny();
  ModelShape shape = plain;
  shape.rope_theta = 0.0;
  expect_refused(shape, "model.rope-theta=0 must be above 0");
  shape.rope_theta = std::numeric_limits<double>::quiet_NaN();
  expect_refused(shape, "model.rope-theta=nan");
  shape = plain;
  shape.norm_epsilon = infinity;
  expect_refused(shape, "model.norm-eps=inf");

  ModelShape scaled = plain;
  scaled.rope_scaling = RopeScaling::llama3;
  EXPECT_NO_THROW(validate(scaled));
  shape = scaled;
  shape.rope_factor = 0.5;
  expect_refused(shape, "model.rope-factor=0.5 must be 1 or more");
  shape.rope_factor = infinity;
  expect_refused(shape, "model.rope-factor=inf");
  shape = scaled;
  shape.rope_low_frequency = 4.0;
  expect_refused(shape, "model.rope-low-frequency=4 must be above 0 and below");
  shape = scaled;
  shape.rope_high_frequency = infinity;
  expect_refused(shape, "model.rope-high-frequency=inf");
  shape = scaled;
  shape.rope_original_sequence = 0;
  expect_refused(shape, "model.rope-original-sequence=0");
}

TEST(ModelShape, RefusesKeysOfAScalingThatIsNotThere) {
  ModelShape shape = tiny();
  shape.rope_factor = 4.0;
  expect_refused(shape,
                 "model.rope-factor does not apply to model.rope-scaling=none; leave it out");
  shape = tiny();
  shape.rope_original_sequence = 4096;
  expect_refused(shape, "model.rope-original-sequence does not apply");
}

TEST(ModelShape, ExactGeluIsGpt2s) {
  ModelShape shape = tiny_gpt2();
  shape.exact_gelu = true;
  EXPECT_NO_THROW(validate(shape));
  shape = tiny();
  shape.exact_gelu = true;
  expect_refused(shape, "model.exact-gelu does not apply to model.family=llama; leave it out");
}

TEST(ModelShape, RefusesKeysThatGpt2DoesNotHave) {
  EXPECT_NO_THROW(validate(tiny_gpt2()));
  ModelShape shape = tiny_gpt2();
  shape.kv_heads = 2;
  expect_refused(shape, "model.kv-heads=2 must be model.heads=4 in model.family=gpt2");
  shape = tiny_gpt2();
  shape.qkv_bias = true;
  expect_refused(shape, "model.qkv-bias does not apply to model.family=gpt2; leave it out");
  shape = tiny_gpt2();
  shape.set_head_dim(8);
  expect_refused(shape, "model.head-dim does not apply to model.family=gpt2; leave it out");
  shape = tiny_gpt2();
  shape.qk_norm = QkNorm::head;
  expect_refused(shape, "model.qk-norm does not apply to model.family=gpt2; leave it out");
  shape = tiny();
  shape.set_head_dim(3);
  expect_refused(shape, "model.head-dim=3 must be even");
  shape.set_head_dim(-2);
  expect_refused(shape, "model.head-dim=-2 must be at least 1");
  shape.set_head_dim(std::int64_t{1} << 50);
  expect_refused(shape, "model.heads=4 times model.head-dim=1125899906842624 is more than");
  shape = tiny();
  shape.qkv_bias = true;
  shape.qk_norm = QkNorm::head;
  expect_refused(shape, "model.qkv-bias=true goes with model.qk-norm=none, not head");
  shape = tiny_gpt2();
  shape.rope_theta = 500'000.0;
  expect_refused(shape, "model.rope-theta does not apply to model.family=gpt2");
  shape = tiny_gpt2();
  shape.rope_scaling = RopeScaling::llama3;
  expect_refused(shape, "model.rope-scaling does not apply to model.family=gpt2");
  shape = tiny_gpt2();
  shape.rope_low_frequency = 2.0;
  expect_refused(shape, "model.rope-low-frequency does not apply to model.family=gpt2");
}

TEST(ModelShape, GivesAllItsKeysInAFixedOrder) {
  ModelShape shape = tiny();
  shape.rope_scaling = RopeScaling::llama3;
  shape.rope_factor = 32.0;
  std::vector<std::string> keys;
  for (auto const& [key, value] : keys_of(shape)) {
    keys.push_back(key + "=" + value);
  }
  EXPECT_THAT(keys,
              testing::ElementsAre(
                  "model.family=llama", "model.layers=2", "model.hidden=8", "model.heads=4",
                  "model.head-dim=2", "model.kv-heads=2", "model.ffn-hidden=12", "model.vocab=10",
                  "model.max-sequence=16", "model.tied-head=false", "model.qkv-bias=false",
                  "model.qk-norm=none", "model.norms-after=false", "model.window=0",
                  "model.rope-theta=10000", "model.rope-scaling=llama3", "model.rope-factor=32",
                  "model.rope-low-frequency=1", "model.rope-high-frequency=4",
                  "model.rope-original-sequence=8192", "model.rope-attention-factor=1",
                  "model.norm-eps=1e-05", "model.exact-gelu=false"));
  EXPECT_EQ(keys_of(tiny_gpt2()).front().value, "gpt2");
}

TEST(ModelShape, ParametersFitAnotherSequenceLengthUnlessItIsLearned) {
  ModelShape longer = tiny();
  longer.max_sequence = 32;
  EXPECT_TRUE(same_parameters(tiny(), longer));
  longer.rope_theta = 500'000.0;
  EXPECT_FALSE(same_parameters(tiny(), longer));

  ModelShape longer_gpt2 = tiny_gpt2();
  EXPECT_TRUE(same_parameters(tiny_gpt2(), longer_gpt2));
  longer_gpt2.max_sequence = 32;
  EXPECT_FALSE(same_parameters(tiny_gpt2(), longer_gpt2));
  EXPECT_FALSE(same_parameters(tiny(), tiny_gpt2()));
  EXPECT_FALSE(same_parameters(tiny_gpt2(), tiny()));
}

TEST(ModelShape, DifferencesNameTheKeysOnWhichParametersDepend) {
  ModelShape other = tiny();
  other.max_sequence = 32;
  EXPECT_EQ(differences(tiny(), "this", other, "that"), "");
  other.vocab = 12;
  other.tied_head = true;
  EXPECT_EQ(differences(tiny(), "this", other, "that"),
            "model.vocab: this 10, that 12; model.tied-head: this false, that true");

  ModelShape longer_gpt2 = tiny_gpt2();
  longer_gpt2.max_sequence = 32;
  EXPECT_THAT(differences(longer_gpt2, "this", tiny_gpt2(), "that"),
              testing::StartsWith("model.max-sequence: this 32, that "));
}

TEST(ModelShape, RefusesMoreLayersThanAMillion) {
  ModelShape shape = tiny();
  shape.layers = 1'000'000;
  EXPECT_NO_THROW(validate(shape));
  shape.layers = 1'000'000'000;
  expect_refused(shape, "model.layers=1000000000 must be at most 1000000");
}

TEST(ModelShape, RefusesAVocabularyWhoseTokensDoNotFitIn32Bits) {
  ModelShape shape = tiny();
  shape.vocab = std::numeric_limits<std::int32_t>::max();
  EXPECT_NO_THROW(validate(shape));
  ++shape.vocab;
  expect_refused(shape, "model.vocab=2147483648 must be at most 2147483647, as a token has 32");
  shape.vocab = std::int64_t{1} << 32;  // oneDNN would divide by the 32 lower bits
  expect_refused(shape, "model.vocab=4294967296 must be at most 2147483647, as a token has 32");
}

TEST(ModelShape, RefusesProductsBeyondTheLimitInsteadOfOverflowing) {
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  ModelShape shape = tiny();
  shape.hidden = huge;
  expect_refused(shape, "model.hidden=9223372036854775807 times model.hidden=");
  shape = tiny();
  shape.ffn_hidden = huge;
  expect_refused(shape, "model.ffn-hidden=9223372036854775807 times model.hidden=8 is more than");
  shape = tiny();
  shape.vocab = huge;
  expect_refused(shape, "model.vocab=9223372036854775807 times model.hidden=8 is more than");
  shape = tiny();
  shape.heads = huge;
  expect_refused(shape, "model.heads=9223372036854775807 does not divide model.hidden=8");
  shape = tiny();
  shape.kv_heads = huge;
  expect_refused(shape, "model.kv-heads=9223372036854775807 does not divide model.heads=4");
}

TEST(ModelShape, TheLimitIsOnAllParametersTogether) {
  ModelShape shape = tiny();
  shape.hidden = 1 << 20;
  shape.layers = 100;  // 3 * 2^40 in each: 2^50 is passed at 342 of them
  EXPECT_NO_THROW(validate(shape));
  shape.layers = 400;
  expect_refused(shape, "model.layers=400, model.hidden=1048576, model.ffn-hidden=12");
  shape.layers = 2;
  shape.tied_head = true;
  std::int64_t const rest = count_parameters(layers_of(shape)) - shape.vocab * shape.hidden;
  shape.vocab = ((std::int64_t{1} << 50) - rest) / shape.hidden;
  EXPECT_EQ(count_parameters(layers_of(shape)), std::int64_t{1} << 50);
  EXPECT_NO_THROW(validate(shape));
  ++shape.vocab;
  expect_refused(shape, "make more than the limit of 1125899906842624 parameters (2^50)");
}

}  // namespace
}  // namespace offstage::state
