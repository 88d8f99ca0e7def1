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

/// What a norm of one shape is tested with; activations begin `offset` elements beside a multiple
/// of 16 bytes.
template <class T>
struct Inputs {
  std::int64_t rows, width;
  std::size_t offset;
  std::vector<T> x = random_values<T>(rows * width, 1, 2.0);
  std::vector<T> delta = random_values<T>(rows * width, 2);
  std::vector<T> dy = random_values<T>(rows * width, 3), dx = random_values<T>(rows * width, 4);
  std::vector<T> weight = random_values<T>(width, 5), bias = random_values<T>(width, 6);
  std::vector<float> inverse = random_values<float>(rows, 7), mean = random_values<float>(rows, 8);

  [[nodiscard]] Guarded<T> there(std::vector<T> const& values) const {
    return Guarded<T>{values, offset};
  }
  [[nodiscard]] Guarded<T> new_rows() const { return there(poison<T>(rows * width)); }
};

template <class T, class Test>
void for_each_shape(Test const& test) {
  for (auto const& [shape, offset] : placed_shapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width);
    test(Inputs<T>{shape.rows, shape.width, offset});
  }
}

template <class Element>
std::vector<double> wide(std::vector<Element> const& values) {
  return convert<double>(values);
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
  for_each_shape<T>([&](Inputs<T> const& in) {
    for (bool const residual : {false, true}) {
      auto const sum = residual ? sum_of(in.x, in.delta) : in.x;
      std::vector<double> y(in.x.size()), inverse(in.inverse.size());
      ref::rmsnorm_forward<double>(
          {wide(sum), {}, {}, wide(in.weight), y, inverse, in.rows, in.width, 1e-5});

      auto const [got_x, got_sum, got_y, got_inverse] = same_twice([&] {
        auto const x = in.there(in.x), delta = in.there(in.delta), sums = in.there(in.x);
        auto const rows = in.new_rows();
        Guarded<T> const weight{in.weight};
        Guarded<float> const inverses{poison<float>(in.rows)};
        rmsnorm_forward<T>(*this->stream, {.x = x.view(),
                                           .delta = residual ? delta.view() : std::span<T>{},
                                           .sum = residual ? sums.view() : std::span<T>{},
                                           .weight = weight.view(),
                                           .y = rows.view(),
                                           .inverse_rms = inverses.view(),
                                           .rows = in.rows,
                                           .width = in.width,
                                           .epsilon = 1e-5});
        this->stream->synchronize();
        return std::tuple{x.read(), sums.read(), rows.read(), inverses.read()};
      });
      EXPECT_EQ(got_x, in.x);
      EXPECT_EQ(got_sum, sum);
      expect_rounded(got_y, y);
      expect_rounded(got_inverse, inverse);
    }
  });
}

TYPED_TEST(NormsOnGpu, LayernormForwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for_each_shape<T>([&](Inputs<T> const& in) {
    for (bool const residual : {false, true}) {
      auto const sum = residual ? sum_of(in.x, in.delta) : in.x;
      std::vector<double> y(in.x.size()), mean(in.mean.size()), inverse(in.inverse.size());
      ref::layernorm_forward<double>({wide(sum),
                                      {},
                                      {},
                                      wide(in.weight),
                                      wide(in.bias),
                                      y,
                                      mean,
                                      inverse,
                                      in.rows,
                                      in.width,
                                      1e-2});

      auto const [got_sum, got_y, got_mean, got_inverse] = same_twice([&] {
        // In place: the sum takes the place of x.
        auto const x = in.there(in.x), delta = in.there(in.delta), rows = in.new_rows();
        Guarded<T> const weight{in.weight}, bias{in.bias};
        Guarded<float> const means{poison<float>(in.rows)}, inverses{poison<float>(in.rows)};
        layernorm_forward<T>(*this->stream, {.x = x.view(),
                                             .delta = residual ? delta.view() : std::span<T>{},
                                             .sum = residual ? x.view() : std::span<T>{},
                                             .weight = weight.view(),
                                             .bias = bias.view(),
                                             .y = rows.view(),
                                             .mean = means.view(),
                                             .inverse_deviation = inverses.view(),
                                             .rows = in.rows,
                                             .width = in.width,
                                             .epsilon = 1e-2});
        this->stream->synchronize();
        return std::tuple{x.read(), rows.read(), means.read(), inverses.read()};
      });
      EXPECT_EQ(got_sum, sum);
      expect_rounded(got_y, y);
      expect_close(wide(got_mean), mean, 1e-4);
      expect_rounded(got_inverse, inverse);
    }
  });
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
  for_each_shape<T>([&](Inputs<T> const& in) {
    auto exact_dx = wide(in.dx);
    std::vector<double> exact_d_weight(in.weight.size());
    ref::rmsnorm_backward<double>({wide(in.x), wide(in.weight), wide(in.dy), wide(in.inverse),
                                   exact_dx, exact_d_weight, in.rows, in.width});

    auto const [got_dx, got_d_weight] = same_twice([&] {
      auto const x = in.there(in.x), dy = in.there(in.dy), dx = in.there(in.dx);
      Guarded<T> const weight{in.weight}, d_weight{poison<T>(in.width)};
      Guarded<float> const inverse{in.inverse};
      rmsnorm_backward<T>(*this->stream, {x.view(), weight.view(), dy.view(), inverse.view(),
                                          dx.view(), d_weight.view(), in.rows, in.width});
      this->stream->synchronize();
      return std::tuple{dx.read(), d_weight.read()};
    });
    expect_rounded(got_dx, exact_dx);
    expect_rounded(got_d_weight, exact_d_weight);
  });
}

