#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>

#include "kernels/pointwise_gpu_support.hpp"
#include "kernels/tokens/cross_entropy.hpp"
#include "kernels/tokens/embedding.hpp"
#include "kernels/tokens/sort_tokens.hpp"

namespace offstage::kernels {
namespace {

template <class Element>
class TokensOnGpu : public OnGpu {};
TYPED_TEST_SUITE(TokensOnGpu, GpuElements);
using ManyTokensOnGpu = OnGpu;

struct LossAndGradient {
  std::vector<double> loss;
  std::vector<double> d_logits;
};

template <class T>
LossAndGradient expected(std::vector<float> const& logits, std::vector<std::int32_t> const& targets,
                         double gradient_scale, double z_loss = 0.0) {
  auto const rows = static_cast<std::int64_t>(targets.size());
  auto const wide = convert<double>(logits);
  LossAndGradient result{std::vector<double>(targets.size()), std::vector<double>(logits.size())};
  ref::cross_entropy<double>({wide, targets, result.loss, result.d_logits, rows,
                              static_cast<std::int64_t>(logits.size()) / rows, gradient_scale, 0,
                              z_loss});
  return result;
}

/// How the arrays of a loss lie.
struct Lie {
  std::size_t offset = 0;  ///< elements by which they begin beside a multiple of 16 bytes
  std::int64_t pad = 0;    ///< elements between two rows
};

/// Dense rows with `pad` times `filler` behind each.
template <class T>
std::vector<T> spread(std::vector<T> const& dense, std::int64_t rows, std::int64_t pad, T filler) {
  std::int64_t const width = std::ssize(dense) / rows;
  std::vector<T> apart;
  for (std::int64_t row = 0; row < rows; ++row) {
    apart.insert(apart.end(), dense.begin() + row * width, dense.begin() + (row + 1) * width);
    apart.insert(apart.end(), static_cast<std::size_t>(pad), filler);
  }
  return apart;
}

/// The loss, and the gradient as dense rows.
template <class T>
std::tuple<std::vector<double>, std::vector<T>> on_gpu(device::Stream& stream,
                                                       std::vector<float> const& logits,
                                                       std::vector<std::int32_t> const& targets,
                                                       double gradient_scale, Lie lie = {},
                                                       double z_loss = 0.0) {
  auto const rows = static_cast<std::int64_t>(targets.size());
  std::int64_t const vocab = std::ssize(logits) / rows;
  auto const given = spread(logits, rows, lie.pad, NAN);
  Guarded<float> const there{given, lie.offset};
  Guarded<std::int32_t> const there_targets{targets};
  Guarded<double> const loss{poison<double>(rows)};
  auto const guard = store<T>(55.0F);
  Guarded<T> const there_d_logits{spread(poison<T>(rows * vocab), rows, lie.pad, guard),
                                  lie.offset};
  cross_entropy<T>(
      stream, {there.view(), there_targets.view(), loss.view(), there_d_logits.view(), rows, vocab,
               gradient_scale, lie.pad == 0 ? 0 : vocab + lie.pad, z_loss});
  stream.synchronize();
  auto const got = there.read();
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span{got}), std::as_bytes(std::span{given})))
      << "the logits were written";
  std::vector<T> d_logits;
  auto const all = there_d_logits.read();
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    T const value = all[static_cast<std::size_t>(i)];
    if (i % (vocab + lie.pad) < vocab) {
      d_logits.push_back(value);
    } else {
      EXPECT_EQ(value, guard) << "written behind a row";
    }
  }
  return {loss.read(), d_logits};
}

TYPED_TEST(TokensOnGpu, CrossEntropyHasTheAuxiliaryLossInItsGradient) {
  using T = TypeParam;
  for (Shape const shape : {Shape{5, 3}, Shape{3, 5003}}) {
    auto const logits = random_values<float>(shape.rows * shape.width, 1, 5.0);
    auto const targets = random_tokens(shape.rows, shape.width, 2);
    auto const [loss, d_logits] = on_gpu<T>(*this->stream, logits, targets, 128.0, {}, 0.1);
    expect_rounded(d_logits, expected<T>(logits, targets, 128.0, 0.1).d_logits);
    EXPECT_EQ(loss, std::get<0>(on_gpu<T>(*this->stream, logits, targets, 128.0)));
  }
}

