#include "kernels/tokens/cross_entropy.hpp"

#include <limits>

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Losses {
  Shape shape;  // width is the vocabulary
  double scale = 0.25;
  double z_loss = 0.0;
  std::vector<Real<T>> logits;
  std::vector<std::int32_t> targets;
  std::vector<double> loss;
  std::vector<T> d_logits;

  explicit Losses(Shape s)
      : shape{s},
        logits{random_values<Real<T>>(s.rows * s.width, 1, 5.0)},
        targets{random_tokens(s.rows, s.width, 2)},
        loss(s.rows),
        d_logits(s.rows * s.width) {}
  CrossEntropy<T> view() {
    return {logits, targets, loss, d_logits, shape.rows, shape.width, scale, 0, z_loss};
  }
};

TEST(CrossEntropy, EqualLogitsCostTheLogOfTheVocabulary) {
  std::vector<double> const logits(4, 3.0);
  std::vector<std::int32_t> const targets{1};
  std::vector<double> loss(1), d_logits(4);

  ref::cross_entropy<double>({logits, targets, loss, d_logits, 1, 4, 2.0});

  EXPECT_DOUBLE_EQ(loss[0], std::log(4.0));
  EXPECT_EQ(d_logits, (std::vector<double>{0.5, -1.5, 0.5, 0.5}));
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  std::vector<float> const logits{1e4F, -1e4F, 0.0F, 1e4F, -1e4F, 0.0F};
  std::vector<std::int32_t> const targets{0, 1};
  for (auto const& run : {ref::cross_entropy<float>, host::cross_entropy<float>}) {
    std::vector<double> loss(2);
    std::vector<float> d_logits(6);
    run({logits, targets, loss, d_logits, 2, 3, 1.0});
    EXPECT_EQ(loss, (std::vector<double>{0.0, 2e4}));
    EXPECT_EQ(d_logits, (std::vector<float>{0, 0, 0, 1, -1, 0}));
  }
}

TEST(CrossEntropy, NanInALogitReachesTheLoss) {
  std::vector<float> const logits{0.0F, std::nanf(""), 1.0F};
  std::vector<std::int32_t> const targets{0};
  std::vector<double> loss(1);
  host::cross_entropy<float>({logits, targets, loss, {}, 1, 3, 1.0});
  EXPECT_TRUE(std::isnan(loss[0]));
}

TEST(CrossEntropy, GradientMatchesCentralDifferences) {
  Losses<double> l{{3, 6}};
  auto const expected = central_differences(l.logits, [&] {
    ref::cross_entropy(l.view());
    return l.scale * dot(l.loss, std::vector<double>(l.loss.size(), 1.0));
  });
  ref::cross_entropy(l.view());
  expect_close(l.d_logits, expected, 1e-8);
}

/// The auxiliary loss of all rows, from logits alone.
double squares_of_log_sums(Losses<double> const& l) {
  double sum = 0.0;
  for (std::int64_t r = 0; r < l.shape.rows; ++r) {
    double exponentials = 0.0;
    for (std::int64_t v = 0; v < l.shape.width; ++v) {
      exponentials += std::exp(l.logits[static_cast<std::size_t>(r * l.shape.width + v)]);
    }
    sum += std::pow(std::log(exponentials), 2.0);
  }
  return sum;
}

TEST(CrossEntropy, TheAuxiliaryLossIsInTheGradientAlone) {
  Losses<double> l{{3, 6}};
  l.z_loss = 0.3;
  auto const expected = central_differences(l.logits, [&] {
    ref::cross_entropy(l.view());
    return l.scale * (dot(l.loss, std::vector<double>(l.loss.size(), 1.0)) +
                      l.z_loss * squares_of_log_sums(l));
  });
  ref::cross_entropy(l.view());
  expect_close(l.d_logits, expected, 1e-8);
  auto const loss = l.loss;
  l.z_loss = 0.0;
  ref::cross_entropy(l.view());
  EXPECT_EQ(l.loss, loss);
}

template <class T>
void expect_host_rounds_as_ref(Shape shape, std::vector<double> const& loss, double z_loss) {
  Losses<T> plain{shape}, fast{shape};
  plain.z_loss = fast.z_loss = z_loss;
  ref::cross_entropy(plain.view());
  host::cross_entropy(fast.view());
  EXPECT_EQ(fast.loss, loss);
  expect_same_rounding(fast.d_logits, plain.d_logits);
}

TEST(CrossEntropy, HostMatchesTheReference) {
  for (double const z_loss : {0.0, 0.1}) {
    for (Shape const shape : {Shape{1, 1}, {1, 37}, {5, 256}, {2, 3001}}) {
      Losses<double> exact{shape};
      Losses<float> fast{shape};
      exact.z_loss = fast.z_loss = z_loss;
      ref::cross_entropy(exact.view());
      host::cross_entropy(fast.view());
      expect_close(fast.loss, exact.loss, 1e-6);
      expect_close(convert<double>(fast.d_logits), exact.d_logits, 1e-6);
      expect_host_rounds_as_ref<bfloat16>(shape, fast.loss, z_loss);
      expect_host_rounds_as_ref<float16>(shape, fast.loss, z_loss);
    }
  }
}