// Heads of queries in rows that hold keys and values, too; the gradient takes the place of dy.
TYPED_TEST(NormsOnGpu, RmsnormOfPartsOfRowsIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for (std::int64_t const width : {6, 128}) {
    SCOPED_TRACE(width);
    RowPlaces const places{3, 5 * width};
    Inputs<T> const in{.rows = 4 * places.groups, .width = width, .offset = 0};
    auto const all = random_values<T>(4 * places.pitch, 1, 2.0);
    auto const dy = random_values<T>(4 * places.pitch, 3);
    auto const part = [&](auto values) {
      return values.first(static_cast<std::size_t>(places.extent(in.rows, width)));
    };
    auto y = wide(all), dx = wide(dy);
    auto const x = wide(all), exact_dy = wide(dy);
    std::vector<double> inverse(in.inverse.size()), d_weight(in.weight.size());
    ref::rmsnorm_forward<double>({part(std::span{x}),
                                  {},
                                  {},
                                  wide(in.weight),
                                  part(std::span{y}),
                                  inverse,
                                  in.rows,
                                  width,
                                  1e-5,
                                  places});
    ref::rmsnorm_backward<double>({part(std::span{x}), wide(in.weight), part(std::span{exact_dy}),
                                   inverse, part(std::span{dx}), d_weight, in.rows, width, false,
                                   places});

    auto const [got_y, got_dx, got_d_weight] = same_twice([&] {
      Guarded<T> const values{all}, out{all}, gradient{dy}, weight{in.weight};
      Guarded<T> const weights{poison<T>(width)};
      Guarded<float> const inverses{poison<float>(in.rows)};
      rmsnorm_forward<T>(*this->stream, {part(values.view()),
                                         {},
                                         {},
                                         weight.view(),
                                         part(out.view()),
                                         inverses.view(),
                                         in.rows,
                                         width,
                                         1e-5,
                                         places});
      rmsnorm_backward<T>(*this->stream, {part(values.view()), weight.view(), part(gradient.view()),
                                          inverses.view(), part(gradient.view()), weights.view(),
                                          in.rows, width, false, places});
      this->stream->synchronize();
      return std::tuple{out.read(), gradient.read(), weights.read()};
    });
    expect_rounded(got_y, y);
    expect_rounded(got_dx, dx);
    expect_rounded(got_d_weight, d_weight);
  }
}

TYPED_TEST(NormsOnGpu, LayernormBackwardIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for_each_shape<T>([&](Inputs<T> const& in) {
    auto exact_dx = wide(in.dx);
    std::vector<double> exact_d_weight(in.weight.size()), exact_d_bias(in.weight.size());
    ref::layernorm_backward<double>({wide(in.x), wide(in.weight), wide(in.dy), wide(in.mean),
                                     wide(in.inverse), exact_dx, exact_d_weight, exact_d_bias,
                                     in.rows, in.width});

    auto const [got_dx, got_d_weight, got_d_bias] = same_twice([&] {
      auto const x = in.there(in.x), dy = in.there(in.dy), dx = in.there(in.dx);
      Guarded<T> const weight{in.weight}, d_weight{poison<T>(in.width)},
          d_bias{poison<T>(in.width)};
      Guarded<float> const mean{in.mean}, inverse{in.inverse};
      layernorm_backward<T>(*this->stream,
                            {x.view(), weight.view(), dy.view(), mean.view(), inverse.view(),
                             dx.view(), d_weight.view(), d_bias.view(), in.rows, in.width});
      this->stream->synchronize();
      return std::tuple{dx.read(), d_weight.read(), d_bias.read()};
    });
    expect_rounded(got_dx, exact_dx);
    expect_rounded(got_d_weight, exact_d_weight);
    expect_rounded(got_d_bias, exact_d_bias);
  });
}

TYPED_TEST(NormsOnGpu, BiasIsCloseToTheFp64Reference) {
  using T = TypeParam;
  for_each_shape<T>([&](Inputs<T> const& in) {
    auto exact_y = wide(in.x);
    std::vector<double> exact_d_bias(in.bias.size());
    ref::bias_forward<double>({exact_y, wide(in.bias), in.rows, in.width});
    ref::bias_backward<double>({wide(in.x), exact_d_bias, in.rows, in.width});

    auto const [got_y, got_d_bias] = same_twice([&] {
      auto const y = in.there(in.x);
      Guarded<T> const bias{in.bias}, d_bias{poison<T>(in.width)};
      bias_backward<T>(*this->stream, {y.view(), d_bias.view(), in.rows, in.width});
      bias_forward<T>(*this->stream, {y.view(), bias.view(), in.rows, in.width});
      this->stream->synchronize();
      return std::tuple{y.read(), d_bias.read()};
    });
    expect_rounded(got_y, exact_y);
    expect_rounded(got_d_bias, exact_d_bias);
  });
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
  std::vector<std::byte> scratch(24);
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