TYPED_TEST(TokensOnGpu, CrossEntropyIsCloseToTheFp64Reference) {
  using T = TypeParam;
  struct Case {
    Shape shape;
    Lie lie{};
  };
  for (auto const& [shape, lie] :
       {Case{{1, 1}}, Case{{5, 3}}, Case{{5, 3}, {.pad = 5}}, Case{{9, 37}},
        Case{{9, 37}, {.pad = 2}}, Case{{7, 1000}}, Case{{6, 5003}}, Case{{6, 5003}, {.pad = 5}},
        Case{{4, 5003}, {.offset = 1}}, Case{{4, 5003}, {.offset = 1, .pad = 5}},
        Case{{3, 50257}, {.pad = 47}}, Case{{2, 262144}}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width << " and " << lie.pad);
    auto const logits = random_values<float>(shape.rows * shape.width, 1, 20.0);
    auto targets = random_tokens(shape.rows, shape.width, 2);
    targets.back() = ignored_target;
    auto const [loss, d_logits] =
        same_twice([&] { return on_gpu<T>(*this->stream, logits, targets, 128.0, lie); });
    auto const exact = expected<T>(logits, targets, 128.0);
    expect_rounded(d_logits, exact.d_logits);
    for (std::size_t r = 0; r < loss.size(); ++r) {
      ASSERT_NEAR(loss[r], exact.loss[r], 1e-5) << "row " << r;
    }
  }
}

TYPED_TEST(TokensOnGpu, HowFarRowsAreApartChangesNoBitsWhereAllAreAligned) {
  auto const logits = random_values<float>(4 * 5003, 1, 20.0);
  auto const targets = random_tokens(4, 5003, 2);
  auto const run = [&](std::int64_t pad) {
    return on_gpu<TypeParam>(*this->stream, logits, targets, 1.0, {.pad = pad});
  };
  EXPECT_EQ(run(5), run(53));
}

TYPED_TEST(TokensOnGpu, ARowThatTakesNoPartHasNoLossAndNoGradientWhateverItsLogits) {
  using T = TypeParam;
  for (float const logit : {0.0F, INFINITY, -INFINITY, NAN}) {
    Guarded<float> const logits{std::vector<float>(14, logit)};
    Guarded<std::int32_t> const targets{std::vector<std::int32_t>(2, ignored_target)};
    Guarded<double> const loss{poison<double>(2)};
    Guarded<T> const d_logits{poison<T>(14)};
    cross_entropy<T>(*this->stream,
                     {logits.view(), targets.view(), loss.view(), d_logits.view(), 2, 7, 1.0});
    this->stream->synchronize();
    EXPECT_EQ(loss.read(), std::vector<double>(2));
    EXPECT_EQ(d_logits.read(), std::vector<T>(14));
  }
}

TYPED_TEST(TokensOnGpu, WithoutAGradientCrossEntropyGivesTheLossAlone) {
  using T = TypeParam;
  auto const logits = random_values<float>(20, 1);
  std::vector<std::int32_t> const targets{3, 0};
  Guarded<float> const there{logits};
  Guarded<std::int32_t> const there_targets{targets};
  Guarded<double> const loss{poison<double>(2)};
  cross_entropy<T>(*this->stream,
                   {there.view(), there_targets.view(), loss.view(), {}, 2, 10, 0.0});
  this->stream->synchronize();
  expect_close(loss.read(), expected<T>(logits, targets, 0.0).loss, 1e-6);
}

