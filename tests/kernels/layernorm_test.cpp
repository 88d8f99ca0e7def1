#include "kernels/norms/layernorm.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct LayerForward {
  std::vector<T> x, delta, weight, bias, y;
  std::vector<Real<T>> mean, inverse_deviation;
  Shape shape;

  explicit LayerForward(Shape s)
      : x{random_values<T>(s.rows * s.width, 1, 2.0)},
        delta{random_values<T>(s.rows * s.width, 2)},
        weight{random_values<T>(s.width, 3)},
        bias{random_values<T>(s.width, 7)},
        y(s.rows * s.width),
        mean(s.rows),
        inverse_deviation(s.rows),
        shape{s} {}
  LayernormForward<T> view() {
    return {x,
            delta,
            delta.empty() ? std::span<T>{} : x,
            weight,
            bias,
            y,
            mean,
            inverse_deviation,
            shape.rows,
            shape.width,
            1e-2};
  }
};

template <class T>
struct LayerBackward {
  std::vector<T> x, weight, dy, dx, d_weight, d_bias;
  std::vector<Real<T>> mean, inverse_deviation;
  Shape shape;

  explicit LayerBackward(Shape s)
      : x{random_values<T>(s.rows * s.width, 1, 2.0)},
        weight{random_values<T>(s.width, 3)},
        dy{random_values<T>(s.rows * s.width, 4)},
        dx{random_values<T>(s.rows * s.width, 5)},
        d_weight(s.width, store<T>(7.0)),
        d_bias(s.width, store<T>(7.0)),
        mean(convert<Real<T>>(random_values(s.rows, 8))),
        inverse_deviation(convert<Real<T>>(random_values(s.rows, 6))),
        shape{s} {}
  LayernormBackward<T> view() {
    return {x, weight, dy, mean, inverse_deviation, dx, d_weight, d_bias, shape.rows, shape.width};
  }
};

