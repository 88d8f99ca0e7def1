#include "generate/language_model.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "data/batch.hpp"
#include "device/device.hpp"
#include "model/transformer.hpp"
#include "state/exchange.hpp"

namespace offstage::generate {
namespace {

/// The seed's initial weights.
class InitialWeights final : public state::ParameterReader {
 public:
  explicit InitialWeights(state::Family family = state::Family::llama, std::int64_t ffn_hidden = 64,
                          std::int64_t max_sequence = 48) {
    shape_.family = family;
    shape_.layers = 2;
    shape_.hidden = 32;
    shape_.heads = 4;
    shape_.kv_heads = family == state::Family::gpt2 ? 4 : 2;
    shape_.tied_head = family == state::Family::gpt2;
    shape_.ffn_hidden = ffn_hidden;
    shape_.vocab = 300;  // layers that end inside a chunk
    shape_.max_sequence = max_sequence;
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

/// All layers at once.
class AllWeights final : public state::ParameterSource<float> {
 public:
  explicit AllWeights(InitialWeights& weights) {
    int layer = 0;
    for (auto const& layout : state::layers_of(weights.shape())) {
      auto& memory = layers_.emplace_back(static_cast<std::size_t>(layout.padded_elements()));
      weights.read(layer++, {0, layout.chunks()}, memory);
    }
  }
  [[nodiscard]] std::span<float const> acquire(int layer) override {
    return layers_[static_cast<std::size_t>(layer)];
  }
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}

 private:
  std::vector<std::vector<float>> layers_;
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

/// Logits of the model that training uses, which keeps nothing.
std::vector<float> plain_logits(InitialWeights& weights, std::vector<std::int32_t> const& tokens) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("compute");
  auto const length = std::ssize(tokens);
  model::Transformer<float> transformer{
      weights.shape(), {.batch = 1, .sequence = length}, *device, *stream};
  AllWeights parameters{weights};
  std::vector<float> logits(static_cast<std::size_t>(weights.shape().vocab));
  data::TokenBatch const batch{.batch = 1, .sequence = length, .tokens = tokens, .targets = tokens};
  transformer.logits(batch, parameters, length - 1, logits);
  return logits;
}

TEST(LanguageModel, SaysTokenByTokenWhatItSaysWithoutKeptKeysAndValues) {
  for (auto const family : {state::Family::llama, state::Family::gpt2}) {
    InitialWeights weights{family};
    auto const model = load(weights, DType::fp32);
    auto tokens = tokens_of(3);
    for (int step = 0; step < 45; ++step) {
      auto const logits = model->logits(tokens);
      std::vector<float> const kept{logits.begin(), logits.end()};
      ASSERT_THAT(kept, near(plain_logits(weights, tokens), 2e-5F)) << step;
      tokens.push_back(static_cast<std::int32_t>((step * 7) % 300));
    }
    // Another end, several tokens at once.
    tokens = tokens_of(3);
    for (std::int32_t const token : {5, 6, 7, 8}) {
      tokens.push_back(token);
    }
    auto const logits = model->logits(tokens);
    EXPECT_THAT((std::vector<float>{logits.begin(), logits.end()}),
                near(plain_logits(weights, tokens), 2e-5F));
  }
}

TEST(LanguageModel, KeepsKeysAndValuesWhereTheirMemoryGrows) {
  InitialWeights weights{state::Family::llama, 64, 200};
  auto const model = load(weights, DType::fp32);
  for (std::size_t const count : {60U, 66U, 140U}) {
    EXPECT_THAT(logits_of(*model, count), near(plain_logits(weights, tokens_of(count)), 2e-5F))
        << count;
  }
}

TEST(LanguageModel, HoldsLayersOfMoreParametersThanAreReadAtATime) {
  InitialWeights weights{state::Family::llama, 12'288};  // 3 * 32 * 12288 of an MLP
  auto const tokens = tokens_of(3);
  auto const model = load(weights, DType::fp32);
  auto const logits = model->logits(tokens);
  EXPECT_THAT((std::vector<float>{logits.begin(), logits.end()}),
              near(plain_logits(weights, tokens), 2e-5F));
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
