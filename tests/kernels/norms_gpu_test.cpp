#include <algorithm>
#include <tuple>

#include "kernels/linear/bias.hpp"
#include "kernels/norms/layernorm.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "kernels/pointwise_gpu_support.hpp"

namespace offstage::kernels {
namespace {

template <class Element>
class NormsOnGpu : public OnGpu {};
TYPED_TEST_SUITE(NormsOnGpu, GpuElements);

std::int64_t count_of(Shape const& shape) {
  return shape.rows * shape.width;
}

/// x + delta, as every backend rounds it.
template <class T>
std::vector<T> sum_of(std::vector<T> const& x, std::vector<T> const& delta) {
  std::vector<T> sum(x.size());
  std::ranges::transform(x, delta, sum.begin(),
                         [](T a, T b) { return store<T>(load(a) + load(b)); });
  return sum;
}

TYPED_TEST(NormsOnGpu, RmsnormForwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(count_of(shape), 1, 2.0);
    auto const delta = random_values<T>(count_of(shape), 2);
    auto const weight = random_values<T>(width, 3);
    for (bool const residual : {false, true}) {
      auto const sum = residual ? sum_of(x, delta) : x;
      auto const wide_x = convert<double>(sum), wide_weight = convert<double>(weight);
      std::vector<double> y(x.size()), inverse(static_cast<std::size_t>(rows));
      ref::rmsnorm_forward<double>({wide_x, {}, {}, wide_weight, y, inverse, rows, width, 1e-5});

      auto const [got_x, got_sum, got_y, got_inverse] = same_twice([&] {
        Guarded<T> const there_x{x, offset}, there_delta{delta, offset}, there_weight{weight};
        Guarded<T> const there_sum{x, offset}, there_y{poison<T>(count_of(shape)), offset};
        Guarded<float> const there_inverse{poison<float>(rows)};
        rmsnorm_forward<T>(*this->stream, {.x = there_x.view(),
                                           .delta = residual ? there_delta.view() : std::span<T>{},
                                           .sum = residual ? there_sum.view() : std::span<T>{},
                                           .weight = there_weight.view(),
                                           .y = there_y.view(),
                                           .inverse_rms = there_inverse.view(),
                                           .rows = rows,
                                           .width = width,
                                           .epsilon = 1e-5});
        this->stream->synchronize();
        return std::tuple{there_x.read(), there_sum.read(), there_y.read(), there_inverse.read()};
      });
      EXPECT_EQ(got_x, x);
      EXPECT_EQ(got_sum, sum);
      expect_rounded(got_y, y);
      expect_rounded(got_inverse, inverse);
    }
  }
}

TYPED_TEST(NormsOnGpu, LayernormForwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(count_of(shape), 1, 2.0);
    auto const delta = random_values<T>(count_of(shape), 2);
    auto const weight = random_values<T>(width, 3), bias = random_values<T>(width, 4);
    for (bool const residual : {false, true}) {
      auto const sum = residual ? sum_of(x, delta) : x;
      auto const wide_x = convert<double>(sum), wide_weight = convert<double>(weight);
      auto const wide_bias = convert<double>(bias);
      std::vector<double> y(x.size()), mean(static_cast<std::size_t>(rows)), inverse(mean.size());
      ref::layernorm_forward<double>(
          {wide_x, {}, {}, wide_weight, wide_bias, y, mean, inverse, rows, width, 1e-2});

      auto const [got_sum, got_y, got_mean, got_inverse] = same_twice([&] {
        // In place: the sum takes the place of x.
        Guarded<T> const there_x{x, offset}, there_delta{delta, offset}, there_weight{weight};
        Guarded<T> const there_bias{bias}, there_y{poison<T>(count_of(shape)), offset};
        Guarded<float> const there_mean{poison<float>(rows)}, there_inverse{poison<float>(rows)};
        layernorm_forward<T>(*this->stream,
                             {.x = there_x.view(),
                              .delta = residual ? there_delta.view() : std::span<T>{},
                              .sum = residual ? there_x.view() : std::span<T>{},
                              .weight = there_weight.view(),
                              .bias = there_bias.view(),
                              .y = there_y.view(),
                              .mean = there_mean.view(),
                              .inverse_deviation = there_inverse.view(),
                              .rows = rows,
                              .width = width,
                              .epsilon = 1e-2});
        this->stream->synchronize();
        return std::tuple{there_x.read(), there_y.read(), there_mean.read(), there_inverse.read()};
      });
      EXPECT_EQ(got_sum, sum);
      expect_rounded(got_y, y);
      expect_close(convert<double>(got_mean), mean, 1e-4);
      expect_rounded(got_inverse, inverse);
    }
  }
}

