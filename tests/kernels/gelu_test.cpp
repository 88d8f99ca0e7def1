#include "kernels/pointwise/gelu.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Activated {
  std::vector<T> x, y, dy, dx;
  Shape shape;
  bool exact;

  explicit Activated(Shape s, bool is_exact = false)
      : x{random_values<T>(s.rows * s.width, 1, 5.0)},
        y(s.rows * s.width),
        dy{random_values<T>(s.rows * s.width, 2)},
        dx(s.rows * s.width),
        shape{s},
        exact{is_exact} {}
  GeluForward<T> forward() { return {x, y, shape.rows, shape.width, exact}; }
  GeluBackward<T> backward() { return {x, dy, dx, shape.rows, shape.width, exact}; }
};

void expect_values(bool exact, std::vector<double> const& expected) {
  std::vector<double> const x{0.0, 1.0, -1.0, 2.0};
  std::vector<double> by_ref(4);
  ref::gelu_forward<double>({x, by_ref, 1, 4, exact});
  expect_close(by_ref, expected, 1e-15);

  auto const floats = convert<float>(x);
  std::vector<float> by_host(4);
  host::gelu_forward<float>({floats, by_host, 1, 4, exact});
  expect_close(convert<double>(by_host), expected, 1e-6);
}

// The values of torch.nn.functional.gelu(x, approximate="tanh") in FP64, and without approximate.
TEST(Gelu, GivesThePublishedValues) {
  expect_values(false, {0.0, 0.8411919906082768, -0.15880800939172324, 1.954597694087775});
  expect_values(true, {0.0, 0.8413447460685429, -0.15865525393145707, 1.9544997361036416});
}

class BothGelus : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Gelu, BothGelus, testing::Bool(),
                         [](auto const& exact) { return exact.param ? "Exact" : "Approximate"; });

TEST_P(BothGelus, LargeValuesSaturateAndNanStays) {
  bool const exact = GetParam();
  std::vector<float> const x{-200.0F, 200.0F, std::nanf(""), -1e6F}, ones(4, 1.0F);
  std::vector<float> y(4), dx(4);
  host::gelu_forward<float>({x, y, 1, 4, exact});
  EXPECT_EQ(y[0], 0.0F);
  EXPECT_EQ(y[1], 200.0F);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0F);
  host::gelu_backward<float>({x, ones, dx, 1, 4, exact});
  EXPECT_EQ(dx[0], 0.0F);
  EXPECT_EQ(dx[1], 1.0F);
  EXPECT_TRUE(std::isnan(dx[2]));
  EXPECT_EQ(dx[3], 0.0F);
}

/// Far below zero, where 1 + erf(x / sqrt(2)) would have no place left.
TEST(Gelu, ExactTailsAreRightInTheirLastPlaces) {
  for (float x = -12.0F; x < 0.0F; x += 0.0137F) {
    std::vector<float> const at{x};
    std::vector<double> const wide_at{x};
    std::vector<float> y(1);
    std::vector<double> wide_y(1);
    host::gelu_forward<float>({at, y, 1, 1, true});
    ref::gelu_forward<double>({wide_at, wide_y, 1, 1, true});
    ASSERT_NEAR(y[0] / wide_y[0], 1.0, 1e-6 + x * x * 1e-7) << x;
  }
}

TEST_P(BothGelus, BackwardMatchesCentralDifferences) {
  Activated<double> g{{3, 5}, GetParam()};
  auto const expected = central_differences(g.x, [&] {
    ref::gelu_forward(g.forward());
    return dot(g.y, g.dy);
  });
  ref::gelu_backward(g.backward());
  expect_close(g.dx, expected, 1e-8);
}

