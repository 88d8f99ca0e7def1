#include "kernels/linear/bias.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Biased {
  std::vector<T> y, bias, dy, d_bias;
  Shape shape;

  explicit Biased(Shape s)
      : y{random_values<T>(s.rows * s.width, 1)},
        bias{random_values<T>(s.width, 2)},
        dy{random_values<T>(s.rows * s.width, 3)},
        d_bias(s.width, store<T>(7.0)),
        shape{s} {}
  BiasForward<T> forward() { return {y, bias, shape.rows, shape.width}; }
  BiasBackward<T> backward() { return {dy, d_bias, shape.rows, shape.width}; }
};

TEST(Bias, IsAddedToEveryRow) {
  std::vector<float> by_ref{1, 2, 3, 4}, by_host = by_ref;
  std::vector<float> const bias{10, 20};
  ref::bias_forward<float>({by_ref, bias, 2, 2});
  host::bias_forward<float>({by_host, bias, 2, 2});
  EXPECT_EQ(by_ref, (std::vector<float>{11, 22, 13, 24}));
  EXPECT_EQ(by_host, by_ref);
}

TEST(Bias, GradientIsTheSumOverRows) {
  std::vector<float> const dy{1, 2, 3, 4, 5, 6};
  std::vector<float> by_ref(2, 7.0F), by_host = by_ref;
  ref::bias_backward<float>({dy, by_ref, 3, 2});
  host::bias_backward<float>({dy, by_host, 3, 2});
  EXPECT_EQ(by_ref, (std::vector<float>{9, 12}));
  EXPECT_EQ(by_host, by_ref);
}

TEST(Bias, GradientOfNoRowsIsZero) {
  std::vector<float> d_bias(3, 7.0F);
  host::bias_backward<float>({{}, d_bias, 0, 3});
  EXPECT_EQ(d_bias, std::vector<float>(3));
}

TEST(Bias, GradientSumsInFp32AndRoundsOnce) {
  std::vector<bfloat16> dy(5, store<bfloat16>(1.0));
  dy[0] = store<bfloat16>(256.0);  // in bfloat16 256 + 1 is 256
  std::vector<bfloat16> d_bias(1);
  host::bias_backward<bfloat16>({dy, d_bias, 5, 1});
  EXPECT_EQ(to_float(d_bias[0]), 260.0F);
}

/// The sum of two numbers is rounded once everywhere; column sums run in another order.
template <class T>
void expect_host_like_ref(double tolerance) {
  for (Shape const shape : odd_shapes) {
    Biased<T> plain{shape}, fast{shape};
    Biased<double> exact{shape};
    ref::bias_forward(plain.forward());
    host::bias_forward(fast.forward());
    EXPECT_EQ(fast.y, plain.y);
    ref::bias_backward(exact.backward());
    ref::bias_backward(plain.backward());
    host::bias_backward(fast.backward());
    expect_close(convert<double>(plain.d_bias), exact.d_bias, tolerance);
    expect_close(convert<double>(fast.d_bias), exact.d_bias, tolerance);
  }
}

TEST(Bias, HostMatchesTheReference) {
  expect_host_like_ref<float>(1e-5);
  expect_host_like_ref<bfloat16>(1.0 / 256);
  expect_host_like_ref<float16>(1.0 / 2048);
}

TEST(Bias, GradientDoesNotDependOnTheNumberOfThreads) {
  auto const run = [] {
    Biased<float> b{{333, 40}};
    host::bias_backward(b.backward());
    return b.d_bias;
  };
  EXPECT_EQ(with_threads(1, run), with_threads(2, run));
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

TEST(Bias, RunsOnAStream) {
  Biased<double> exact{{2, 9}};
  Biased<float> fast{{2, 9}};
  on_stream([&](device::Stream& stream) {
    bias_forward(stream, exact.forward());
    bias_forward(stream, fast.forward());
    bias_backward(stream, exact.backward());
    bias_backward(stream, fast.backward());
  });
  expect_close(convert<double>(fast.y), exact.y, 1e-6);
  expect_close(convert<double>(fast.d_bias), exact.d_bias, 1e-6);
}

TEST(Bias, RejectsViewsOfTheWrongLength) {
  auto const reject = [](auto const& spoil, bool forward, bool backward) {
    Biased<float> b{{2, 3}};
    spoil(b);
    if (forward) {
      EXPECT_THROW(ref::bias_forward(b.forward()), PreconditionError);
      EXPECT_THROW(host::bias_forward(b.forward()), PreconditionError);
    }
    if (backward) {
      EXPECT_THROW(ref::bias_backward(b.backward()), PreconditionError);
      EXPECT_THROW(host::bias_backward(b.backward()), PreconditionError);
    }
  };
  reject([](auto& b) { b.shape.width = 0; }, true, true);
  reject([](auto& b) { b.y.pop_back(); }, true, false);
  reject([](auto& b) { b.bias.pop_back(); }, true, false);
  reject([](auto& b) { b.dy.pop_back(); }, false, true);
  reject([](auto& b) { b.d_bias.pop_back(); }, false, true);
}

}  // namespace
}  // namespace offstage::kernels
