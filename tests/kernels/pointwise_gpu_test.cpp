#include <cmath>
#include <limits>

#include "kernels/pointwise/add.hpp"
#include "kernels/pointwise/gelu.hpp"
#include "kernels/pointwise/rope.hpp"
#include "kernels/pointwise/swiglu.hpp"
#include "kernels/pointwise_gpu_support.hpp"

namespace offstage::kernels {
namespace {

template <class Element>
class PointwiseOnGpu : public OnGpu {};
TYPED_TEST_SUITE(PointwiseOnGpu, GpuElements);

TYPED_TEST(PointwiseOnGpu, GeluIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(rows * width, 1, 6.0), dy = random_values<T>(rows * width, 2);
    auto const wide_x = convert<double>(x), wide_dy = convert<double>(dy);
    std::vector<double> y(x.size()), dx(x.size());
    for (bool const exact : {false, true}) {
      ref::gelu_forward<double>({wide_x, y, rows, width, exact});
      ref::gelu_backward<double>({wide_x, wide_dy, dx, rows, width, exact});

      Guarded<T> const there_x{x, offset}, there_dy{dy, offset};
      Guarded<T> const there_y{poison<T>(rows * width), offset};
      gelu_forward<T>(*this->stream, {there_x.view(), there_y.view(), rows, width, exact});
      gelu_backward<T>(*this->stream,
                       {there_x.view(), there_dy.view(), there_x.view(), rows, width, exact});
      this->stream->synchronize();
      expect_rounded(there_y.read(), y);
      expect_rounded(there_x.read(), dx);
    }
  }
}

TYPED_TEST(PointwiseOnGpu, AddHasTheBitsOfTheReference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(rows * width, 1), y = random_values<T>(rows * width, 2);
    auto sum = x;
    ref::add<T>({x, y, sum, rows, width});
    Guarded<T> const there_x{x, offset}, there_y{y, offset};
    add<T>(*this->stream, {there_x.view(), there_y.view(), there_x.view(), rows, width});
    this->stream->synchronize();
    EXPECT_EQ(there_x.read(), sum);
  }
}

TYPED_TEST(PointwiseOnGpu, SwigluIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const gate_up = random_values<T>(2 * rows * width, 1, 6.0);
    auto const dy = random_values<T>(rows * width, 2);
    auto const wide_gate_up = convert<double>(gate_up), wide_dy = convert<double>(dy);
    std::vector<double> y(dy.size()), d_gate_up(gate_up.size());
    ref::swiglu_forward<double>({wide_gate_up, y, rows, width});
    ref::swiglu_backward<double>({wide_gate_up, wide_dy, d_gate_up, rows, width});

    Guarded<T> const there{gate_up, offset}, there_dy{dy, offset};
    Guarded<T> const there_y{poison<T>(rows * width), offset};
    swiglu_forward<T>(*this->stream, {there.view(), there_y.view(), rows, width});
    swiglu_backward<T>(*this->stream, {there.view(), there_dy.view(), there.view(), rows, width});
    this->stream->synchronize();
    expect_rounded(there_y.read(), y);
    expect_rounded(there.read(), d_gate_up);
  }
}

/// Where exp(-x) is infinite or nothing.
TYPED_TEST(PointwiseOnGpu, ActivationsFarOutAreTheirLimits) {
  using T = TypeParam;
  std::vector const x{store<T>(-60000.0F), store<T>(60000.0F), store<T>(-100.0F), store<T>(100.0F)};
  std::vector const ones(4, store<T>(1.0F)), zeros(4, store<T>(0.0F));
  std::vector<T> gate_up{x[0], x[1], x[2], x[3], ones[0], ones[0], ones[0], ones[0]};
  Guarded<T> const there_x{x}, there_ones{ones}, gelu{zeros}, d_gelu{zeros};
  Guarded<T> const exact_gelu{zeros}, d_exact_gelu{zeros};
  Guarded<T> const there_gate_up{gate_up}, swiglu{zeros};
  gelu_forward<T>(*this->stream, {there_x.view(), gelu.view(), 1, 4});
  gelu_backward<T>(*this->stream, {there_x.view(), there_ones.view(), d_gelu.view(), 1, 4});
  gelu_forward<T>(*this->stream, {there_x.view(), exact_gelu.view(), 1, 4, true});
  gelu_backward<T>(*this->stream,
                   {there_x.view(), there_ones.view(), d_exact_gelu.view(), 1, 4, true});
  swiglu_forward<T>(*this->stream, {there_gate_up.view(), swiglu.view(), 1, 4});
  this->stream->synchronize();
  std::vector<double> const positive_part{0, load(x[1]), 0, load(x[3])}, step{0, 1, 0, 1};
  EXPECT_EQ(convert<double>(gelu.read()), positive_part);
  EXPECT_EQ(convert<double>(d_gelu.read()), step);
  EXPECT_EQ(convert<double>(exact_gelu.read()), positive_part);
  EXPECT_EQ(convert<double>(d_exact_gelu.read()), step);
  EXPECT_EQ(convert<double>(swiglu.read()), positive_part);
}

