#include "state/initialize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace offstage::state {
namespace {

std::vector<LayerLayout> layers() {
  return layers_of({.layers = 3,
                    .hidden = 64,
                    .heads = 4,
                    .kv_heads = 2,
                    .ffn_hidden = 96,
                    .vocab = 256,
                    .max_sequence = 16});
}

TEST(Initialize, AnElementDependsOnItsPlaceAloneNotOnTheChunksAskedFor) {
  LayerLayout const layer = layers()[1];
  std::vector<float> whole(static_cast<std::size_t>(layer.padded_elements()));
  initialize(layer, 7, {0, layer.chunks()}, whole);

  for (std::int64_t chunk = 0; chunk < layer.chunks(); ++chunk) {
    std::vector<float> part(chunk_elements);
    initialize(layer, 7, {chunk, 1}, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(part[i], whole[static_cast<std::size_t>(chunk * chunk_elements) + i]);
    }
  }
}

TEST(Initialize, NormsAreOnesPaddingIsZeroMatricesHaveTheirDeviation) {
  LayerLayout const layer = layers()[1];
  std::vector<float> values(static_cast<std::size_t>(layer.padded_elements()), -1.0F);
  initialize(layer, 7, {0, layer.chunks()}, values);

  TensorLayout const& norm = layer.tensor("input_layernorm.weight");
  EXPECT_EQ(values[static_cast<std::size_t>(norm.offset)], 1.0F);
  EXPECT_EQ(values[static_cast<std::size_t>(norm.offset + norm.rows - 1)], 1.0F);
  for (std::int64_t i = layer.elements; i < layer.padded_elements(); ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i)], 0.0F);
  }
  TensorLayout const& out = layer.tensor("o_proj.weight");
  double squares = 0.0;
  for (std::int64_t i = 0; i < out.elements(); ++i) {
    double const value = values[static_cast<std::size_t>(out.offset + i)];
    squares += value * value;
  }
  double const expected = 0.02 / std::sqrt(6.0);  // residual projection of three blocks
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(out.elements())), expected, 0.05 * expected);
}

TEST(Initialize, SeedsAndTensorsHaveStreamsOfTheirOwn) {
  auto const all = layers();
  std::vector<float> a(chunk_elements);
  std::vector<float> b(chunk_elements);
  std::vector<float> c(chunk_elements);
  initialize(all[1], 1, {0, 1}, a);
  initialize(all[1], 2, {0, 1}, b);
  initialize(all[2], 1, {0, 1}, c);

  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

}  // namespace
}  // namespace offstage::state
