// Gradients of the whole model: FP64 against central differences, the fast types against FP64.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model_fixture.hpp"

namespace offstage::model {
namespace {

using test::random_batch;
using test::TestModel;
using test::tiny_gpt2;
using test::tiny_shape;

double largest(std::vector<double> const& values) {
  double result = 0;
  for (double const value : values) {
    result = std::max(result, std::abs(value));
  }
  return result;
}

/// The part of a layer's gradient that belongs to `tensor`.
std::vector<double> of_tensor(std::vector<double> const& layer, state::TensorLayout const& tensor) {
  auto const begin = layer.begin() + tensor.offset;
  return {begin, begin + tensor.elements()};
}

/// Sampled elements of every tensor against (loss(p + h) - loss(p - h)) / 2 h.
void compare_with_central_differences(state::ModelShape const& shape, bool documents_apart) {
  TestModel<double> setup{shape, {.batch = 2, .sequence = 5, .documents_apart = documents_apart}};
  auto const plain = random_batch(2, 5, setup.shape.vocab, 3);
  auto const batch = documents_apart ? test::with_documents(plain) : plain;
  setup.step(batch);

  constexpr double h = 1e-5;
  constexpr std::int64_t samples = 24;
  for (std::size_t layer = 0; layer < setup.layers.size(); ++layer) {
    for (auto const& tensor : setup.layers[layer].tensors) {
      auto const gradient = of_tensor(setup.gradient(layer), tensor);
      double const tolerance = 1e-6 * largest(gradient);
      EXPECT_GT(tolerance, 0.0) << tensor.name;
      std::int64_t const stride = std::max<std::int64_t>(1, tensor.elements() / samples);
      for (std::int64_t i = 0; i < tensor.elements(); i += stride) {
        double& parameter =
            setup.parameters.values[layer][static_cast<std::size_t>(tensor.offset + i)];
        double const middle = parameter;
        parameter = middle + h;
        double const above = setup.model.evaluate(batch, setup.parameters);
        parameter = middle - h;
        double const below = setup.model.evaluate(batch, setup.parameters);
        parameter = middle;
        EXPECT_NEAR(gradient[static_cast<std::size_t>(i)], (above - below) / (2 * h), tolerance)
            << tensor.name << " element " << i;
      }
    }
  }
}

class Gradient : public ::testing::TestWithParam<test::NamedShape> {};
INSTANTIATE_TEST_SUITE_P(Of, Gradient, ::testing::ValuesIn(test::all_tiny_shapes()), test::name_of);

TEST_P(Gradient, MatchesCentralDifferencesInFp64) {
  compare_with_central_differences(GetParam().shape, false);
}

TEST_P(Gradient, OfDocumentsThatAreApartMatchesCentralDifferencesInFp64) {
  compare_with_central_differences(GetParam().shape, true);
}

/// Every element of every tensor, against FP64 from the same parameters.
template <class T>
void compare_with_fp64(state::ModelShape const& shape, double tolerance,
                       RunShape const& run = {.batch = 2, .sequence = 5}) {
  auto const plain = random_batch(run.batch, run.sequence, shape.vocab, 3);
  auto const batch = run.documents_apart ? test::with_documents(plain) : plain;
  TestModel<double> exact{shape, run};
  TestModel<T> fast{shape, run};
  EXPECT_NEAR(fast.step(batch), exact.step(batch), tolerance);
  for (std::size_t layer = 0; layer < exact.layers.size(); ++layer) {
    for (auto const& tensor : exact.layers[layer].tensors) {
      auto const wanted = of_tensor(exact.gradient(layer), tensor);
      EXPECT_THAT(of_tensor(fast.gradient(layer), tensor),
                  ::testing::Pointwise(::testing::DoubleNear(tolerance * largest(wanted)), wanted))
          << tensor.name;
    }
  }
}

TEST_P(Gradient, OfFp32IsCloseToFp64) {
  compare_with_fp64<float>(GetParam().shape, 1e-4);
}
// A bf16 number has 8 bits: 0.4 % per rounding, and some twenty roundings lie on the way back; more
// where queries and keys have norms, whose gradients are differences of what is rounded, and yet
// more where what layers add goes through another norm.
double bf16_tolerance(state::ModelShape const& shape) {
  return shape.norms_after ? 0.2 : shape.qk_norm == state::QkNorm::none ? 0.05 : 0.1;
}
TEST_P(Gradient, OfBf16IsCloseToFp64) {
  compare_with_fp64<bfloat16>(GetParam().shape, bf16_tolerance(GetParam().shape));
}
// 11 bits.
TEST_P(Gradient, OfFp16IsCloseToFp64) {
  compare_with_fp64<float16>(GetParam().shape, bf16_tolerance(GetParam().shape) / 8);
}

// 600 rows: the head has three tiles of them. In 16 bits the gradients of queries and keys, which
// nearly cancel over so many rows, say little; for the head see head_test.cpp.
TEST_P(Gradient, OfSeveralTilesOfRowsIsCloseToFp64) {
  compare_with_fp64<float>(GetParam().shape, 1e-4, {.batch = 40, .sequence = 15});
}

TEST_P(Gradient, OfDocumentsThatAreApartIsCloseToFp64) {
  compare_with_fp64<float>(GetParam().shape, 1e-4,
                           {.batch = 3, .sequence = 15, .documents_apart = true});
  // Queries and keys of few rows have gradients that are smaller beside their parts.
  double const tolerance = 2.0 * bf16_tolerance(GetParam().shape);
  RunShape const run{.batch = 2, .sequence = 5, .documents_apart = true};
  compare_with_fp64<bfloat16>(GetParam().shape, tolerance, run);
  compare_with_fp64<float16>(GetParam().shape, tolerance / 8, run);
}

/// Bits of all gradients; the loss too.
template <class T>
std::pair<double, std::map<int, std::vector<T>>> one_step(BlockFates const& fates,
                                                          state::ModelShape const& shape) {
  TestModel<T> setup{shape, {.batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates)}};
  double const loss = setup.step(random_batch(2, 5, setup.shape.vocab, 3));
  return {loss, setup.gradients.values};
}

template <class T>
void expect_same_bits_with_recomputation(state::ModelShape const& shape) {
  EXPECT_EQ(one_step<T>(kept_block, shape), one_step<T>(recomputed_block, shape));
}

TEST_P(Gradient, HasTheSameBitsWithRecomputation) {
  expect_same_bits_with_recomputation<float>(GetParam().shape);
  expect_same_bits_with_recomputation<bfloat16>(GetParam().shape);
  expect_same_bits_with_recomputation<float16>(GetParam().shape);
  expect_same_bits_with_recomputation<double>(GetParam().shape);
}

TEST_P(Gradient, OfASecondStepDoesNotDependOnTheFirst) {
  auto const& shape = GetParam().shape;
  auto const batch = random_batch(2, 5, shape.vocab, 3);
  TestModel<float> once{shape};
  TestModel<float> twice{shape};
  once.step(batch);
  twice.step(random_batch(2, 5, shape.vocab, 4));
  twice.step(batch);
  EXPECT_EQ(once.gradients.values, twice.gradients.values);
}

TEST(TransformerGradient, OfPositionsBeyondTheSequenceIsZero) {
  TestModel<float> setup{tiny_gpt2(true)};
  setup.step(random_batch(2, 5, setup.shape.vocab, 3));
  auto const positions = of_tensor(setup.gradient(0), setup.layers[0].tensor("wpe.weight"));
  auto const used = positions.begin() + 5 * setup.shape.hidden;
  EXPECT_GT(std::abs(*(used - 1)), 0.0);
  EXPECT_THAT((std::vector<double>{used, positions.end()}), ::testing::Each(0.0));
}

// Whole rows are ignored, so that the rest is a batch of its own; the divisor stays B T.
TEST(TransformerGradient, OfIgnoredTargetsIsNone) {
  TestModel<double> two{tiny_gpt2(true), {.batch = 2, .sequence = 5}};
  TestModel<double> one{tiny_gpt2(true), {.batch = 1, .sequence = 5}};
  auto batch = random_batch(2, 5, two.shape.vocab, 3);
  data::TokenBatch const half{.batch = 1,
                              .sequence = 5,
                              .tokens = {batch.tokens.begin(), batch.tokens.begin() + 5},
                              .targets = {batch.targets.begin(), batch.targets.begin() + 5}};
  std::fill(batch.targets.begin() + 5, batch.targets.end(), data::ignored_target);

  EXPECT_NEAR(two.step(batch), one.step(half) / 2, 1e-13);
  for (std::size_t layer = 0; layer < two.layers.size(); ++layer) {
    auto expected = one.gradient(layer);
    for (double& value : expected) {
      value /= 2;
    }
    EXPECT_THAT(two.gradient(layer), ::testing::Pointwise(::testing::DoubleNear(1e-13), expected));
  }
}

TEST(TransformerGradient, TimesTheLossScaleIsThatOfTheScaledLoss) {
  TestModel<float> plain{tiny_gpt2(true)};
  TestModel<float> scaled{tiny_gpt2(true)};
  auto const batch = random_batch(2, 5, plain.shape.vocab, 3);
  double const loss = plain.step(batch);
  EXPECT_EQ(scaled.model.forward(batch, scaled.parameters, 1024.0), loss);
  scaled.model.backward(scaled.parameters, scaled.gradients);
  for (std::size_t layer = 0; layer < plain.layers.size(); ++layer) {
    auto expected = plain.gradient(layer);
    for (double& value : expected) {
      value *= 1024;  // a power of two scales without rounding
    }
    EXPECT_EQ(scaled.gradient(layer), expected);
  }
}

TEST(TransformerGradient, OfManySequencesIsTheMeanOverThem) {
  constexpr std::int64_t sequences = 20;  // 300 rows: more than the head computes at a time
  constexpr std::int64_t tokens = 15;
  auto const shape = tiny_shape(false);
  auto const batch = random_batch(sequences, tokens, shape.vocab, 3);
  TestModel<double> all{shape, {.batch = sequences, .sequence = tokens}};
  TestModel<double> one{shape, {.batch = 1, .sequence = tokens}};
  double const loss = all.step(batch);

  double mean_loss = 0;
  std::vector<std::vector<double>> mean(all.layers.size());
  for (std::int64_t b = 0; b < sequences; ++b) {
    auto const part_of = [&](std::vector<std::int32_t> const& ids) {
      auto const begin = ids.begin() + b * tokens;
      return std::vector<std::int32_t>{begin, begin + tokens};
    };
    mean_loss += one.step({.batch = 1,
                           .sequence = tokens,
                           .tokens = part_of(batch.tokens),
                           .targets = part_of(batch.targets)}) /
                 sequences;
    for (std::size_t layer = 0; layer < mean.size(); ++layer) {
      auto const gradient = one.gradient(layer);
      mean[layer].resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        mean[layer][i] += gradient[i] / sequences;
      }
    }
  }
  EXPECT_NEAR(loss, mean_loss, 1e-13);
  for (std::size_t layer = 0; layer < mean.size(); ++layer) {
    EXPECT_THAT(all.gradient(layer),
                ::testing::Pointwise(::testing::DoubleNear(1e-13), mean[layer]));
  }
}