TYPED_TEST(NormsOnGpu, ALargeMeanDoesNotDrownTheDeviation) {
  using T = TypeParam;
  Guarded<T> const x{std::vector{store<T>(255.0F), store<T>(253.0F)}}, y{poison<T>(2)};
  Guarded<T> const weight{std::vector(2, store<T>(1.0F))}, bias{std::vector<T>(2)};
  Guarded<float> const mean{poison<float>(1)}, inverse{poison<float>(1)};
  layernorm_forward<T>(*this->stream, {x.view(),
                                       {},
                                       {},
                                       weight.view(),
                                       bias.view(),
                                       y.view(),
                                       mean.view(),
                                       inverse.view(),
                                       1,
                                       2,
                                       0.0});
  this->stream->synchronize();
  EXPECT_EQ(y.read(), (std::vector{store<T>(1.0F), store<T>(-1.0F)}));
}

TYPED_TEST(NormsOnGpu, RmsnormBackwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(count_of(shape), 1, 2.0), weight = random_values<T>(width, 2);
    auto const dy = random_values<T>(count_of(shape), 3), dx = random_values<T>(count_of(shape), 4);
    auto const inverse = random_values<float>(rows, 5);
    auto const wide_x = convert<double>(x), wide_weight = convert<double>(weight);
    auto const wide_dy = convert<double>(dy), wide_inverse = convert<double>(inverse);
    auto exact_dx = convert<double>(dx);
    std::vector<double> exact_d_weight(weight.size());
    ref::rmsnorm_backward<double>(
        {wide_x, wide_weight, wide_dy, wide_inverse, exact_dx, exact_d_weight, rows, width});

    auto const [got_dx, got_d_weight] = same_twice([&] {
      Guarded<T> const there_x{x, offset}, there_weight{weight}, there_dy{dy, offset};
      Guarded<T> const there_dx{dx, offset}, there_d_weight{poison<T>(width)};
      Guarded<float> const there_inverse{inverse};
      rmsnorm_backward<T>(*this->stream, {there_x.view(), there_weight.view(), there_dy.view(),
                                          there_inverse.view(), there_dx.view(),
                                          there_d_weight.view(), rows, width});
      this->stream->synchronize();
      return std::tuple{there_dx.read(), there_d_weight.read()};
    });
    expect_rounded(got_dx, exact_dx);
    expect_rounded(got_d_weight, exact_d_weight);
  }
}