template <class T>
void expect_ignored_rows_take_no_part() {
  for (auto const& run : {ref::cross_entropy<T>, host::cross_entropy<T>}) {
    Losses<T> all{{4, 37}}, some{{4, 37}};
    run(all.view());
    for (std::int64_t const row : {1, 2}) {
      some.targets[row] = ignored_target;
      some.logits[row * 37 + 5] = std::numeric_limits<Real<T>>::quiet_NaN();
      all.loss[row] = 0.0;
      std::fill_n(all.d_logits.begin() + row * 37, 37, T{});
    }
    some.loss.assign(4, 1.0);
    some.d_logits.assign(4 * 37, store<T>(1.0));

    run(some.view());

    EXPECT_EQ(some.loss, all.loss);
    EXPECT_EQ(some.d_logits, all.d_logits);

    some.loss.assign(4, 1.0);
    run({some.logits, some.targets, some.loss, {}, 4, 37, 1.0});
    EXPECT_EQ(some.loss, all.loss);
  }
}

TEST(CrossEntropy, ARowWithTheIgnoredTargetHasNoLossAndNoGradient) {
  expect_ignored_rows_take_no_part<float>();
  expect_ignored_rows_take_no_part<bfloat16>();
  expect_ignored_rows_take_no_part<float16>();
}

TEST(CrossEntropy, AScaleBeyondTheRangeOfFloat16MakesTheGradientInfinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (auto const& run : {ref::cross_entropy<float16>, host::cross_entropy<float16>}) {
    std::vector<float> const logits(2);
    std::vector<std::int32_t> const targets{0};
    std::vector<double> loss(1);
    std::vector<float16> d_logits(2);
    run({logits, targets, loss, d_logits, 1, 2, 0x1p16});
    EXPECT_EQ(convert<float>(d_logits), (std::vector<float>{-0x1p15F, 0x1p15F}));
    run({logits, targets, loss, d_logits, 1, 2, 0x1p17});
    EXPECT_EQ(convert<float>(d_logits), (std::vector<float>{-infinity, infinity}));
    EXPECT_DOUBLE_EQ(loss[0], std::log(2.0));
  }
}

template <class T>
void expect_rows_apart_give_the_bits_of_dense_ones() {
  for (auto const& run : {ref::cross_entropy<T>, host::cross_entropy<T>}) {
    constexpr std::int64_t rows = 3, vocab = 37, pitch = 41;
    Losses<T> dense{{rows, vocab}}, apart{{rows, vocab}};
    dense.targets[1] = apart.targets[1] = ignored_target;
    run(dense.view());
    auto const guard = store<T>(77.0);
    apart.logits.assign(rows * pitch, std::numeric_limits<Real<T>>::quiet_NaN());
    apart.d_logits.assign(rows * pitch, guard);
    std::vector<T> expected(rows * pitch, guard);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(dense.logits.begin() + r * vocab, vocab, apart.logits.begin() + r * pitch);
      std::copy_n(dense.d_logits.begin() + r * vocab, vocab, expected.begin() + r * pitch);
    }
    auto view = apart.view();
    view.pitch = pitch;

    run(view);

    EXPECT_EQ(apart.loss, dense.loss);
    EXPECT_EQ(apart.d_logits, expected);
  }
}

TEST(CrossEntropy, RowsApartGiveTheBitsOfDenseOnesWhateverLiesBetweenThem) {
  expect_rows_apart_give_the_bits_of_dense_ones<float>();
  expect_rows_apart_give_the_bits_of_dense_ones<bfloat16>();
  expect_rows_apart_give_the_bits_of_dense_ones<float16>();
}

TEST(CrossEntropy, DoesNotDependOnTheNumberOfThreads) {
  auto const run = [] {
    Losses<float> l{{9, 100}};
    host::cross_entropy(l.view());
    return l.d_logits;
  };
  EXPECT_EQ(with_threads(1, run), with_threads(2, run));
}

TEST(CrossEntropy, RunsOnAStreamAndWithoutAGradient) {
  Losses<double> exact{{2, 9}};
  Losses<float> fast{{2, 9}};
  Losses<bfloat16> coarse{{2, 9}};
  Losses<float16> half{{2, 9}};
  fast.d_logits.clear();
  on_stream([&](device::Stream& stream) {
    cross_entropy(stream, exact.view());
    cross_entropy(stream, fast.view());
    cross_entropy(stream, coarse.view());
    cross_entropy(stream, half.view());
  });
  expect_close(fast.loss, exact.loss, 1e-6);
  expect_close(convert<double>(coarse.d_logits), exact.d_logits, 1e-2);
  expect_close(convert<double>(half.d_logits), exact.d_logits, 1e-3);
}

TEST(CrossEntropy, RejectsTargetsOutsideTheVocabularyAndWrongLengths) {
  auto const reject = [](auto const& spoil) {
    Losses<float> l{{2, 3}};
    spoil(l);
    EXPECT_THROW(ref::cross_entropy(l.view()), PreconditionError);
    EXPECT_THROW(host::cross_entropy(l.view()), PreconditionError);
  };
  reject([](auto& l) { l.targets[1] = 3; });
  reject([](auto& l) { l.targets[0] = ignored_target - 1; });
  reject([](auto& l) { l.targets.pop_back(); });
  reject([](auto& l) { l.logits.pop_back(); });
  reject([](auto& l) { l.loss.pop_back(); });
  reject([](auto& l) { l.d_logits.pop_back(); });
}

TEST(CrossEntropy, RejectsAPitchOfLessThanARowAndViewsThatLackThePitchOfTheLast) {
  for (std::int64_t const pitch : {-3, 2, 4}) {
    Losses<float> l{{2, 3}};
    auto view = l.view();
    view.pitch = pitch;
    EXPECT_THROW(ref::cross_entropy(view), PreconditionError) << pitch;
    EXPECT_THROW(host::cross_entropy(view), PreconditionError) << pitch;
  }
}

}  // namespace
}  // namespace offstage::kernels