/// Whoever is masked out has no share, wherever it stands; a sum of nothing but infinities is no
/// number.
TYPED_TEST(TokensOnGpu, InfiniteLogitsGiveWhatTheReferenceGives) {
  using T = TypeParam;
  constexpr std::int64_t vocab = 9001;
  for (float const special : {-INFINITY, INFINITY, NAN}) {
    for (std::int64_t const share : {1, 2, 5000, 9001}) {
      auto logits = random_values<float>(vocab, 3, 10.0);
      for (std::int64_t i = 0; i < share; ++i) {
        logits[static_cast<std::size_t>(i * vocab / share)] = special;
      }
      std::vector<std::int32_t> const targets{7};
      auto const [loss, d_logits] = on_gpu<T>(*this->stream, logits, targets, 1.0);
      auto const exact = expected<T>(logits, targets, 1.0);
      if (std::isnan(exact.loss[0])) {
        EXPECT_TRUE(std::isnan(loss[0])) << share << " times " << special;
        EXPECT_TRUE(std::ranges::all_of(d_logits, [](T d) { return std::isnan(load(d)); }));
      } else if (std::isinf(exact.loss[0])) {
        EXPECT_EQ(loss[0], exact.loss[0]) << share << " times " << special;
        expect_rounded(d_logits, exact.d_logits);
      } else {
        EXPECT_NEAR(loss[0], exact.loss[0], 1e-5) << share << " times " << special;
        expect_rounded(d_logits, exact.d_logits);
      }
    }
  }
}

TYPED_TEST(TokensOnGpu, ALossScaleThatIsTooLargeShows) {
  using T = TypeParam;
  std::vector<float> const logits{0.0F, 1.0F, -1.0F};
  auto const [loss, d_logits] = on_gpu<T>(*this->stream, logits, {0}, 1e6);
  bool const overflows = std::is_same_v<T, float16>;
  EXPECT_EQ(std::isinf(load(d_logits[0])), overflows);
  EXPECT_LT(load(d_logits[0]), 0.0F);
  EXPECT_EQ(std::isinf(load(d_logits[1])), overflows);
  EXPECT_NEAR(loss[0], expected<T>(logits, {0}, 1.0).loss[0], 1e-6);
}

TYPED_TEST(TokensOnGpu, AHitThatIsAlmostCertainKeepsItsGradient) {
  using T = TypeParam;
  std::vector<float> const logits{12.0F, 0.0F};
  auto const [loss, d_logits] = on_gpu<T>(*this->stream, logits, {0}, 1.0);
  expect_rounded(d_logits, expected<T>(logits, {0}, 1.0).d_logits);
  EXPECT_NEAR(load(d_logits[0]), -6.1441e-6, 2e-7);
}

struct Table {
  std::int64_t rows, vocab, width, sequence;
  std::size_t offset = 0;
};
/// Widths that are no multiple of anything, positions that are used never, once and often.
constexpr Table tables[] = {{1, 1, 1, 1},        {7, 5, 37, 3},   {150, 3, 33, 40},
                            {40, 9, 64, 100, 1}, {5, 9, 768, 2},  {2500, 3000, 8, 500},
                            {20, 6, 2056, 10},   {3, 2, 16384, 3}};

TYPED_TEST(TokensOnGpu, EmbeddingForwardIsExact) {
  using T = TypeParam;
  for (auto const& [rows, vocab, width, sequence, offset] : tables) {
    for (bool const has_positions : {false, true}) {
      auto const tokens = random_tokens(rows, vocab, 1);
      auto const table = random_values<T>(vocab * width, 2);
      auto const positions = random_values<T>(has_positions ? sequence * width : 0, 3);
      std::vector<T> out(static_cast<std::size_t>(rows * width));
      ref::embedding_forward<T>({tokens, table, out, rows, vocab, width, positions, sequence});

      Guarded<std::int32_t> const there_tokens{tokens};
      Guarded<T> const there_table{table, offset}, there_positions{positions, offset};
      Guarded<T> const there_out{poison<T>(rows * width), offset};
      auto const positions_view = has_positions ? there_positions.view() : std::span<T>{};
      embedding_forward<T>(*this->stream,
                           {there_tokens.view(), there_table.view(), there_out.view(), rows, vocab,
                            width, positions_view, sequence});
      this->stream->synchronize();
      EXPECT_EQ(there_out.read(), out);
    }
  }
}

