#include "kernels/optimizer/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "kernels/adamw_support.hpp"

namespace offstage::kernels {
namespace {

template <class Types>
class AdamwOf : public testing::Test {};
TYPED_TEST_SUITE(AdamwOf, AllAdamwTypes);

// ref, and host with every instruction set.
template <class Check>
void for_each_adamw(Check const& check) {
  check([](auto const& state, AdamwStep const& step) { ref::adamw(state, step); });
  for (Simd const simd : available_simd()) {
    SCOPED_TRACE(name_of(simd));
    check([=](auto const& state, AdamwStep const& step) { host::adamw(state, step, simd); });
  }
}

// t = 1, g = 2 * 0.5 = 1, m = 0.5, v = 0.25; corrected, m^ = 1 and sqrt(v^) = 1, so that the step
// is alpha (1 / (1 + eps) + lambda p) = 0.25 (1 / 2 + 0.5 * 8) = 1.125.
TYPED_TEST(AdamwOf, StepsAsComputedByHand) {
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  for_each_adamw([](auto const& adamw) {
    std::vector<float> p{8.0F}, m{0.0F}, v{0.0F};
    std::vector<G> const g{store<G>(2.0F)};
    std::vector<W> w(1);

    adamw(AdamwState<G, W>{p, m, v, g, w}, AdamwStep{.learning_rate = 0.25,
                                                     .beta1 = 0.5,
                                                     .beta2 = 0.75,
                                                     .epsilon = 1.0,
                                                     .weight_decay = 0.5,
                                                     .gradient_scale = 0.5,
                                                     .step = 1});

    EXPECT_EQ(m[0], 0.5F);
    EXPECT_EQ(v[0], 0.25F);
    EXPECT_EQ(p[0], 6.875F);
    EXPECT_EQ(load(w[0]), 6.875F);
  });
}

TYPED_TEST(AdamwOf, PaddingStaysZero) {
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  for_each_adamw([](auto const& adamw) {
    std::vector<float> const zeros(200);
    auto p = zeros, m = zeros, v = zeros;
    std::vector<G> const g(200);
    std::vector<W> w(200, store<W>(1.0F));

    adamw(AdamwState<G, W>{p, m, v, g, w}, ordinary_step);

    expect_same_bits(p, zeros, "parameter");
    expect_same_bits(m, zeros, "momentum");
    expect_same_bits(v, zeros, "variance");
    expect_same_bits(w, std::vector<W>(200), "working copy");
  });
}

TYPED_TEST(AdamwOf, OneNanSpoilsItsOwnElementAlone) {
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  for_each_adamw([](auto const& adamw) {
    AdamwArrays<G, W> with{300, 0, Values::ordinary};
    AdamwArrays<G, W> expected{300, 0, Values::ordinary};
    adamw(expected.state(), ordinary_step);
    constexpr std::size_t at = 77;
    with.gradient[at] = store<G>(-std::numeric_limits<float>::quiet_NaN());

    adamw(with.state(), ordinary_step);

    float const nan = std::bit_cast<float>(0x7FC00000U);
    expected.parameter[at] = expected.momentum[at] = expected.variance[at] = nan;
    expected.working_copy[at] = store<W>(nan);
    expect_same_bits(with, expected);
  });
}

TEST(Adamw, RoundsTheWorkingCopyToNearestEven) {
  for_each_adamw([](auto const& adamw) {
    // Halfway between neighbours, once with the even one below, once above; then the smallest
    // subnormal bfloat16 and what rounds to it.
    std::vector<float> p{1.00390625F, 1.01171875F, 0x1p-133F, 0x1.8p-134F};
    auto const before = p;
    std::vector<float> m(4), v(4);
    std::vector<float> const g(4);
    std::vector<bfloat16> w(4);
    AdamwStep step = ordinary_step;
    step.weight_decay = 0.0;

    adamw(AdamwState<float, bfloat16>{p, m, v, g, w}, step);

    EXPECT_EQ(p, before);
    EXPECT_EQ(to_float(w[0]), 1.0F);
    EXPECT_EQ(to_float(w[1]), 1.015625F);
    EXPECT_EQ(to_float(w[2]), 0x1p-133F);
    EXPECT_EQ(to_float(w[3]), 0x1p-133F);
  });
}

TEST(Adamw, RoundsAFloat16WorkingCopyToNearestEvenAndBeyondItsRangeToInfinity) {
  for_each_adamw([](auto const& adamw) {
    std::vector<float> p{0x1.002p0F, 0x1.006p0F, 0x1p-24F, 0x1p-25F, 65519.0F, -65520.0F};
    auto const before = p;
    std::vector<float> m(6), v(6);
    std::vector<float16> const g(6);
    std::vector<float16> w(6);
    AdamwStep step = ordinary_step;
    step.weight_decay = 0.0;

    adamw(AdamwState<float16, float16>{p, m, v, g, w}, step);

    EXPECT_EQ(p, before);
    EXPECT_EQ(w,
              (std::vector<float16>{{0x3C00}, {0x3C02}, {0x0001}, {0x0000}, {0x7BFF}, {0xFC00}}));
  });
}

TEST(Adamw, RejectsViewsOfDifferentLength) {
  std::vector<float> long_one(3), p(2), m(2), v(2);
  std::vector<bfloat16> g(2), w(2), long_half(3);
  using State = AdamwState<bfloat16, bfloat16>;
  for_each_adamw([&](auto const& adamw) {
    EXPECT_NO_THROW(adamw(State{p, m, v, g, w}, ordinary_step));
    EXPECT_THROW(adamw(State{long_one, m, v, g, w}, ordinary_step), PreconditionError);
    EXPECT_THROW(adamw(State{p, long_one, v, g, w}, ordinary_step), PreconditionError);
    EXPECT_THROW(adamw(State{p, m, long_one, g, w}, ordinary_step), PreconditionError);
    EXPECT_THROW(adamw(State{p, m, v, long_half, w}, ordinary_step), PreconditionError);
    EXPECT_THROW(adamw(State{p, m, v, g, long_half}, ordinary_step), PreconditionError);
  });
}

TEST(Adamw, RejectsStepZero) {
  AdamwStep step = ordinary_step;
  step.step = 0;
  for_each_adamw([&](auto const& adamw) {
    EXPECT_THROW(adamw(AdamwState<float, float>{}, step), PreconditionError);
  });
}

TEST(Adamw, RejectsAnInstructionSetThatTheCpuLacks) {
  EXPECT_THROW(host::adamw(AdamwState<float, float>{}, ordinary_step, beyond_best_simd()),
               PreconditionError);
}

TYPED_TEST(AdamwOf, EveryInstructionSetGivesTheBitsOfRef) {
  using Arrays = AdamwArrays<typename TypeParam::G, typename TypeParam::W>;
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      Arrays const start{count, count % 5, kind};
      Arrays expected = start;
      ref::adamw(expected.state(), ordinary_step);
      for (Simd const simd : available_simd()) {
        SCOPED_TRACE(testing::Message() << name_of(simd) << ", " << count << " elements");
        Arrays got = start;
        host::adamw(got.state(), ordinary_step, simd);
        expect_same_bits(got, expected);
      }
    }
  }
}

