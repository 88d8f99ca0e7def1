#include "kernels/pointwise/swiglu.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Gated {
  std::vector<T> gate_up, y, dy, d_gate_up;
  Shape shape;

  explicit Gated(Shape s)
      : gate_up{random_values<T>(2 * s.rows * s.width, 1, 4.0)},
        y(s.rows * s.width),
        dy{random_values<T>(s.rows * s.width, 2)},
        d_gate_up(2 * s.rows * s.width),
        shape{s} {}
  SwigluForward<T> forward() { return {gate_up, y, shape.rows, shape.width}; }
  SwigluBackward<T> backward() { return {gate_up, dy, d_gate_up, shape.rows, shape.width}; }
};

TEST(Swiglu, MultipliesSiluOfGateByUp) {
  std::vector<double> const gate_up{0.0, 1.0, 5.0, 2.0};  // gates 0 and 1, ups 5 and 2
  std::vector<double> y(2);
  ref::swiglu_forward<double>({gate_up, y, 1, 2});
  EXPECT_EQ(y[0], 0.0);
  EXPECT_DOUBLE_EQ(y[1], 2.0 / (1.0 + std::exp(-1.0)));
}

TEST(Swiglu, LargeGatesSaturateAndNanStays) {
  std::vector<float> const gate_up{-200.0F, 200.0F, std::nanf(""), 1.0F, 0.5F, 1.0F};
  std::vector<float> y(3);
  host::swiglu_forward<float>({gate_up, y, 1, 3});
  EXPECT_EQ(y[0], 0.0F);
  EXPECT_EQ(y[1], 100.0F);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(Swiglu, BackwardMatchesCentralDifferences) {
  Gated<double> g{{3, 5}};
  auto const expected = central_differences(g.gate_up, [&] {
    ref::swiglu_forward(g.forward());
    return dot(g.y, g.dy);
  });
  ref::swiglu_backward(g.backward());
  expect_close(g.d_gate_up, expected, 1e-8);
}

template <class T>
void expect_host_rounds_as_ref(Shape shape) {
  Gated<T> plain{shape}, fast{shape};
  ref::swiglu_forward(plain.forward());
  ref::swiglu_backward(plain.backward());
  host::swiglu_forward(fast.forward());
  host::swiglu_backward(fast.backward());
  expect_same_rounding(fast.y, plain.y);
  expect_same_rounding(fast.d_gate_up, plain.d_gate_up);
}

TEST(Swiglu, HostMatchesTheReference) {
  for (Shape const shape : odd_shapes) {
    Gated<double> exact{shape};
    Gated<float> fast{shape};
    ref::swiglu_forward(exact.forward());
    ref::swiglu_backward(exact.backward());
    host::swiglu_forward(fast.forward());
    host::swiglu_backward(fast.backward());
    expect_close(convert<double>(fast.y), exact.y, 1e-6);
    expect_close(convert<double>(fast.d_gate_up), exact.d_gate_up, 1e-6);
    expect_host_rounds_as_ref<bfloat16>(shape);
    expect_host_rounds_as_ref<float16>(shape);
  }
}

template <class T>
void expect_swiglu_same_in_place() {
  Gated<T> apart{{3, 37}};
  Gated<T> in_place{{3, 37}}, in_place_ref{{3, 37}};
  host::swiglu_backward(apart.backward());
  auto const run = [](Gated<T>& g, auto const& backward) {
    backward(SwigluBackward<T>{g.gate_up, g.dy, g.gate_up, 3, 37});
  };
  run(in_place, host::swiglu_backward<T>);
  EXPECT_EQ(in_place.gate_up, apart.d_gate_up);

  ref::swiglu_backward(apart.backward());
  run(in_place_ref, ref::swiglu_backward<T>);
  EXPECT_EQ(in_place_ref.gate_up, apart.d_gate_up);
}

TEST(Swiglu, BackwardWorksInPlace) {
  expect_swiglu_same_in_place<float>();
  expect_swiglu_same_in_place<bfloat16>();
  expect_swiglu_same_in_place<float16>();
}

TEST(Swiglu, RunsOnAStream) {
  Gated<double> exact{{2, 9}};
  Gated<float> fast{{2, 9}};
  Gated<bfloat16> coarse{{2, 9}};
  Gated<float16> half{{2, 9}};
  on_stream([&](device::Stream& stream) {
    swiglu_forward(stream, exact.forward());
    swiglu_forward(stream, fast.forward());
    swiglu_forward(stream, coarse.forward());
    swiglu_forward(stream, half.forward());
    swiglu_backward(stream, exact.backward());
    swiglu_backward(stream, fast.backward());
    swiglu_backward(stream, coarse.backward());
    swiglu_backward(stream, half.backward());
  });
  expect_close(convert<double>(fast.y), exact.y, 1e-6);
  expect_close(convert<double>(fast.d_gate_up), exact.d_gate_up, 1e-6);
  expect_close(convert<double>(coarse.d_gate_up), exact.d_gate_up, 1e-2);
  expect_close(convert<double>(half.d_gate_up), exact.d_gate_up, 1e-3);
}

TEST(Swiglu, RejectsViewsOfTheWrongLength) {
  auto const reject = [](auto const& spoil, bool forward, bool backward) {
    Gated<float> g{{2, 3}};
    spoil(g);
    if (forward) {
      EXPECT_THROW(ref::swiglu_forward(g.forward()), PreconditionError);
      EXPECT_THROW(host::swiglu_forward(g.forward()), PreconditionError);
    }
    if (backward) {
      EXPECT_THROW(ref::swiglu_backward(g.backward()), PreconditionError);
      EXPECT_THROW(host::swiglu_backward(g.backward()), PreconditionError);
    }
  };
  reject([](auto& g) { g.gate_up.pop_back(); }, true, true);
  reject([](auto& g) { g.shape.width = 0; }, true, true);
  reject([](auto& g) { g.y.pop_back(); }, true, false);
  reject([](auto& g) { g.dy.pop_back(); }, false, true);
  reject([](auto& g) { g.d_gate_up.pop_back(); }, false, true);
}

}  // namespace
}  // namespace offstage::kernels
