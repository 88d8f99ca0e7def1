#include "model/transformer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "model/model_fixture.hpp"
#include "model/naive_models.hpp"

namespace offstage::model {
namespace {

using test::random_batch;
using test::TestModel;
using test::tiny_shape;
using ::testing::Each;
using ::testing::HasSubstr;

template <class Exception, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (Exception const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Transformer, AgreesWithTheEquationsWrittenDownNaively) {
  for (auto const& [name, shape] : test::all_tiny_shapes()) {
    TestModel<double> setup{shape, {.batch = 2, .sequence = 9}};
    auto const batch = random_batch(2, 9, shape.vocab, 5);
    EXPECT_NEAR(setup.model.forward(batch, setup.parameters), test::naive_of(setup)->loss(batch),
                1e-12)
        << name;
  }
}

TEST(Transformer, HoldsDocumentsApartAsIfEachWereAlone) {
  for (auto const& [name, shape] : test::all_tiny_shapes()) {
    TestModel<double> setup{shape, {.batch = 3, .sequence = 9, .documents_apart = true}};
    auto const batch = test::with_documents(random_batch(3, 9, shape.vocab, 5));
    EXPECT_NEAR(setup.model.forward(batch, setup.parameters), test::naive_of(setup)->loss(batch),
                1e-12)
        << name;
  }
}

TEST(Transformer, ABatchWithoutDocumentsHasSequencesOfOne) {
  for (auto const& [name, shape] : test::all_tiny_shapes()) {
    TestModel<float> plain{shape, {.batch = 2, .sequence = 9}};
    TestModel<float> apart{shape, {.batch = 2, .sequence = 9, .documents_apart = true}};
    auto const batch = random_batch(2, 9, shape.vocab, 5);
    EXPECT_EQ(apart.step(batch), plain.step(batch)) << name;
    EXPECT_EQ(apart.gradients.values, plain.gradients.values) << name;
  }
}

TEST(Transformer, RefusesPlacesThatAreNoneOfDocuments) {
  TestModel<float> apart{tiny_shape(false), {.batch = 1, .sequence = 3, .documents_apart = true}};
  TestModel<float> plain{tiny_shape(false), {.batch = 1, .sequence = 3}};
  auto batch = random_batch(1, 3, apart.shape.vocab, 5);
  for (std::vector<std::int32_t> const& begins : std::vector<std::vector<std::int32_t>>{
           {0, 0}, {1, 1, 1}, {0, 0, 1}, {0, 2, 2}, {0, 1, 0}, {-1, 1, 2}}) {
    batch.begins = begins;
    EXPECT_THROW(apart.step(batch), PreconditionError);
  }
  batch.begins = {0, 1, 1};
  EXPECT_NO_THROW(apart.step(batch));
  EXPECT_THROW(plain.step(batch), PreconditionError);
}

TEST(Transformer, LossOfABlockThatAddsNothingIsAsComputedByHand) {
  TestModel<double> setup{{.layers = 1,
                           .hidden = 2,
                           .heads = 1,
                           .kv_heads = 1,
                           .ffn_hidden = 3,
                           .vocab = 2,
                           .max_sequence = 1,
                           .norm_epsilon = 1e-300},
                          {.batch = 1, .sequence = 1}};
  auto& values = setup.parameters.values;
  values[0] = {3, 4, 0, 0};  // rms of (3, 4) is sqrt(12.5)
  for (auto const& [layer, name] : {std::pair{1U, "o_proj.weight"}, {2U, "down_proj.weight"}}) {
    auto const& tensor = setup.layers[layer].tensor(name);
    std::fill_n(values[layer].begin() + tensor.offset, tensor.elements(), 0.0);
  }
  values[3] = {1, 0, 0, 1, 1, 1};  // the head is the identity, the norm's weight one
  double const difference = (4 - 3) / std::sqrt(12.5);
  data::TokenBatch const batch{.batch = 1, .sequence = 1, .tokens = {0}, .targets = {1}};
  EXPECT_NEAR(setup.step(batch), std::log1p(std::exp(-difference)), 1e-15);
  // d logits = softmax - (0, 1); the head's gradient is its product with the normed row.
  double const p = 1 / (1 + std::exp(difference));
  auto const head = setup.gradient(3);
  EXPECT_NEAR(head[0], p * 3 / std::sqrt(12.5), 1e-15);
  EXPECT_NEAR(head[3], -p * 4 / std::sqrt(12.5), 1e-15);
}

TEST(Transformer, StartsNearTheLogarithmOfTheVocabulary) {
  TestModel<float> setup{tiny_shape(false), {.batch = 2, .sequence = 5}, 0.02};
  auto const batch = random_batch(2, 5, setup.shape.vocab, 3);
  EXPECT_NEAR(setup.model.forward(batch, setup.parameters), std::log(setup.shape.vocab), 0.05);
}

TEST(Transformer, LooksAtNoLaterToken) {
  auto const shape = tiny_shape(false);
  TestModel<double> five{shape, {.batch = 1, .sequence = 5}};
  TestModel<double> six{shape, {.batch = 1, .sequence = 6}};
  auto batch = random_batch(1, 5, shape.vocab, 3);
  double const loss_of_five = five.model.forward(batch, five.parameters);
  batch.sequence = 6;
  batch.tokens.push_back(0);
  batch.targets.push_back(0);
  // If the first five rows do not see the sixth, what the sixth adds to the loss is a distribution
  // over its targets.
  for (std::int32_t const token : {0, 7}) {
    batch.tokens.back() = token;
    double probability = 0;
    for (std::int32_t target = 0; target < shape.vocab; ++target) {
      batch.targets.back() = target;
      probability += std::exp(5 * loss_of_five - 6 * six.model.forward(batch, six.parameters));
    }
    EXPECT_NEAR(probability, 1, 1e-12);
  }
}

template <class T>
void evaluate_agrees(BlockFates const& fates) {
  for (auto const& [name, shape] : test::all_tiny_shapes()) {
    TestModel<T> setup{shape, {.batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates)}};
    auto const batch = random_batch(2, 5, shape.vocab, 3);
    double const loss = setup.model.forward(batch, setup.parameters);
    EXPECT_EQ(setup.model.evaluate(batch, setup.parameters), loss) << name;
  }
}

TEST(Transformer, EvaluateGivesTheLossOfForwardBitForBit) {
  evaluate_agrees<float>(kept_block);
  evaluate_agrees<float>(recomputed_block);
  evaluate_agrees<bfloat16>(kept_block);
  evaluate_agrees<bfloat16>(recomputed_block);
  evaluate_agrees<float16>(kept_block);
}

TEST(Transformer, LearnsARepeatedSequence) {
  TestModel<float> setup{tiny_shape(false), {.batch = 2, .sequence = 6}, 0.1};
  data::TokenBatch const batch{.batch = 2,
                               .sequence = 6,
                               .tokens = {1, 5, 2, 5, 3, 5, 7, 8, 9, 10, 11, 12},
                               .targets = {5, 2, 5, 3, 5, 4, 8, 9, 10, 11, 12, 0}};
  double loss = 0;
  for (int step = 0; step < 150; ++step) {
    loss = setup.step(batch);
    for (std::size_t layer = 0; layer < setup.layers.size(); ++layer) {
      auto& values = setup.parameters.values[layer];
      auto const& gradient = setup.gradients.values.at(static_cast<int>(layer));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] -= 0.5F * gradient[i];
      }
    }
  }
  EXPECT_LT(loss, 0.02);
}

