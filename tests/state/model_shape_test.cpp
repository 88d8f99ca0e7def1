#include "state/model_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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

TEST(ModelShape, LaysOutABlockWithMatricesFirstAndFusableNeighbours) {
  auto const layers = layers_of(tiny());

  ASSERT_EQ(layers.size(), 4U);
  LayerLayout const& block = layers[2];
  EXPECT_EQ(block.name, "block 1");
  TensorLayout const& q = block.tensor("q_proj.weight");
  TensorLayout const& k = block.tensor("k_proj.weight");
  TensorLayout const& v = block.tensor("v_proj.weight");
  EXPECT_EQ(q.name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(q.offset, 0);
  EXPECT_EQ(k.offset, 8 * 8);
  EXPECT_EQ(v.offset, 8 * 8 + 4 * 8);
  EXPECT_EQ(k.rows, 4);
  EXPECT_EQ(block.tensor("up_proj.weight").offset,
            block.tensor("gate_proj.weight").offset + 12 * 8);
  // q 64, k 32, v 32, o 64, three of 96; then two norms of 8 that are not decayed.
  EXPECT_EQ(block.decayed_elements, 64 + 32 + 32 + 64 + 3 * 96);
  EXPECT_EQ(block.elements, block.decayed_elements + 16);
  EXPECT_EQ(block.chunks(), 1);
  EXPECT_EQ(block.padded_elements(), 4096);
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

TEST(ModelShape, NumbersTensorsThroughTheWholeModel) {
  std::int64_t expected = 0;
  for (LayerLayout const& layer : layers_of(tiny())) {
    for (TensorLayout const& tensor : layer.tensors) {
      EXPECT_EQ(tensor.index, expected++);
    }
  }
  EXPECT_EQ(expected, 1 + 2 * 9 + 2);
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
  expect_refused(shape, "odd head size");
  shape = tiny();
  shape.layers = 0;
  expect_refused(shape, "model.layers=0");
}

TEST(ModelShape, RefusesMoreLayersThanAMillion) {
  ModelShape shape = tiny();
  shape.layers = 1'000'000;
  EXPECT_NO_THROW(validate(shape));
  shape.layers = 1'000'000'000;
  expect_refused(shape, "model.layers=1000000000 must be at most 1000000");
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
  shape = tiny();
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