TEST(Layernorm, SubtractsTheMeanAndDividesByTheDeviation) {
  std::vector<double> x{1.0, 5.0, 3.0, 3.0}, y(4), mean(1), inverse(1);
  std::vector<double> const weight{1.0, 10.0, 1.0, 1.0}, bias{0.0, 0.0, 0.5, 0.0};

  ref::layernorm_forward<double>({x, {}, {}, weight, bias, y, mean, inverse, 1, 4, 0.0});

  EXPECT_EQ(mean[0], 3.0);
  EXPECT_DOUBLE_EQ(inverse[0], 1 / std::sqrt(2.0));  // squares 4, 4, 0, 0, divided by four
  EXPECT_DOUBLE_EQ(y[0], -std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(y[1], 10 * std::sqrt(2.0));
  EXPECT_EQ(y[2], 0.5);
  EXPECT_EQ(y[3], 0.0);
  EXPECT_EQ(x, (std::vector<double>{1.0, 5.0, 3.0, 3.0}));
}

TEST(Layernorm, AddsTheResidualFirst) {
  std::vector<float> x{1.0F, 1.0F}, y(2), mean(1), inverse(1);
  std::vector<float> const delta{2.0F, -2.0F}, weight{1.0F, 1.0F}, bias{0.0F, 1.0F};

  host::layernorm_forward<float>({x, delta, x, weight, bias, y, mean, inverse, 1, 2, 0.0});

  EXPECT_EQ(x, (std::vector<float>{3.0F, -1.0F}));
  EXPECT_EQ(y, (std::vector<float>{1.0F, 0.0F}));
}

TEST(Layernorm, LeavesXAsItIsWhenTheSumGoesElsewhere) {
  for (Shape const shape : odd_shapes) {
    LayerForward<float16> in_place{shape}, elsewhere{shape}, plain{shape};
    std::vector<float16> sum(elsewhere.x.size());
    host::layernorm_forward(in_place.view());
    auto const apart = [&](LayerForward<float16>& f) {
      auto view = f.view();
      view.sum = sum;
      return view;
    };
    host::layernorm_forward(apart(elsewhere));
    EXPECT_EQ(elsewhere.x, LayerForward<float16>{shape}.x);
    EXPECT_EQ(sum, in_place.x);
    EXPECT_EQ(elsewhere.y, in_place.y);
    ref::layernorm_forward(apart(plain));
    EXPECT_EQ(plain.x, elsewhere.x);
    EXPECT_EQ(sum, in_place.x);
  }
}

TEST(Layernorm, EpsilonKeepsAConstantRowFinite) {
  std::vector<float> x(3, 5.0F), y(3, 1.0F), mean(1), inverse(1);
  std::vector<float> const weight(3, 1.0F), bias(3, 2.0F);
  host::layernorm_forward<float>({x, {}, {}, weight, bias, y, mean, inverse, 1, 3, 1e-4});
  EXPECT_NEAR(inverse[0], 100.0F, 1e-4F);
  EXPECT_EQ(y, bias);
}

TEST(Layernorm, ALargeMeanDoesNotDrownTheDeviation) {
  std::vector<float> x{4095.0F, 4097.0F}, y(2), mean(1), inverse(1);
  std::vector<float> const weight(2, 1.0F), bias(2);
  host::layernorm_forward<float>({x, {}, {}, weight, bias, y, mean, inverse, 1, 2, 0.0});
  EXPECT_EQ(y, (std::vector<float>{-1.0F, 1.0F}));
}

TEST(Layernorm, BackwardMatchesCentralDifferences) {
  Shape const shape{3, 5};
  LayerForward<double> f{shape};
  f.delta.clear();
  auto const dy = random_values(15, 4);
  auto const loss = [&] {
    ref::layernorm_forward(f.view());
    return dot(f.y, dy);
  };
  auto expected_dx = central_differences(f.x, loss);
  auto const expected_d_weight = central_differences(f.weight, loss);
  auto const expected_d_bias = central_differences(f.bias, loss);
  loss();

  auto dx = random_values(15, 5);  // the residual path's gradient
  for (std::size_t i = 0; i < dx.size(); ++i) {
    expected_dx[i] += dx[i];
  }
  std::vector<double> d_weight(5, 7.0), d_bias(5, 7.0);
  ref::layernorm_backward<double>(
      {f.x, f.weight, dy, f.mean, f.inverse_deviation, dx, d_weight, d_bias, 3, 5});

  expect_close(dx, expected_dx, 1e-8);
  expect_close(d_weight, expected_d_weight, 1e-8);
  expect_close(d_bias, expected_d_bias, 1e-8);
}

/// Against FP64 from equal inputs: `tolerance` is a few roundings of T.
template <class T>
void expect_layernorm_close_to_fp64(double tolerance) {
  for (Shape const shape : odd_shapes) {
    LayerForward<double> exact{shape};
    LayerForward<T> fast{shape};
    ref::layernorm_forward(exact.view());
    host::layernorm_forward(fast.view());
    expect_close(convert<double>(fast.x), exact.x, tolerance);
    expect_close(convert<double>(fast.y), exact.y, 4 * tolerance);

    LayerBackward<double> exact_back{shape};
    LayerBackward<T> fast_back{shape};
    ref::layernorm_backward(exact_back.view());
    host::layernorm_backward(fast_back.view());
    expect_close(convert<double>(fast_back.dx), exact_back.dx, tolerance);
    expect_close(convert<double>(fast_back.d_weight), exact_back.d_weight, tolerance);
    expect_close(convert<double>(fast_back.d_bias), exact_back.d_bias, tolerance);
  }
}

TEST(Layernorm, HostIsCloseToTheFp64Reference) {
  expect_layernorm_close_to_fp64<float>(1e-5);
  expect_layernorm_close_to_fp64<bfloat16>(1.0 / 128);
  expect_layernorm_close_to_fp64<float16>(1.0 / 1024);
}

template <class T>
void expect_layernorm_rounds_as_ref() {
  for (Shape const shape : odd_shapes) {
    LayerForward<T> plain{shape}, fast{shape};
    ref::layernorm_forward(plain.view());
    host::layernorm_forward(fast.view());
    EXPECT_EQ(fast.x, plain.x);
    expect_same_rounding(fast.y, plain.y);

    LayerBackward<T> plain_back{shape}, fast_back{shape};
    ref::layernorm_backward(plain_back.view());
    host::layernorm_backward(fast_back.view());
    expect_same_rounding(fast_back.dx, plain_back.dx);
    expect_same_rounding(fast_back.d_weight, plain_back.d_weight);
    expect_same_rounding(fast_back.d_bias, plain_back.d_bias);
  }
}

TEST(Layernorm, HostInA16BitTypeRoundsAsTheReferenceDoes) {
  expect_layernorm_rounds_as_ref<bfloat16>();
  expect_layernorm_rounds_as_ref<float16>();
}

TEST(Layernorm, GradientsDoNotDependOnTheNumberOfThreads) {
  auto const run = [] {
    LayerBackward<float> b{{333, 40}};
    host::layernorm_backward(b.view());
    return std::vector{b.d_weight, b.d_bias, b.dx};
  };
  EXPECT_EQ(with_threads(1, run), with_threads(2, run));
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

TEST(Layernorm, RunsOnAStream) {
  LayerForward<double> exact{{2, 9}};
  LayerForward<float> fast{{2, 9}};
  LayerBackward<double> exact_back{{2, 9}};
  LayerBackward<float> fast_back{{2, 9}};
  on_stream([&](device::Stream& stream) {
    layernorm_forward(stream, exact.view());
    layernorm_forward(stream, fast.view());
    layernorm_backward(stream, exact_back.view());
    layernorm_backward(stream, fast_back.view());
  });
  expect_close(convert<double>(fast.y), exact.y, 1e-5);
  expect_close(convert<double>(fast_back.dx), exact_back.dx, 1e-5);
}

TEST(Layernorm, RejectsViewsOfTheWrongLength) {
  auto const reject_forward = [](auto const& spoil) {
    LayerForward<float> f{{2, 3}};
    spoil(f);
    EXPECT_THROW(ref::layernorm_forward(f.view()), PreconditionError);
    EXPECT_THROW(host::layernorm_forward(f.view()), PreconditionError);
  };
  reject_forward([](auto& f) { f.x.pop_back(); });
  reject_forward([](auto& f) { f.delta.pop_back(); });
  reject_forward([](auto& f) { f.weight.pop_back(); });
  reject_forward([](auto& f) { f.bias.pop_back(); });
  reject_forward([](auto& f) { f.y.pop_back(); });
  reject_forward([](auto& f) { f.mean.pop_back(); });
  reject_forward([](auto& f) { f.inverse_deviation.pop_back(); });
  reject_forward([](auto& f) { f.shape = {-1, -6}; });

  auto const reject_backward = [](auto const& spoil) {
    LayerBackward<float> b{{2, 3}};
    spoil(b);
    EXPECT_THROW(ref::layernorm_backward(b.view()), PreconditionError);
    EXPECT_THROW(host::layernorm_backward(b.view()), PreconditionError);
  };
  reject_backward([](auto& b) { b.dx.pop_back(); });
  reject_backward([](auto& b) { b.dy.pop_back(); });
  reject_backward([](auto& b) { b.d_weight.pop_back(); });
  reject_backward([](auto& b) { b.d_bias.pop_back(); });
  reject_backward([](auto& b) { b.mean.pop_back(); });
  reject_backward([](auto& b) { b.inverse_deviation.pop_back(); });
}

}  // namespace
}  // namespace offstage::kernels