TEST(Transformer, AcquiresAndAddsInTheDocumentedOrder) {
  using Layers = std::vector<int>;
  for (auto const& [name, shape] : test::all_tiny_shapes()) {
    SCOPED_TRACE(name);
    bool const tied = shape.tied_head;
    TestModel<float> setup{shape};
    auto const batch = random_batch(2, 5, setup.shape.vocab, 3);
    auto& acquired = setup.parameters.acquired;
    setup.model.forward(batch, setup.parameters);
    EXPECT_EQ(acquired, tied ? Layers({0, 1, 2, 3, 4, 5, 0}) : Layers({0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(acquired, layer_order(setup.shape).forward);
    acquired.clear();
    setup.model.backward(setup.parameters, setup.gradients);
    EXPECT_EQ(acquired, Layers({4, 3, 2, 1}));
    EXPECT_EQ(acquired, layer_order(setup.shape).backward);
    EXPECT_EQ(setup.gradients.added, Layers({5, 4, 3, 2, 1, 0}));
    EXPECT_EQ(setup.parameters.most_held, tied ? 2U : 1U);
    EXPECT_EQ(setup.parameters.held(), 0U);
  }
}

/// Acquired layers and, as their negatives, gradients that were given.
class OrderOfCalls final : public state::ParameterSource<float>, public state::GradientSink<float> {
 public:
  explicit OrderOfCalls(state::ParameterSource<float>& rest) : rest_{rest} {}
  [[nodiscard]] std::span<float const> acquire(int layer) override {
    calls.push_back(layer);
    return rest_.acquire(layer);
  }
  void release(int layer, std::shared_ptr<device::Event> done) override {
    rest_.release(layer, std::move(done));
  }
  std::shared_ptr<device::Event> add(int layer, std::span<float const> /*gradient*/) override {
    calls.push_back(-layer);
    return nullptr;
  }

  std::vector<int> calls;

 private:
  state::ParameterSource<float>& rest_;
};

// One rank waits for another in each of them.
TEST(Transformer, HoldsAttentionBesideTheMlpOnlyWhereItAddsAgain) {
  BlockFates norms_again;
  norms_again[Part::pointwise] = Fate::recompute;
  for (auto const& fates : {kept_block, norms_again, recomputed_block}) {
    auto const shape = tiny_shape(false);
    RunShape const run{.batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates)};
    TestModel<float> busy{shape, run};
    TestModel<float> idle{shape, run};
    OrderOfCalls busy_calls{busy.parameters};
    OrderOfCalls idle_calls{idle.parameters};
    (void)busy.model.forward(random_batch(2, 5, shape.vocab, 3), busy_calls);
    EXPECT_EQ(busy.parameters.most_held, 1U);
    busy.model.backward(busy_calls, busy_calls);
    idle.model.idle_forward(idle_calls);
    idle.model.idle_backward(idle_calls, idle_calls);
    EXPECT_EQ(idle_calls.calls, busy_calls.calls);
    // What the last block has added is there still, unless a norm has to be made again.
    bool const again = fates == recomputed_block;
    EXPECT_EQ(busy.parameters.most_held, again ? 2U : 1U);
    auto const first = again ? std::vector{2, 1, -2, -1, 0} : std::vector{2, -2, 1, -1, 0};
    EXPECT_EQ((std::vector(busy_calls.calls.end() - 5, busy_calls.calls.end())), first);
  }
}

TEST(Transformer, IdleMembersTakePartInTheSameCollectives) {
  for (bool const tied : {false, true}) {
    TestModel<float> busy{tiny_shape(tied)};
    TestModel<float> idle{tiny_shape(tied)};
    busy.step(random_batch(2, 5, busy.shape.vocab, 3));
    idle.model.idle_forward(idle.parameters);
    idle.model.idle_backward(idle.parameters, idle.gradients);
    EXPECT_EQ(idle.parameters.acquired, busy.parameters.acquired);
    EXPECT_EQ(idle.gradients.added, busy.gradients.added);
    for (auto const& [layer, gradient] : idle.gradients.values) {
      EXPECT_TRUE(gradient.empty());
    }
  }
}

TEST(Transformer, SendsPaddedLayersWithZeroPadding) {
  TestModel<bfloat16> setup{tiny_shape(true)};
  setup.step(random_batch(2, 5, setup.shape.vocab, 3));
  for (std::size_t layer = 0; layer < setup.layers.size(); ++layer) {
    auto const& gradient = setup.gradients.values.at(static_cast<int>(layer));
    ASSERT_EQ(static_cast<std::int64_t>(gradient.size()), setup.layers[layer].padded_elements());
    std::vector<bfloat16> const padding{gradient.begin() + setup.layers[layer].elements,
                                        gradient.end()};
    EXPECT_THAT(padding, Each(bfloat16{0}));
  }
}

TEST(Transformer, AllocatesNothingDuringAStep) {
  TestModel<float> setup{tiny_shape(false)};
  Bytes const before = setup.device->peak();
  setup.step(random_batch(2, 5, setup.shape.vocab, 3));
  EXPECT_EQ(setup.device->peak(), before);
  EXPECT_EQ(setup.device->used(), before);
}

/// Loss and gradients of two steps and an evaluation; before each of them `before` is called.
template <class T, class Before>
std::pair<std::vector<double>, std::map<int, std::vector<T>>> results_of(TestModel<T>& setup,
                                                                         RunShape const& run,
                                                                         Before&& before) {
  auto const batch = random_batch(run.batch, run.sequence, setup.shape.vocab, 3);
  std::vector<double> losses;
  for (int i = 0; i < 2; ++i) {
    before(setup.model.idle_memory());
    losses.push_back(setup.step(batch));
  }
  before(setup.model.idle_memory());
  losses.push_back(setup.model.evaluate(batch, setup.parameters));
  return {losses, setup.gradients.values};
}

template <class T>
void expect_same_bits_after_scribbling(state::ModelShape const& shape, RunShape const& run) {
  TestModel<T> untouched{shape, run};
  TestModel<T> scribbled{shape, run};
  auto const expected = results_of(untouched, run, [](auto) {});
  auto const got = results_of(scribbled, run, [](std::span<std::byte> memory) {
    std::ranges::fill(memory, std::byte{0xFF});  // NaN in every type
  });
  EXPECT_EQ(got.first, expected.first);
  EXPECT_EQ(got.second, expected.second);
}

TEST(Transformer, GivesTheSameBitsWhateverWasLeftInItsIdleMemory) {
  for (auto const& fates : {kept_block, recomputed_block}) {
    for (auto const& [name, shape] : test::all_tiny_shapes()) {
      SCOPED_TRACE(name);
      RunShape const run{.batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates)};
      expect_same_bits_after_scribbling<float>(shape, run);
      expect_same_bits_after_scribbling<bfloat16>(shape, run);
    }
  }
}

TEST(Transformer, LendsItsLargestBufferWhicheverThatIs) {
  auto shape = tiny_shape(false);
  shape.max_sequence = 64;
  auto const lent = [&](RunShape const& run) {
    TestModel<float> setup{shape, run};
    auto const memory = setup.model.idle_memory();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 64, 0U);
    EXPECT_LE(std::ssize(memory), setup.device->used());
    expect_same_bits_after_scribbling<float>(shape, run);
    return std::ssize(memory);
  };
  EXPECT_EQ(lent({.batch = 1, .sequence = 1}), 2 * 4096 * 4);  // the gradients of layers
  for (auto const& fates : {kept_block, recomputed_block}) {
    EXPECT_GT(lent({.batch = 2, .sequence = 64, .fates = test::all_blocks(shape, fates)}),
              2 * 64 * 4 * 8 * shape.hidden);  // activations of a block
  }
  shape.vocab = 500;
  EXPECT_GT(lent({.batch = 2, .sequence = 64}), 2 * 64 * 4 * 500);  // logits
}

