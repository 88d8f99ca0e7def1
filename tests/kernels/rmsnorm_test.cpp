#include "kernels/norms/rmsnorm.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct RmsForward {
  std::vector<T> x, delta, weight, y;
  std::vector<Real<T>> inverse_rms;
  Shape shape;

  explicit RmsForward(Shape s)
      : x{random_values<T>(s.rows * s.width, 1, 2.0)},
        delta{random_values<T>(s.rows * s.width, 2)},
        weight{random_values<T>(s.width, 3)},
        y(s.rows * s.width),
        inverse_rms(s.rows),
        shape{s} {}
  RmsnormForward<T> view() {
    return {x,          delta,       delta.empty() ? std::span<T>{} : x,
            weight,     y,           inverse_rms,
            shape.rows, shape.width, 1e-5};
  }
};

template <class T>
struct RmsBackward {
  std::vector<T> x, weight, dy, dx, d_weight;
  std::vector<Real<T>> inverse_rms;
  Shape shape;

  explicit RmsBackward(Shape s)
      : x{random_values<T>(s.rows * s.width, 1, 2.0)},
        weight{random_values<T>(s.width, 3)},
        dy{random_values<T>(s.rows * s.width, 4)},
        dx{random_values<T>(s.rows * s.width, 5)},
        d_weight(s.width, store<T>(7.0)),
        inverse_rms(convert<Real<T>>(random_values(s.rows, 6))),
        shape{s} {}
  RmsnormBackward<T> view() {
    return {x, weight, dy, inverse_rms, dx, d_weight, shape.rows, shape.width};
  }
};

TEST(Rmsnorm, DividesByTheRootMeanSquare) {
  std::vector<double> x{3.0, 4.0}, y(2), inverse(1);
  std::vector<double> const weight{1.0, 10.0};

  ref::rmsnorm_forward<double>({x, {}, {}, weight, y, inverse, 1, 2, 0.0});

  double const rms = std::sqrt(12.5);
  EXPECT_DOUBLE_EQ(inverse[0], 1 / rms);
  EXPECT_DOUBLE_EQ(y[0], 3.0 / rms);
  EXPECT_DOUBLE_EQ(y[1], 40.0 / rms);
  EXPECT_EQ(x, (std::vector<double>{3.0, 4.0}));
}

TEST(Rmsnorm, AddsTheResidualFirst) {
  std::vector<float> x{1.0F, 1.0F}, y(2), inverse(1);
  std::vector<float> const delta{1.0F, -3.0F}, weight{1.0F, 1.0F};

  host::rmsnorm_forward<float>({x, delta, x, weight, y, inverse, 1, 2, 0.0});

  EXPECT_EQ(x, (std::vector<float>{2.0F, -2.0F}));
  EXPECT_EQ(y, (std::vector<float>{1.0F, -1.0F}));
}

TEST(Rmsnorm, LeavesXAsItIsWhenTheSumGoesElsewhere) {
  for (Shape const shape : odd_shapes) {
    RmsForward<bfloat16> in_place{shape}, elsewhere{shape}, plain{shape};
    std::vector<bfloat16> sum(elsewhere.x.size());
    host::rmsnorm_forward(in_place.view());
    auto const apart = [&](RmsForward<bfloat16>& f) {
      auto view = f.view();
      view.sum = sum;
      return view;
    };
    host::rmsnorm_forward(apart(elsewhere));
    EXPECT_EQ(elsewhere.x, RmsForward<bfloat16>{shape}.x);
    EXPECT_EQ(sum, in_place.x);
    EXPECT_EQ(elsewhere.y, in_place.y);
    ref::rmsnorm_forward(apart(plain));
    EXPECT_EQ(plain.x, elsewhere.x);
    EXPECT_EQ(sum, in_place.x);
  }
}

TEST(Rmsnorm, EpsilonKeepsARowOfZerosFinite) {
  std::vector<float> x(3), y(3, 1.0F), inverse(1);
  std::vector<float> const weight(3, 1.0F);
  host::rmsnorm_forward<float>({x, {}, {}, weight, y, inverse, 1, 3, 1e-4});
  EXPECT_NEAR(inverse[0], 100.0F, 1e-4F);
  EXPECT_EQ(y, std::vector<float>(3));
}