template <class T>
void expect_embedding_backward(device::Stream& stream, Table const& shape,
                               std::vector<std::int32_t> const& tokens, bool has_positions) {
  auto const& [rows, vocab, width, sequence, offset] = shape;
  SCOPED_TRACE(testing::Message() << rows << " rows, " << vocab << " x " << width);
  auto const d_out = random_values<T>(rows * width, 2);
  auto const table = random_values<T>(vocab * width, 3);
  auto const positions = random_values<T>(has_positions ? sequence * width : 0, 4);
  auto exact_table = convert<double>(table), exact_positions = convert<double>(positions);
  auto const wide_d_out = convert<double>(d_out);
  ref::embedding_backward<double>(
      {tokens, wide_d_out, exact_table, rows, vocab, width, exact_positions, sequence});

  auto const [got_table, got_positions] = same_twice([&] {
    Guarded<std::int32_t> const there_tokens{tokens};
    Guarded<T> const there_d_out{d_out, offset}, there_table{table, offset};
    Guarded<T> const there_positions{positions, offset};
    auto const positions_view = has_positions ? there_positions.view() : std::span<T>{};
    embedding_backward<T>(stream, {there_tokens.view(), there_d_out.view(), there_table.view(),
                                   rows, vocab, width, positions_view, sequence});
    stream.synchronize();
    return std::tuple{there_table.read(), there_positions.read()};
  });
  expect_rounded(got_table, exact_table);
  expect_rounded(got_positions, exact_positions);
}

TYPED_TEST(TokensOnGpu, EmbeddingBackwardIsCloseToTheFp64Reference) {
  for (Table const& shape : tables) {
    for (bool const has_positions : {false, true}) {
      expect_embedding_backward<TypeParam>(
          *this->stream, shape, random_tokens(shape.rows, shape.vocab, 1), has_positions);
    }
  }
}

/// Positions of documents that share a sequence, and more rows of one position than one search
/// sees.
TYPED_TEST(TokensOnGpu, PositionsThatAreGivenTakeThePlaceOfTheRows) {
  using T = TypeParam;
  constexpr std::int64_t rows = 1400, vocab = 30, width = 40, sequence = 700;
  auto const tokens = random_tokens(rows, vocab, 1);
  auto const table = random_values<T>(vocab * width, 2);
  auto const positions = random_values<T>(sequence * width, 3);
  auto const d_out = random_values<T>(rows * width, 4);
  std::vector<std::int32_t> position_of;
  for (std::int32_t r = 0; r < rows; ++r) {
    position_of.push_back(r < 600 ? r : r < 700 ? 0 : (r - 700) % 3);
  }
  std::vector<T> out(static_cast<std::size_t>(rows * width));
  ref::embedding_forward<T>(
      {tokens, table, out, rows, vocab, width, positions, sequence, position_of});
  auto exact_table = convert<double>(table), exact_positions = convert<double>(positions);
  auto const wide_d_out = convert<double>(d_out);
  ref::embedding_backward<double>({tokens, wide_d_out, exact_table, rows, vocab, width,
                                   exact_positions, sequence, position_of});

  auto const [got_out, got_table, got_positions] = same_twice([&] {
    Guarded<std::int32_t> const there_tokens{tokens}, there_places{position_of};
    Guarded<T> const there_table{table}, there_positions{positions}, there_d_out{d_out};
    Guarded<T> const there_out{poison<T>(rows * width)};
    embedding_forward<T>(*this->stream,
                         {there_tokens.view(), there_table.view(), there_out.view(), rows, vocab,
                          width, there_positions.view(), sequence, there_places.view()});
    embedding_backward<T>(*this->stream,
                          {there_tokens.view(), there_d_out.view(), there_table.view(), rows, vocab,
                           width, there_positions.view(), sequence, there_places.view()});
    this->stream->synchronize();
    return std::tuple{there_out.read(), there_table.read(), there_positions.read()};
  });
  EXPECT_EQ(got_out, out);
  expect_rounded(got_table, exact_table);
  expect_rounded(got_positions, exact_positions);
}

/// The run of a token is longer than what one search and one read see.
TYPED_TEST(TokensOnGpu, EmbeddingBackwardAddsManyRowsOfOneToken) {
  Table const shape{3000, 50, 24, 1500};
  auto tokens = random_tokens(shape.rows, shape.vocab, 1);
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    tokens[r] = r % 10 == 9 ? tokens[r] : 17;
  }
  expect_embedding_backward<TypeParam>(*this->stream, shape, tokens, false);
  std::ranges::fill(tokens, 49);
  expect_embedding_backward<TypeParam>(*this->stream, shape, tokens, false);
}