// 320 rows are two tiles on the host. The head's sum is larger than a block's gradients here, and
// lies over them.
TEST(Transformer, GivesTheSameBitsWhateverWasLeftWhereItSumsTheHeadsTiles) {
  RunShape const run{.batch = 20, .sequence = 16};
  for (auto [name, shape] : test::all_tiny_shapes()) {
    SCOPED_TRACE(name);
    shape.vocab = 1000;
    expect_same_bits_after_scribbling<bfloat16>(shape, run);
  }
}

// The sum is as long as two 16-bit tables.
TEST(Transformer, TakesNoMemoryForTheSumOfTheHeadsTilesThatItsGradientsHave) {
  auto const bytes = [](bool tied, std::int64_t vocab) {
    auto shape = tiny_shape(tied);
    shape.vocab = vocab;
    return TestModel<bfloat16>{shape, {.batch = 20, .sequence = 16}}.device->used();
  };
  // 4096 more rows of 16 elements: logits of 256 rows, and two gradients of tables, or the sum that
  // has their place.
  Bytes const logits = Bytes{256} * 4096 * (4 + 2);
  Bytes const table = 4096 * 16 * 2;
  for (bool const tied : {false, true}) {
    EXPECT_EQ(bytes(tied, 8192) - bytes(tied, 4096), logits + 2 * table) << tied;
  }
}