TEST(Rmsnorm, BackwardMatchesCentralDifferences) {
  Shape const shape{3, 5};
  RmsForward<double> f{shape};
  f.delta.clear();
  auto const dy = random_values(15, 4);
  auto const loss = [&] {
    ref::rmsnorm_forward(f.view());
    return dot(f.y, dy);
  };
  auto expected_dx = central_differences(f.x, loss);
  auto const expected_d_weight = central_differences(f.weight, loss);
  loss();

  auto dx = random_values(15, 5);  // the residual path's gradient
  for (std::size_t i = 0; i < dx.size(); ++i) {
    expected_dx[i] += dx[i];
  }
  std::vector<double> d_weight(5, 7.0);
  ref::rmsnorm_backward<double>({f.x, f.weight, dy, f.inverse_rms, dx, d_weight, 3, 5});

  expect_close(dx, expected_dx, 1e-8);
  expect_close(d_weight, expected_d_weight, 1e-8);
}

TEST(Rmsnorm, HostInFloatIsCloseToTheFp64Reference) {
  for (Shape const shape : odd_shapes) {
    RmsForward<double> exact{shape};
    RmsForward<float> fast{shape};
    ref::rmsnorm_forward(exact.view());
    host::rmsnorm_forward(fast.view());
    expect_close(convert<double>(fast.x), exact.x, 1e-6);
    expect_close(convert<double>(fast.y), exact.y, 1e-5);
    expect_close(convert<double>(fast.inverse_rms), exact.inverse_rms, 1e-5);

    RmsBackward<double> exact_back{shape};
    RmsBackward<float> fast_back{shape};
    ref::rmsnorm_backward(exact_back.view());
    host::rmsnorm_backward(fast_back.view());
    expect_close(convert<double>(fast_back.dx), exact_back.dx, 1e-5);
    expect_close(convert<double>(fast_back.d_weight), exact_back.d_weight, 1e-5);
  }
}

template <class T>
void expect_rmsnorm_rounds_as_ref() {
  for (Shape const shape : odd_shapes) {
    RmsForward<T> plain{shape}, fast{shape};
    ref::rmsnorm_forward(plain.view());
    host::rmsnorm_forward(fast.view());
    EXPECT_EQ(fast.x, plain.x);
    expect_same_rounding(fast.y, plain.y);

    RmsBackward<T> plain_back{shape}, fast_back{shape};
    ref::rmsnorm_backward(plain_back.view());
    host::rmsnorm_backward(fast_back.view());
    expect_same_rounding(fast_back.dx, plain_back.dx);
    expect_same_rounding(fast_back.d_weight, plain_back.d_weight);
  }
}

TEST(Rmsnorm, HostIn16BitsRoundsAsTheReferenceDoes) {
  expect_rmsnorm_rounds_as_ref<bfloat16>();
  expect_rmsnorm_rounds_as_ref<float16>();
}

/// Three rows of four heads, of which the middle two are normalised: with each by itself as the
/// reference has it, in rows of its own.
TEST(Rmsnorm, OfPartsOfLongerRowsIsThatOfTheSameRowsAlone) {
  constexpr std::int64_t width = 5, heads = 2, rows = 3, pitch = 4 * width;
  RowPlaces const places{heads, pitch};
  auto const alone = RmsForward<float>{{rows * heads, width}};
  auto const dy = random_values<float>(rows * heads * width, 4);
  auto const place = [&](std::vector<float> const& values) {
    std::vector<float> all(rows * pitch, 9.0F);
    for (std::int64_t r = 0; r < rows * heads; ++r) {
      std::copy_n(values.begin() + r * width, width, all.begin() + width + places.begin(r, width));
    }
    return all;
  };
  auto const part = [&](auto& all) {
    return std::span{all}.subspan(width, places.extent(rows * heads, width));
  };
  std::vector<float> y(rows * heads * width), dx(y.size()), d_weight(width), inverse(rows * heads);
  ref::rmsnorm_forward<float>(
      {alone.x, {}, {}, alone.weight, y, inverse, rows * heads, width, 1e-5});
  ref::rmsnorm_backward<float>(
      {alone.x, alone.weight, dy, inverse, dx, d_weight, rows * heads, width});

  auto const check = [&](auto const& forward, auto const& backward) {
    auto const x = place(alone.x);
    auto out = place(std::vector<float>(y.size(), 9.0F));
    auto gradient = place(dy);
    std::vector<float> found_d_weight(width), found_inverse(rows * heads);
    forward(RmsnormForward<float>{part(x),
                                  {},
                                  {},
                                  alone.weight,
                                  part(out),
                                  found_inverse,
                                  rows * heads,
                                  width,
                                  1e-5,
                                  places});
    expect_close(convert<double>(out), convert<double>(place(y)), 1e-6);
    expect_close(convert<double>(found_inverse), convert<double>(inverse), 1e-6);
    backward(RmsnormBackward<float>{part(x), alone.weight, part(gradient), found_inverse,
                                    part(gradient), found_d_weight, rows * heads, width, false,
                                    places});
    expect_close(convert<double>(gradient), convert<double>(place(dx)), 1e-5);
    expect_close(convert<double>(found_d_weight), convert<double>(d_weight), 1e-5);
  };
  check(ref::rmsnorm_forward<float>, ref::rmsnorm_backward<float>);
  check(host::rmsnorm_forward<float>, host::rmsnorm_backward<float>);
}

