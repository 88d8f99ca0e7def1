// What Transformer::logits gives, for every family.

#include <gtest/gtest.h>

#include <utility>

#include "model/model_fixture.hpp"
#include "model/naive_models.hpp"

namespace offstage::model {
namespace {

using test::random_batch;
using test::TestModel;
using test::tiny_gpt2;

class Logits : public ::testing::TestWithParam<test::NamedShape> {};
INSTANTIATE_TEST_SUITE_P(Of, Logits, ::testing::ValuesIn(test::all_tiny_shapes()), test::name_of);

TEST_P(Logits, AgreeWithTheEquationsWrittenDownNaively) {
  TestModel<double> setup{GetParam().shape, {.batch = 2, .sequence = 9}};
  auto const batch = random_batch(2, 9, setup.shape.vocab, 5);
  auto const expected = test::naive_of(setup)->logits(batch);
  std::vector<double> logits(static_cast<std::size_t>(5 * setup.shape.vocab));
  setup.model.logits(batch, setup.parameters, 7,
                     logits);  // two of one sequence, three of the other
  for (std::size_t i = 0; i < logits.size(); ++i) {
    auto const vocab = static_cast<std::size_t>(setup.shape.vocab);
    EXPECT_NEAR(logits[i], expected[7 + i / vocab][i % vocab], 1e-12) << "at " << i;
  }
}

/// The mean over rows of log(sum exp(logits)) - logits[target].
template <class U>
double loss_of(std::vector<U> const& logits, std::vector<std::int32_t> const& targets) {
  std::size_t const vocab = logits.size() / targets.size();
  double sum = 0;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    double partition = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      partition += std::exp(static_cast<double>(logits[r * vocab + v]));
    }
    auto const target = static_cast<std::size_t>(targets[r]);
    sum += std::log(partition) - static_cast<double>(logits[r * vocab + target]);
  }
  return sum / static_cast<double>(targets.size());
}

// 300 rows: more than the head computes at a time.
TEST_P(Logits, AreThoseThatTheLossIsOf) {
  TestModel<float> setup{GetParam().shape, {.batch = 20, .sequence = 15}};
  auto batch = random_batch(20, 15, setup.shape.vocab, 5);
  double const loss = setup.model.evaluate(batch, setup.parameters);
  auto const targets = std::exchange(batch.targets, {});
  std::vector<float> logits(static_cast<std::size_t>(300 * setup.shape.vocab));
  setup.model.logits(batch, setup.parameters, 0, logits);
  EXPECT_NEAR(loss_of(logits, targets), loss, 1e-6);
}

TEST(LogitsOfAModel, AcquireAsEvaluateDoesAndLeaveNothingForBackward) {
  for (bool const tied : {false, true}) {
    TestModel<float> setup{tiny_gpt2(tied)};
    auto const batch = random_batch(2, 5, setup.shape.vocab, 3);
    std::vector<float> logits(static_cast<std::size_t>(setup.shape.vocab));
    setup.model.forward(batch, setup.parameters);
    auto const acquired = std::exchange(setup.parameters.acquired, {});
    setup.model.logits(batch, setup.parameters, 9, logits);
    EXPECT_EQ(setup.parameters.acquired, acquired);
    EXPECT_EQ(setup.parameters.held(), 0U);
    EXPECT_THROW(setup.model.backward(setup.parameters, setup.gradients), PreconditionError);
  }
}

TEST(LogitsOfAModel, OutsideTheMicroBatchAreRefused) {
  TestModel<float> setup{tiny_gpt2(true)};
  auto const batch = random_batch(2, 5, setup.shape.vocab, 3);
  auto const ask = [&](std::int64_t first, std::int64_t elements) {
    std::vector<float> logits(static_cast<std::size_t>(elements));
    setup.model.logits(batch, setup.parameters, first, logits);
  };
  EXPECT_NO_THROW(ask(8, 2 * setup.shape.vocab));
  EXPECT_THROW(ask(9, 2 * setup.shape.vocab), PreconditionError);
  EXPECT_THROW(ask(-1, setup.shape.vocab), PreconditionError);
  EXPECT_THROW(ask(0, setup.shape.vocab + 1), PreconditionError);
}

}  // namespace
}  // namespace offstage::model