TEST(TransformerGradient, OfATiedTableIsTheSumOfBothUses) {
  TestModel<double> tied{tiny_shape(true)};
  TestModel<double> untied{tiny_shape(false)};
  auto const batch = random_batch(2, 5, tied.shape.vocab, 3);
  // The untied model gets the tied one's numbers, its head a copy of the embedding.
  std::size_t const head = tied.layers.size() - 1;
  auto const& matrix = untied.layers[head].tensor("lm_head.weight");
  auto const& norm = untied.layers[head].tensor("norm.weight");
  for (std::size_t layer = 0; layer < head; ++layer) {
    untied.parameters.values[layer] = tied.parameters.values[layer];
  }
  std::ranges::copy(tied.parameters.values[0],
                    untied.parameters.values[head].begin() + matrix.offset);
  std::ranges::copy(tied.parameters.values[head],
                    untied.parameters.values[head].begin() + norm.offset);

  EXPECT_DOUBLE_EQ(tied.step(batch), untied.step(batch));
  auto sum = untied.gradient(0);
  auto const of_head = of_tensor(untied.gradient(head), matrix);
  std::ranges::transform(sum, of_head, sum.begin(), std::plus{});
  EXPECT_THAT(tied.gradient(0), ::testing::Pointwise(::testing::DoubleNear(1e-12), sum));
  for (std::size_t layer = 1; layer < head; ++layer) {
    EXPECT_EQ(tied.gradient(layer), untied.gradient(layer));
  }
  EXPECT_EQ(tied.gradient(head), of_tensor(untied.gradient(head), norm));
}

}  // namespace
}  // namespace offstage::model