TEST(Rmsnorm, RejectsRowsThatLieOverOneAnother) {
  std::vector<float> x(12), inverse(4), weight(3);
  auto const with = [&](RowPlaces const& places) {
    host::rmsnorm_forward<float>({x, {}, {}, weight, x, inverse, 4, 3, 1e-5, places});
  };
  EXPECT_NO_THROW(with({2, 6}));
  EXPECT_THROW(with({2, 5}), PreconditionError);
  EXPECT_THROW(with({3, 9}), PreconditionError);
  EXPECT_THROW(with({0, 6}), PreconditionError);
}

TEST(Rmsnorm, WeightGradientDoesNotDependOnTheNumberOfThreads) {
  auto const run = [] {
    RmsBackward<float> b{{333, 40}};
    host::rmsnorm_backward(b.view());
    return b.d_weight;
  };
  EXPECT_EQ(with_threads(1, run), with_threads(2, run));
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

TEST(Rmsnorm, RunsOnAStream) {
  RmsForward<double> exact{{2, 9}};
  RmsForward<float> fast{{2, 9}};
  RmsBackward<double> exact_back{{2, 9}};
  RmsBackward<float> fast_back{{2, 9}};
  RmsForward<float16> coarse{{2, 9}};
  RmsBackward<float16> coarse_back{{2, 9}};
  on_stream([&](device::Stream& stream) {
    rmsnorm_forward(stream, exact.view());
    rmsnorm_forward(stream, fast.view());
    rmsnorm_forward(stream, coarse.view());
    rmsnorm_backward(stream, exact_back.view());
    rmsnorm_backward(stream, fast_back.view());
    rmsnorm_backward(stream, coarse_back.view());
  });
  expect_close(convert<double>(fast.y), exact.y, 1e-5);
  expect_close(convert<double>(fast_back.dx), exact_back.dx, 1e-5);
  expect_close(convert<double>(coarse.y), exact.y, 1e-3);
  expect_close(convert<double>(coarse_back.dx), exact_back.dx, 1e-3);
}

TEST(Rmsnorm, RejectsASumWithoutADeltaAndTheOtherWayRound) {
  RmsForward<float> f{{2, 3}};
  auto without_delta = f.view(), without_sum = f.view();
  without_delta.delta = {};
  without_sum.sum = {};
  EXPECT_THROW(host::rmsnorm_forward(without_delta), PreconditionError);
  EXPECT_THROW(host::rmsnorm_forward(without_sum), PreconditionError);
}

TEST(Rmsnorm, RejectsViewsOfTheWrongLength) {
  auto const reject_forward = [](auto const& spoil) {
    RmsForward<float> f{{2, 3}};
    spoil(f);
    EXPECT_THROW(ref::rmsnorm_forward(f.view()), PreconditionError);
    EXPECT_THROW(host::rmsnorm_forward(f.view()), PreconditionError);
  };
  reject_forward([](auto& f) { f.x.pop_back(); });
  reject_forward([](auto& f) { f.delta.pop_back(); });
  reject_forward([](auto& f) { f.weight.pop_back(); });
  reject_forward([](auto& f) { f.y.pop_back(); });
  reject_forward([](auto& f) { f.inverse_rms.pop_back(); });
  reject_forward([](auto& f) { f.shape = {-1, -6}; });

  auto const reject_backward = [](auto const& spoil) {
    RmsBackward<float> b{{2, 3}};
    spoil(b);
    EXPECT_THROW(ref::rmsnorm_backward(b.view()), PreconditionError);
    EXPECT_THROW(host::rmsnorm_backward(b.view()), PreconditionError);
  };
  reject_backward([](auto& b) { b.dx.pop_back(); });
  reject_backward([](auto& b) { b.dy.pop_back(); });
  reject_backward([](auto& b) { b.d_weight.pop_back(); });
  reject_backward([](auto& b) { b.inverse_rms.pop_back(); });
}

}  // namespace
}  // namespace offstage::kernels