TYPED_TEST(AdamwOf, AlignmentDoesNotChangeBits) {
  using Arrays = AdamwArrays<typename TypeParam::G, typename TypeParam::W>;
  for (std::size_t offset = 0; offset < 34; ++offset) {
    Arrays const start{300, offset, Values::extreme};
    Arrays expected = start;
    ref::adamw(expected.state(), ordinary_step);
    for (Simd const simd : available_simd()) {
      SCOPED_TRACE(testing::Message() << name_of(simd) << ", offset " << offset);
      Arrays got = start;
      host::adamw(got.state(), ordinary_step, simd);
      expect_same_bits(got, expected);
    }
  }
}

TEST(Adamw, ThreadsDoNotChangeBits) {
  using Arrays = AdamwArrays<bfloat16, bfloat16>;
  Arrays const start{200'003, 1, Values::extreme};
  Arrays one = start;
  with_threads(1, [&] { host::adamw(one.state(), ordinary_step); });
  for (int const threads : {2, 3, 5}) {
    Arrays many = start;
    with_threads(threads, [&] { host::adamw(many.state(), ordinary_step); });
    expect_same_bits(many, one);
  }
}

/// Algorithm 2 of arXiv:1711.05101 to the letter, in FP64.
struct Fp64Adamw {
  double p, m = 0.0, v = 0.0;

  void step(double gradient, AdamwStep const& s) {
    auto const t = static_cast<double>(s.step);
    double const g = gradient * s.gradient_scale;
    m = s.beta1 * m + (1.0 - s.beta1) * g;
    v = s.beta2 * v + (1.0 - s.beta2) * g * g;
    double const m_hat = m / (1.0 - std::pow(s.beta1, t));
    double const v_hat = v / (1.0 - std::pow(s.beta2, t));
    p -= s.learning_rate * (m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * p);
  }
};

TEST(Adamw, FollowsFp64OverManySteps) {
  AdamwArrays<float, bfloat16> arrays{256, 0, Values::ordinary};
  std::vector<Fp64Adamw> exact(arrays.parameter.size(), Fp64Adamw{.p = 0.0});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    exact[i].p = arrays.parameter[i];
  }
  arrays.momentum.assign(arrays.momentum.size(), 0.0F);
  arrays.variance.assign(arrays.variance.size(), 0.0F);
  AdamwStep step = ordinary_step;
  step.learning_rate = 1e-2;
  for (step.step = 1; step.step <= 100; ++step.step) {
    arrays.gradient = make_values<float>(arrays.gradient.size(), Values::ordinary,
                                         static_cast<std::uint64_t>(100 + step.step));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i].step(arrays.gradient[i], step);
    }
    host::adamw(arrays.state(), step);
  }
  for (std::size_t i = 0; i < arrays.count; ++i) {
    // 100 roundings of a number below 4 to 24 bits, and the coefficients' own.
    EXPECT_NEAR(arrays.parameter[i], exact[i].p, 1e-5) << "at " << i;
    EXPECT_NEAR(arrays.momentum[i], exact[i].m, 1e-6) << "at " << i;
    EXPECT_NEAR(arrays.variance[i], exact[i].v, 1e-6) << "at " << i;
    EXPECT_EQ(arrays.working_copy[i], to_bf16(arrays.parameter[i])) << "at " << i;
  }
}

}  // namespace
}  // namespace offstage::kernels