TEST(Transformer, RecomputationKeepsOnlyTheInputsOfBlocks) {
  auto shape = tiny_shape(false);
  auto const bytes = [&](std::int64_t layers, BlockFates const& fates) {
    shape.layers = layers;
    return TestModel<float>{shape,
                            {.batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates)}}
        .device->used();
  };
  EXPECT_EQ(bytes(3, recomputed_block) - bytes(2, recomputed_block),
            static_cast<Bytes>(sizeof(float)) * 2 * 5 * shape.hidden);
  EXPECT_GT(bytes(3, kept_block) - bytes(2, kept_block),
            static_cast<Bytes>(sizeof(float)) * 2 * 5 * 8 * shape.hidden);
}

TEST(Transformer, SaysWhatTheDeviceHasNoRoomFor) {
  auto const shape = tiny_shape(false);
  RunShape const run{.batch = 2, .sequence = 5};
  Bytes const needed = TestModel<float>{shape}.device->used();
  auto const build = [&](Bytes capacity) {
    auto const device = device::make_host_device(capacity);
    auto const stream = device->make_calling_stream("test");
    Transformer<float> const model{shape, run, *device, *stream};
  };
  EXPECT_NO_THROW(build(needed));
  EXPECT_THAT(message_of<UsageError>([&] { build(needed - 1); }),
              HasSubstr("the input of block 1"));
  Bytes const input = static_cast<Bytes>(sizeof(float)) * 2 * 5 * shape.hidden;
  EXPECT_THAT(message_of<UsageError>([&] { build(needed - input - 1); }),
              HasSubstr("activations of block 1"));
  EXPECT_THAT(message_of<UsageError>([&] { build(1000); }), HasSubstr("the gradients of layers"));
}

