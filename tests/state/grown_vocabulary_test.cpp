#include "state/grown_vocabulary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace offstage::state {
namespace {

/// A model whose parameters are random, in place of a file.
class RandomModel final : public ParameterReader {
 public:
  explicit RandomModel(ModelShape const& shape) : shape_{shape}, layers_{layers_of(shape)} {}
  [[nodiscard]] ModelShape const& shape() const override { return shape_; }
  void read(int layer, ChunkRange chunks, std::span<float> out) override {
    initialize(layers_.at(static_cast<std::size_t>(layer)), 7, chunks, out);
  }

 private:
  ModelShape shape_;
  std::vector<LayerLayout> layers_;
};

/// Rows of 48 begin anywhere in a chunk.
ModelShape small(Family family, std::int64_t vocab, bool tied_head) {
  return {.family = family,
          .layers = 2,
          .hidden = 48,
          .heads = 4,
          .kv_heads = 4,
          .ffn_hidden = 96,
          .vocab = vocab,
          .max_sequence = 130,
          .tied_head = tied_head};
}

std::vector<float> whole(ParameterReader& reader, int layer) {
  auto const chunks = layers_of(reader.shape()).at(static_cast<std::size_t>(layer)).chunks();
  std::vector<float> out(static_cast<std::size_t>(chunks * chunk_elements), -1.0F);
  reader.read(layer, {0, chunks}, out);
  return out;
}

std::vector<float> tensor_of(std::vector<float> const& layer, TensorLayout const& tensor) {
  auto const begin = layer.begin() + tensor.offset;
  return {begin, begin + tensor.elements()};
}

/// The rows, and behind them `added` ones of their mean.
std::vector<float> with_means(std::vector<float> rows, std::int64_t columns, std::int64_t added) {
  std::vector<float> mean;
  for (std::int64_t column = 0; column < columns; ++column) {
    double sum = 0.0;
    for (auto i = static_cast<std::size_t>(column); i < rows.size();
         i += static_cast<std::size_t>(columns)) {
      sum += static_cast<double>(rows[i]);
    }
    mean.push_back(
        static_cast<float>(sum * static_cast<double>(columns) / static_cast<double>(rows.size())));
  }
  for (std::int64_t row = 0; row < added; ++row) {
    rows.insert(rows.end(), mean.begin(), mean.end());
  }
  return rows;
}

class GrownVocabularyOf : public testing::TestWithParam<Family> {};

TEST_P(GrownVocabularyOf, OldTensorsAreAsTheyWereAndNewRowsAreTheMean) {
  auto const old_vocab = 301;
  auto const added = 200;  // more than a chunk
  for (bool const tied : {false, true}) {
    RandomModel old{small(GetParam(), old_vocab, tied)};
    GrownVocabulary grown{std::make_unique<RandomModel>(old.shape()), old_vocab + added};
    EXPECT_EQ(grown.shape(), small(GetParam(), old_vocab + added, tied));
    auto const before = layers_of(old.shape());
    auto const after = layers_of(grown.shape());
    ASSERT_EQ(before.size(), after.size());
    int tables = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      auto const old_layer = whole(old, static_cast<int>(i));
      auto const new_layer = whole(grown, static_cast<int>(i));
      for (TensorLayout const& tensor : after[i].tensors) {
        TensorLayout const& source = before[i].tensor(tensor.name);
        bool const is_table = tensor.rows == old_vocab + added;
        tables += is_table ? 1 : 0;
        auto const expected = tensor_of(old_layer, source);
        EXPECT_EQ(tensor_of(new_layer, tensor),
                  is_table ? with_means(expected, tensor.columns, added) : expected)
            << tensor.name;
      }
      EXPECT_TRUE(std::all_of(new_layer.begin() + after[i].elements, new_layer.end(),
                              [](float value) { return value == 0.0F; }));
    }
    EXPECT_EQ(tables, tied ? 1 : 2);
  }
}

TEST_P(GrownVocabularyOf, AnyRangeHasTheSameNumbers) {
  RandomModel const old{small(GetParam(), 301, false)};
  auto const grown = [&] {
    return GrownVocabulary{std::make_unique<RandomModel>(old.shape()), 501};
  };
  auto const layers = layers_of(grown().shape());
  for (int const layer : {0, static_cast<int>(layers.size()) - 1}) {
    auto all = grown();
    auto const expected = whole(all, layer);
    auto const chunks = layers[static_cast<std::size_t>(layer)].chunks();
    for (std::int64_t first = 0; first < chunks; ++first) {
      for (std::int64_t count = 1; first + count <= chunks; ++count) {
        auto some = grown();
        std::vector<float> part(static_cast<std::size_t>(count * chunk_elements));
        some.read(layer, {first, count}, part);
        ASSERT_TRUE(
            std::equal(part.begin(), part.end(), expected.begin() + first * chunk_elements));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GrownVocabularyOf, testing::Values(Family::llama, Family::gpt2),
                         [](auto const& of) { return std::string{name_of(of.param)}; });

TEST(GrownVocabulary, TakesTheMeanOfMoreRowsThanAreReadAtATime) {
  RandomModel old{small(Family::llama, 22'000, true)};  // rows of 48: more than 4 MiB
  GrownVocabulary grown{std::make_unique<RandomModel>(old.shape()), 22'001};
  TensorLayout const before = layers_of(old.shape()).front().tensors.front();
  TensorLayout const after = layers_of(grown.shape()).front().tensors.front();
  EXPECT_EQ(tensor_of(whole(grown, 0), after),
            with_means(tensor_of(whole(old, 0), before), before.columns, 1));
}

TEST(GrownVocabulary, DoesNotShrink) {
  EXPECT_THROW(GrownVocabulary(std::make_unique<RandomModel>(small(Family::llama, 301, true)), 300),
               PreconditionError);
}

}  // namespace
}  // namespace offstage::state