/// More rows than are ordered by counting.
TEST_F(ManyTokensOnGpu, EmbeddingBackwardAddsRowsThatAreSorted) {
  Table const shape{cuda::most_ranked_rows + 70, 3000, 8, 1500};
  expect_embedding_backward<bfloat16>(*this->stream, shape,
                                      random_tokens(shape.rows, shape.vocab, 1), false);
}

TEST_F(ManyTokensOnGpu, TokensAreSortedWithTheRowsOfEachInOrder) {
  for (std::int64_t const vocab : {1, 2, 300, 50257}) {
    for (std::int64_t const rows : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{70'001}}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << vocab);
      auto const tokens = random_tokens(rows, vocab, 1);
      std::vector<std::int32_t> order(tokens.size());
      std::iota(order.begin(), order.end(), 0);
      auto const token_of = [&](std::int32_t row) { return tokens[static_cast<std::size_t>(row)]; };
      std::ranges::stable_sort(order, {}, token_of);

      Guarded<std::int32_t> const there_tokens{tokens}, there_sorted{tokens}, there_order{tokens};
      DeviceArray<std::byte> const scratch{
          std::vector<std::byte>(cuda::sort_tokens_scratch(rows, vocab))};
      cuda::TokenSort const sort{there_tokens.view(), vocab, there_sorted.view(),
                                 there_order.view()};
      cuda::sort_tokens(sort, scratch.view(0, cuda::sort_tokens_scratch(rows, vocab)),
                        static_cast<CUstream_st*>(this->stream->native()));
      this->stream->synchronize();
      EXPECT_EQ(there_order.read(), order);
      std::vector<std::int32_t> sorted(tokens.size());
      std::ranges::transform(order, sorted.begin(), token_of);
      EXPECT_EQ(there_sorted.read(), sorted);
      EXPECT_EQ(there_tokens.read(), tokens);
    }
  }
}

TEST_F(ManyTokensOnGpu, SortingChecksItsArguments) {
  std::vector<std::int32_t> const tokens(3);
  std::vector<std::int32_t> sorted(3), order(2);
  std::vector<std::byte> scratch(cuda::sort_tokens_scratch(3, 2));
  EXPECT_THROW(cuda::sort_tokens({tokens, 2, sorted, order}, scratch, nullptr), PreconditionError);
  order.resize(3);
  scratch.pop_back();
  EXPECT_THROW(cuda::sort_tokens({tokens, 2, sorted, order}, scratch, nullptr), PreconditionError);
  EXPECT_THROW(static_cast<void>(cuda::sort_tokens_scratch(std::int64_t{1} << 31, 2)),
               PreconditionError);
}

TYPED_TEST(TokensOnGpu, NoRowsChangeNothing) {
  using T = TypeParam;
  auto const table = random_values<T>(6, 1);
  Guarded<T> const there{table};
  embedding_backward<T>(*this->stream, {{}, {}, there.view(), 0, 2, 3});
  embedding_forward<T>(*this->stream, {{}, there.view(), {}, 0, 2, 3});
  cross_entropy<T>(*this->stream, {{}, {}, {}, {}, 0, 3, 1.0});
  this->stream->synchronize();
  EXPECT_EQ(there.read(), table);
}

TEST(TokenKernelsOfCuda, CheckTheirArgumentsWithoutAGpu) {
  std::vector<float> table(6), out(5), whole(9);
  std::vector<double> loss(2);
  std::vector<std::int32_t> const tokens(3);
  std::vector<std::byte> scratch(cuda::embedding_backward_scratch(3, 2));
  EXPECT_THROW(cuda::embedding_forward<float>({tokens, table, out, 3, 2, 3}, nullptr),
               PreconditionError);
  EXPECT_THROW(cuda::embedding_backward<float>({tokens, out, table, 3, 2, 3}, scratch, nullptr),
               PreconditionError);
  scratch.pop_back();
  EXPECT_THROW(cuda::embedding_backward<float>({tokens, whole, table, 3, 2, 3}, scratch, nullptr),
               PreconditionError);
  EXPECT_THROW(cuda::cross_entropy<float>({whole, tokens, loss, {}, 3, 3, 1.0}, nullptr),
               PreconditionError);
  loss.resize(3);
  EXPECT_THROW(cuda::cross_entropy<float>({whole, tokens, loss, {}, 3, 3, 1.0, 2}, nullptr),
               PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