TYPED_TEST(NormsOnGpu, LayernormBackwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const x = random_values<T>(count_of(shape), 1, 2.0), weight = random_values<T>(width, 2);
    auto const dy = random_values<T>(count_of(shape), 3), dx = random_values<T>(count_of(shape), 4);
    auto const inverse = random_values<float>(rows, 5), mean = random_values<float>(rows, 6);
    auto const wide_x = convert<double>(x), wide_weight = convert<double>(weight);
    auto const wide_dy = convert<double>(dy), wide_inverse = convert<double>(inverse);
    auto const wide_mean = convert<double>(mean);
    auto exact_dx = convert<double>(dx);
    std::vector<double> exact_d_weight(weight.size()), exact_d_bias(weight.size());
    ref::layernorm_backward<double>({wide_x, wide_weight, wide_dy, wide_mean, wide_inverse,
                                     exact_dx, exact_d_weight, exact_d_bias, rows, width});

    auto const [got_dx, got_d_weight, got_d_bias] = same_twice([&] {
      Guarded<T> const there_x{x, offset}, there_weight{weight}, there_dy{dy, offset};
      Guarded<T> const there_dx{dx, offset}, there_d_weight{poison<T>(width)};
      Guarded<T> const there_d_bias{poison<T>(width)};
      Guarded<float> const there_mean{mean}, there_inverse{inverse};
      layernorm_backward<T>(
          *this->stream, {there_x.view(), there_weight.view(), there_dy.view(), there_mean.view(),
                          there_inverse.view(), there_dx.view(), there_d_weight.view(),
                          there_d_bias.view(), rows, width});
      this->stream->synchronize();
      return std::tuple{there_dx.read(), there_d_weight.read(), there_d_bias.read()};
    });
    expect_rounded(got_dx, exact_dx);
    expect_rounded(got_d_weight, exact_d_weight);
    expect_rounded(got_d_bias, exact_d_bias);
  }
}

TYPED_TEST(NormsOnGpu, BiasIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    auto const [rows, width] = shape;
    auto const y = random_values<T>(count_of(shape), 1), bias = random_values<T>(width, 2);
    auto exact_y = convert<double>(y);
    auto const wide_bias = convert<double>(bias), wide_dy = convert<double>(y);
    std::vector<double> exact_d_bias(bias.size());
    ref::bias_forward<double>({exact_y, wide_bias, rows, width});
    ref::bias_backward<double>({wide_dy, exact_d_bias, rows, width});

    auto const [got_y, got_d_bias] = same_twice([&] {
      Guarded<T> const there_y{y, offset}, there_bias{bias}, there_d_bias{poison<T>(width)};
      bias_backward<T>(*this->stream, {there_y.view(), there_d_bias.view(), rows, width});
      bias_forward<T>(*this->stream, {there_y.view(), there_bias.view(), rows, width});
      this->stream->synchronize();
      return std::tuple{there_y.read(), there_d_bias.read()};
    });
    expect_rounded(got_y, exact_y);
    expect_rounded(got_d_bias, exact_d_bias);
  }
}

TYPED_TEST(NormsOnGpu, SumsOverNoRowsAreZero) {
  using T = TypeParam;
  Guarded<T> const weight{std::vector<T>(3)}, d_weight{poison<T>(3)}, d_bias{poison<T>(3)};
  layernorm_backward<T>(*this->stream,
                        {{}, weight.view(), {}, {}, {}, {}, d_weight.view(), d_bias.view(), 0, 3});
  rmsnorm_forward<T>(*this->stream, {{}, {}, {}, weight.view(), {}, {}, 0, 3, 1e-5});
  this->stream->synchronize();
  EXPECT_EQ(d_weight.read(), std::vector<T>(3));
  EXPECT_EQ(d_bias.read(), std::vector<T>(3));
}

TEST(NormsOfCuda, CheckTheirArgumentsWithoutAGpu) {
  std::vector<float> x(6), weight(3), inverse(2), short_inverse(1);
  std::vector<std::byte> scratch(cuda::rmsnorm_backward_scratch(2, 3));
  EXPECT_THROW(
      cuda::rmsnorm_forward<float>({x, {}, {}, weight, x, short_inverse, 2, 3, 1e-5}, nullptr),
      PreconditionError);
  EXPECT_THROW(cuda::rmsnorm_backward<float>({x, weight, x, short_inverse, x, weight, 2, 3},
                                             scratch, nullptr),
               PreconditionError);
  EXPECT_THROW(
      cuda::layernorm_backward<float>({x, weight, x, inverse, inverse, x, weight, weight, 2, 3},
                                      std::span{scratch}.first(23), nullptr),
      PreconditionError);
  EXPECT_THROW(cuda::bias_backward<float>({x, weight, 2, 3}, {}, nullptr), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
