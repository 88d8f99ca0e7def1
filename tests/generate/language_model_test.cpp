#include "generate/language_model.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.hpp"

namespace offstage::generate {
namespace {

/// The seed's initial weights.
class InitialWeights final : public state::ParameterReader {
 public:
  InitialWeights() {
    shape_.layers = 2;
    shape_.hidden = 32;
    shape_.heads = 4;
    shape_.kv_heads = 2;
    shape_.ffn_hidden = 64;
    shape_.vocab = 300;  // layers that end inside a chunk
    shape_.max_sequence = 48;
    layers_ = state::layers_of(shape_);
  }
  [[nodiscard]] state::ModelShape const& shape() const override { return shape_; }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override {
    state::initialize(layers_[static_cast<std::size_t>(layer)], 5, chunks, out);
  }

 private:
  state::ModelShape shape_;
  std::vector<state::LayerLayout> layers_;
};

std::vector<std::int32_t> tokens_of(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

std::vector<float> logits_of(LanguageModel& model, std::size_t count) {
  auto const logits = model.logits(tokens_of(count));
  return {logits.begin(), logits.end()};
}

auto near(std::vector<float> const& expected, float tolerance) {
  return ::testing::Pointwise(::testing::FloatNear(tolerance), expected);
}

TEST(LanguageModel, SaysTheSameWhateverRoomItsSequenceHas) {
  InitialWeights weights;
  auto const model = load(weights, DType::fp32);
  auto const in_32 = logits_of(*model, 5);
  ASSERT_EQ(in_32.size(), 300U);
  auto const full = logits_of(*model, 48);
  EXPECT_THAT(logits_of(*model, 5), near(in_32, 1e-5F));
  EXPECT_THAT(full, ::testing::Not(near(in_32, 1e-5F)));
  EXPECT_THAT(logits_of(*model, 6), ::testing::Not(near(in_32, 1e-5F)));
}

TEST(LanguageModel, ComputesInEitherType) {
  InitialWeights weights;
  auto const expected = logits_of(*load(weights, DType::fp32), 20);
  EXPECT_THAT(logits_of(*load(weights, DType::bf16), 20), near(expected, 0.05F));
}

TEST(LanguageModel, TakesOneTokenToMaxSequence) {
  InitialWeights weights;
  auto const model = load(weights, DType::fp32);
  EXPECT_THROW((void)model->logits({}), PreconditionError);
  EXPECT_THROW((void)model->logits(tokens_of(49)), PreconditionError);
  EXPECT_EQ(logits_of(*model, 1).size(), 300U);
}

}  // namespace
}  // namespace offstage::generate