/// Against FP64 from equal inputs: `tolerance` is a few roundings of T.
template <class T>
void expect_host_close_to_fp64(bool exact, double tolerance) {
  for (Shape const shape : odd_shapes) {
    Activated<double> plain{shape, exact};
    Activated<T> fast{shape, exact};
    ref::gelu_forward(plain.forward());
    ref::gelu_backward(plain.backward());
    host::gelu_forward(fast.forward());
    host::gelu_backward(fast.backward());
    expect_close(convert<double>(fast.y), plain.y, tolerance);
    expect_close(convert<double>(fast.dx), plain.dx, tolerance);
  }
}

TEST_P(BothGelus, HostIsCloseToTheFp64Reference) {
  expect_host_close_to_fp64<float>(GetParam(), 2e-6);  // 1 - sigmoid cancels near 5
  expect_host_close_to_fp64<bfloat16>(GetParam(), 1.0 / 256);
  expect_host_close_to_fp64<float16>(GetParam(), 1.0 / 2048);
}

template <class T>
void expect_host_rounds_as_ref(bool exact) {
  for (Shape const shape : odd_shapes) {
    Activated<T> plain{shape, exact}, fast{shape, exact};
    ref::gelu_forward(plain.forward());
    ref::gelu_backward(plain.backward());
    host::gelu_forward(fast.forward());
    host::gelu_backward(fast.backward());
    expect_same_rounding(fast.y, plain.y);
    expect_same_rounding(fast.dx, plain.dx);
  }
}

TEST_P(BothGelus, HostInA16BitTypeRoundsAsTheReferenceDoes) {
  expect_host_rounds_as_ref<bfloat16>(GetParam());
  expect_host_rounds_as_ref<float16>(GetParam());
}

template <class T>
void expect_same_in_place(bool exact) {
  Activated<T> apart{{3, 37}, exact};
  Activated<T> in_place{{3, 37}}, in_place_ref{{3, 37}};
  host::gelu_backward(apart.backward());
  host::gelu_backward<T>({in_place.x, in_place.dy, in_place.x, 3, 37, exact});
  EXPECT_EQ(in_place.x, apart.dx);

  ref::gelu_backward(apart.backward());
  ref::gelu_backward<T>({in_place_ref.x, in_place_ref.dy, in_place_ref.x, 3, 37, exact});
  EXPECT_EQ(in_place_ref.x, apart.dx);
}

TEST_P(BothGelus, BackwardWorksInPlace) {
  expect_same_in_place<float>(GetParam());
  expect_same_in_place<bfloat16>(GetParam());
  expect_same_in_place<float16>(GetParam());
}

TEST_P(BothGelus, RunsOnAStream) {
  Activated<double> plain{{2, 9}, GetParam()};
  Activated<float> fast{{2, 9}, GetParam()};
  on_stream([&](device::Stream& stream) {
    gelu_forward(stream, plain.forward());
    gelu_forward(stream, fast.forward());
    gelu_backward(stream, plain.backward());
    gelu_backward(stream, fast.backward());
  });
  expect_close(convert<double>(fast.y), plain.y, 1e-6);
  expect_close(convert<double>(fast.dx), plain.dx, 1e-6);
}

TEST(Gelu, RejectsViewsOfTheWrongLength) {
  auto const reject = [](auto const& spoil, bool forward, bool backward) {
    Activated<float> g{{2, 3}};
    spoil(g);
    if (forward) {
      EXPECT_THROW(ref::gelu_forward(g.forward()), PreconditionError);
      EXPECT_THROW(host::gelu_forward(g.forward()), PreconditionError);
    }
    if (backward) {
      EXPECT_THROW(ref::gelu_backward(g.backward()), PreconditionError);
      EXPECT_THROW(host::gelu_backward(g.backward()), PreconditionError);
    }
  };
  reject([](auto& g) { g.x.pop_back(); }, true, true);
  reject([](auto& g) { g.shape.width = 0; }, true, true);
  reject([](auto& g) { g.y.pop_back(); }, true, false);
  reject([](auto& g) { g.dy.pop_back(); }, false, true);
  reject([](auto& g) { g.dx.pop_back(); }, false, true);
}

}  // namespace
}  // namespace offstage::kernels