TEST(Transformer, RefusesABatchOfAnotherShape) {
  TestModel<float> setup{tiny_shape(false)};
  auto const forward = [&](data::TokenBatch const& batch) {
    setup.model.forward(batch, setup.parameters);
  };
  EXPECT_THROW(forward(random_batch(1, 5, 13, 3)), PreconditionError);
  EXPECT_THROW(forward(random_batch(2, 4, 13, 3)), PreconditionError);
  auto short_targets = random_batch(2, 5, 13, 3);
  short_targets.targets.pop_back();
  EXPECT_THROW(forward(short_targets), PreconditionError);
  EXPECT_TRUE(setup.parameters.acquired.empty());
}

TEST(Transformer, RefusesTokensBeyondTheVocabularyAndHoldsNoLayerAfterwards) {
  TestModel<float> setup{tiny_shape(false)};
  auto batch = random_batch(2, 5, 13, 3);
  batch.tokens[3] = 13;
  EXPECT_THROW(setup.model.forward(batch, setup.parameters), PreconditionError);
  EXPECT_TRUE(setup.parameters.acquired.empty()) << "a GPU's embedding would not say it";
  EXPECT_EQ(setup.parameters.held(), 0U);
  batch.tokens[3] = 12;
  batch.targets[3] = 13;
  EXPECT_THROW(setup.model.forward(batch, setup.parameters), PreconditionError);
  EXPECT_EQ(setup.parameters.held(), 0U);
}

TEST(Transformer, RefusesBackwardWithoutItsForward) {
  TestModel<float> setup{tiny_shape(false)};
  auto const batch = random_batch(2, 5, 13, 3);
  auto const backward = [&] { setup.model.backward(setup.parameters, setup.gradients); };
  EXPECT_THROW(backward(), PreconditionError);
  setup.step(batch);
  EXPECT_THROW(backward(), PreconditionError);
  setup.model.forward(batch, setup.parameters);
  setup.model.evaluate(batch, setup.parameters);
  EXPECT_THROW(backward(), PreconditionError);
}

TEST(Transformer, RefusesASequenceBeyondTheModels) {
  EXPECT_THROW((TestModel<float>{tiny_shape(false), {.batch = 1, .sequence = 17}}),
               PreconditionError);
  EXPECT_THROW((TestModel<float>{tiny_shape(false), {.batch = 0, .sequence = 4}}),
               PreconditionError);
}

TEST(ProductFlops, AreAsCountedByHand) {
  // One row of a block: q 2x2, k and v 2x2, o 2x2, gate, up and down 2x3; the head 2x5.
  state::ModelShape const shape{.layers = 1,
                                .hidden = 2,
                                .heads = 1,
                                .kv_heads = 1,
                                .ffn_hidden = 3,
                                .vocab = 5,
                                .max_sequence = 4};
  double const per_row = 6 * (4 * 4 + 3 * 6 + 10);  // 2 per weight forward, 4 backward
  double const per_pair = 6 * 2 * 2;                // two products of head size 2
  EXPECT_DOUBLE_EQ(product_flops(shape, {.batch = 1, .sequence = 1}), per_row + per_pair);
  EXPECT_DOUBLE_EQ(product_flops(shape, {.batch = 2, .sequence = 4}), 8 * per_row + 20 * per_pair);
  // Recomputation is not counted: it is no product of forward or backward.
  EXPECT_DOUBLE_EQ(product_flops(shape, {.batch = 1, .sequence = 1, .fates = {recomputed_block}}),
                   per_row + per_pair);
}

TEST(ProductFlops, OfGpt2HaveOneProductLessInTheMlp) {
  state::ModelShape const shape{.family = state::Family::gpt2,
                                .layers = 1,
                                .hidden = 2,
                                .heads = 1,
                                .kv_heads = 1,
                                .ffn_hidden = 3,
                                .vocab = 5,
                                .max_sequence = 4};
  double const per_row = 6 * (4 * 4 + 2 * 6 + 10);
  double const per_pair = 6 * 2 * 2;
  EXPECT_DOUBLE_EQ(product_flops(shape, {.batch = 1, .sequence = 1}), per_row + per_pair);
}

}  // namespace
}  // namespace offstage::model
