#include "cross_entropy.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Losses {
  Shape shape;  // width is the vocabulary
  double scale = 0.25;
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
    return {logits, targets, loss, d_logits, shape.rows, shape.width, scale};
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

TEST(CrossEntropy, HostMatchesTheReference) {
  for (Shape const shape : {Shape{1, 1}, {1, 37}, {5, 256}, {2, 3001}}) {
    Losses<double> exact{shape};
    Losses<float> fast{shape};
    Losses<bfloat16> plain{shape}, fast16{shape};
    ref::cross_entropy(exact.view());
    ref::cross_entropy(plain.view());
    host::cross_entropy(fast.view());
    host::cross_entropy(fast16.view());
    expect_close(fast.loss, exact.loss, 1e-6);
    expect_close(convert<double>(fast.d_logits), exact.d_logits, 1e-6);
    EXPECT_EQ(fast16.loss, fast.loss);
    expect_same_rounding(fast16.d_logits, plain.d_logits);
  }
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
  fast.d_logits.clear();
  on_stream([&](device::Stream& stream) {
    cross_entropy(stream, exact.view());
    cross_entropy(stream, fast.view());
    cross_entropy(stream, coarse.view());
  });
  expect_close(fast.loss, exact.loss, 1e-6);
  expect_close(convert<double>(coarse.d_logits), exact.d_logits, 1e-2);
}

TEST(CrossEntropy, RejectsTargetsOutsideTheVocabularyAndWrongLengths) {
  auto const reject = [](auto const& spoil) {
    Losses<float> l{{2, 3}};
    spoil(l);
    EXPECT_THROW(ref::cross_entropy(l.view()), PreconditionError);
    EXPECT_THROW(host::cross_entropy(l.view()), PreconditionError);
  };
  reject([](auto& l) { l.targets[1] = 3; });
  reject([](auto& l) { l.targets[0] = -1; });
  reject([](auto& l) { l.targets.pop_back(); });
  reject([](auto& l) { l.logits.pop_back(); });
  reject([](auto& l) { l.loss.pop_back(); });
  reject([](auto& l) { l.d_logits.pop_back(); });
}

}  // namespace
}  // namespace offstage::kernels