struct Heads {
  std::int64_t rows, sequence, heads, kv_heads, head_dim;
};

TYPED_TEST(PointwiseOnGpu, RopeTurnsQueriesAndKeysThereAndBack) {
  using T = TypeParam;
  for (auto const& [rows, sequence, heads, kv_heads, head_dim] :
       {Heads{1, 1, 1, 1, 2}, Heads{7, 3, 3, 1, 6}, Heads{10, 5, 4, 2, 64},
        Heads{3, 8, 20, 20, 128}, Heads{5, 2, 2, 2, 16}}) {
    for (std::size_t const offset : {0, 1}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, heads of " << head_dim);
      std::int64_t const row_length = (heads + 2 * kv_heads) * head_dim;
      auto const qkv = random_values<T>(rows * row_length, 1);
      auto const angles = static_cast<std::size_t>(sequence * head_dim / 2);
      std::vector<double> cosine(angles), sine(angles);
      rope_tables(sequence, head_dim, 10'000.0, cosine, sine);
      Guarded<float> const there_cosine{convert<float>(cosine)}, there_sine{convert<float>(sine)};
      for (bool const inverse : {false, true}) {
        auto exact = convert<double>(qkv);
        ref::rope<double>(
            {exact, cosine, sine, rows, sequence, heads, kv_heads, head_dim, inverse});
        Guarded<T> const there{qkv, offset};
        rope<T>(*this->stream, {there.view(), there_cosine.view(), there_sine.view(), rows,
                                sequence, heads, kv_heads, head_dim, inverse});
        this->stream->synchronize();
        auto const got = there.read();
        expect_rounded(got, exact);
        for (std::int64_t r = 0; r < rows; ++r) {  // values stay as they are
          for (std::int64_t i = (heads + kv_heads) * head_dim; i < row_length; ++i) {
            auto const at = static_cast<std::size_t>(r * row_length + i);
            ASSERT_EQ(load(got[at]), load(qkv[at]));
          }
        }
      }
    }
  }
}

TYPED_TEST(PointwiseOnGpu, NoRowsAreFine) {
  using T = TypeParam;
  std::vector<float> const one(1);
  Guarded<float> const angle{one};
  gelu_forward<T>(*this->stream, {{}, {}, 0, 3});
  swiglu_backward<T>(*this->stream, {{}, {}, {}, 0, 3});
  rope<T>(*this->stream, {{}, angle.view(), angle.view(), 0, 1, 1, 1, 2, false});
  EXPECT_NO_THROW(this->stream->synchronize());
}

using DoubleOnGpu = OnGpu;

TEST_F(DoubleOnGpu, IsRefused) {
  std::vector<double> x(2), y(2);
  EXPECT_THROW(gelu_forward<double>(*stream, {x, y, 1, 2}), PreconditionError);
}

TEST(PointwiseKernelsOfCuda, CheckTheirArgumentsWithoutAGpu) {
  std::vector<float> a(6), b(5);
  EXPECT_THROW(cuda::gelu_forward<float>({a, b, 2, 3}, nullptr), PreconditionError);
  EXPECT_THROW(cuda::gelu_backward<float>({a, a, b, 2, 3}, nullptr), PreconditionError);
  EXPECT_THROW(cuda::swiglu_forward<float>({a, b, 1, 3}, nullptr), PreconditionError);
  EXPECT_THROW(cuda::swiglu_backward<float>({a, b, a, 1, 3}, nullptr), PreconditionError);
  EXPECT_THROW(cuda::rope<float>({a, b, b, 1, 1, 1, 1, 2, false}, nullptr), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
