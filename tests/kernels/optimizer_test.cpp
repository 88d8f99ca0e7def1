#include "kernels/optimizer/optimizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/optimizer_arrays.hpp"

namespace offstage::kernels {
namespace {

/// Lengths that the moments allow.
std::vector<std::size_t> lengths_of(OptimizerCase const& of) {
  if (of.moments == Moments::int8) {
    return {0, 256, 512, 4096};
  }
  if (of.optimizer != Optimizer::adamw) {
    return {0, 1, 7, 17, 129, 255, 1000};
  }
  return {std::begin(odd_lengths), std::end(odd_lengths)};
}

void expect_bits_of_ref(OptimizerCase const& of, std::size_t count, std::size_t guard,
                        Values kind) {
  OptimizerArrays start{of, count, guard, kind};
  start.decayed = count / 3;
  OptimizerArrays expected = start;
  OptimizerStep const step = ordinary_optimizer_step(of);
  ref::optimize(of.layout(), expected.part(), step);
  for (Simd const simd : available_simd()) {
    SCOPED_TRACE(testing::Message() << of.name() << ", " << name_of(simd) << ", " << count
                                    << " elements behind " << guard);
    OptimizerArrays got = start;
    host::optimize(of.layout(), got.part(), step, simd);
    expect_same_bytes(got, expected);
  }
}

TEST(Optimize, EveryInstructionSetGivesTheBitsOfRef) {
  for (OptimizerCase const& of : all_moments()) {
    for (Values const kind : all_kinds) {
      for (std::size_t const count : lengths_of(of)) {
        expect_bits_of_ref(of, count, of.moments == Moments::int8 ? 0 : count % 5, kind);
      }
    }
  }
}

TEST(Optimize, EveryTypeOfNumbersGivesTheBitsOfRef) {
  for (OptimizerCase of : all_moments()) {
    for (DType const gradient : {DType::fp32, DType::bf16, DType::fp16}) {
      for (DType const copy : {DType::fp32, DType::bf16, DType::fp16}) {
        of.gradient = gradient;
        of.copy = copy;
        expect_bits_of_ref(of, 1024, 0, Values::extreme);
        of.split = copy == DType::bf16;
        expect_bits_of_ref(of, 1024, 0, Values::ordinary);
        of.split = false;
      }
    }
  }
}

std::uint64_t fnv(std::byte const* bytes, std::size_t count, std::uint64_t hash) {
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 0x100000001B3ULL;
  }
  return hash;
}

// What the AdamW kernel of version 1 left: a run that began with it goes on as it would have.
TEST(Optimize, AdamwHasTheBitsThatItAlwaysHad) {
  constexpr std::size_t count = 4096;
  OptimizerCase const of{.optimizer = Optimizer::adamw, .copy = DType::fp32};
  OptimizerArrays arrays{of, count, 0, Values::ordinary};
  arrays.decayed = count;
  auto const fill = [&](float* values, std::uint64_t stream) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(philox(1, stream, i)[0])) * 0x1p-30F;
      values[i] = stream == 2 ? values[i] * values[i] : values[i];
    }
  };
  for (std::size_t plane = 0; plane < 3; ++plane) {
    fill(arrays.plane<float>(plane), plane);
  }
  fill(arrays.as<float>(arrays.gradient), 3);
  host::optimize(of.layout(), arrays.part(), ordinary_optimizer_step(of));
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (std::size_t plane = 0; plane < 3; ++plane) {
    hash = fnv(arrays.at(plane), 4 * count, hash);
  }
  EXPECT_EQ(hash, 0xA913A49B8E8C5B3EULL);
}

// ref, and host with every instruction set.
template <class Check>
void for_each_optimize(Check const& check) {
  check([](auto const& layout, auto const& part, OptimizerStep const& step) {
    ref::optimize(layout, part, step);
  });
  for (Simd const simd : available_simd()) {
    SCOPED_TRACE(name_of(simd));
    check([=](auto const& layout, auto const& part, OptimizerStep const& step) {
      host::optimize(layout, part, step, simd);
    });
  }
}

// alpha = 1/4, b1 = 1/2, b2 = 3/4, mu = 1/2, eps = 1, lambda = 1/2, p = 8, g = 2 * 1/2 = 1, m = v =
// 0; the gradient with its weight decay is 5.
TEST(Optimize, StepsAsComputedByHand) {
  struct Expected {
    OptimizerCase of;
    float p, m, v;
  };
  std::vector<Expected> const all{
      // m^ = 1, sqrt(v^) = 1: 8 - (1 / 2 + 4) / 4.
      {{.optimizer = Optimizer::adamw}, 6.875F, 0.5F, 0.25F},
      // m^ = 5, v^ = 25: 8 - (5 / 6) / 4.
      {{.optimizer = Optimizer::adam}, 8.0F - 5.0F / 24.0F, 2.5F, 6.25F},
      {{.optimizer = Optimizer::adagrad}, 8.0F - 5.0F / 24.0F, 0.0F, 25.0F},
      // sqrt(25 / 4) + 1 = 7 / 2.
      {{.optimizer = Optimizer::rmsprop}, 8.0F - 5.0F / 14.0F, 0.0F, 6.25F},
      {{.optimizer = Optimizer::rmsprop, .momentum = 0.5},
       8.0F - 5.0F / 14.0F,
       10.0F / 7.0F,
       6.25F},
      {{.optimizer = Optimizer::sgd}, 6.75F, 0.0F, 0.0F},
      {{.optimizer = Optimizer::sgd, .momentum = 0.5}, 6.75F, 5.0F, 0.0F},
      // The sign of 1 / 2: 8 - (1 + 4) / 4; m = 1 / 4.
      {{.optimizer = Optimizer::lion}, 6.75F, 0.25F, 0.0F}};
  for (Expected const& expected : all) {
    OptimizerCase const& of = expected.of;
    SCOPED_TRACE(of.name());
    StateLayout const layout = of.layout();
    for_each_optimize([&](auto const& optimize) {
      float values[3] = {8.0F, 0.0F, 0.0F};  // p and the moments that there are
      float const g = 2.0F;
      bfloat16 copy{};
      OptimizerPart part{.planes = {},
                         .gradient = std::span{&g, 1},
                         .working_copy = std::span{&copy, 1},
                         .elements = 1,
                         .decayed = 1};
      for (std::size_t i = 0; i < layout.planes().size(); ++i) {
        part.planes[i] = reinterpret_cast<std::byte*>(&values[i]);
      }
      optimize(layout, part,
               {.optimizer = of.optimizer,
                .learning_rate = 0.25,
                .beta1 = 0.5,
                .beta2 = 0.75,
                .momentum = of.momentum,
                .epsilon = 1.0,
                .weight_decay = 0.5,
                .gradient_scale = 0.5,
                .step = 1});
      EXPECT_FLOAT_EQ(values[0], expected.p);
      EXPECT_EQ(to_float(copy), to_float(upper_half(values[0])));
      for (std::size_t i = 1; i < layout.planes().size(); ++i) {
        EXPECT_FLOAT_EQ(values[i], layout.planes()[i].name == "momentum" ? expected.m : expected.v);
      }
    });
  }
}

/// The rules as their sources write them, in FP64.
struct Fp64Rule {
  OptimizerStep s;
  double p{}, m{}, v{};

  void step(double gradient, bool decays) {
    auto const t = static_cast<double>(s.step);
    double const lambda = decays ? s.weight_decay : 0.0;
    double const raw = gradient * s.gradient_scale;
    double const g = raw + lambda * p;
    switch (s.optimizer) {
      case Optimizer::adamw:
      case Optimizer::adam: {
        bool const is_decoupled = s.optimizer == Optimizer::adamw;
        double const used = is_decoupled ? raw : g;
        m = s.beta1 * m + (1.0 - s.beta1) * used;
        v = s.beta2 * v + (1.0 - s.beta2) * used * used;
        double const m_hat = m / (1.0 - std::pow(s.beta1, t));
        double const v_hat = v / (1.0 - std::pow(s.beta2, t));
        double const decay = is_decoupled ? lambda * p : 0.0;
        p -= s.learning_rate * (m_hat / (std::sqrt(v_hat) + s.epsilon) + decay);
        return;
      }
      case Optimizer::adagrad:
        v += g * g;
        p -= s.learning_rate * g / (std::sqrt(v) + s.epsilon);
        return;
      case Optimizer::rmsprop:
        v = s.beta2 * v + (1.0 - s.beta2) * g * g;
        m = s.momentum * m + g / (std::sqrt(v) + s.epsilon);
        p -= s.learning_rate * m;
        return;
      case Optimizer::sgd:
        m = s.momentum * m + g;
        p -= s.learning_rate * m;
        return;
      case Optimizer::lion: {
        double const c = s.beta1 * m + (1.0 - s.beta1) * raw;
        p -= s.learning_rate * ((c > 0.0 ? 1.0 : c < 0.0 ? -1.0 : 0.0) + lambda * p);
        m = s.beta2 * m + (1.0 - s.beta2) * raw;
        return;
      }
    }
  }
};

TEST(Optimize, FollowsFp64OverManySteps) {
  constexpr std::size_t count = 300;
  for (OptimizerCase const& of : all_rules()) {
    SCOPED_TRACE(of.name());
    OptimizerArrays arrays{of, count, 0, Values::ordinary};
    arrays.decayed = 131;
    for (std::size_t i = 1; i < arrays.planes.size(); ++i) {
      std::ranges::fill(arrays.planes[i], std::byte{0});
    }
    OptimizerStep step = ordinary_optimizer_step(of);
    step.learning_rate = 1e-2;
    step.gradient_scale = 0.5;
    std::vector<Fp64Rule> exact(count, {.s = step});
    for (std::size_t i = 0; i < count; ++i) {
      exact[i].p = arrays.plane<float>(0)[i];
    }
    for (step.step = 1; step.step <= 100; ++step.step) {
      auto const gradient =
          make_values<float>(count, Values::ordinary, static_cast<std::uint64_t>(100 + step.step));
      std::ranges::copy(gradient, arrays.as<float>(arrays.gradient));
      for (std::size_t i = 0; i < count; ++i) {
        exact[i].s.step = step.step;
        exact[i].step(gradient[i], i < arrays.decayed);
      }
      host::optimize(of.layout(), arrays.part(), step);
    }
    for (std::size_t i = 0; i < count; ++i) {
      // 100 roundings of a number below 16 to 24 bits, and the coefficients' own.
      EXPECT_NEAR(arrays.plane<float>(0)[i], exact[i].p, 5e-5) << "at " << i;
      for (std::size_t plane = 1; plane < arrays.planes.size(); ++plane) {
        bool const is_m = arrays.layout.planes()[plane].name == "momentum";
        double const expected = is_m ? exact[i].m : exact[i].v;
        EXPECT_NEAR(arrays.plane<float>(plane)[i], expected,
                    1e-5 * std::max(1.0, std::abs(expected)))
            << "at " << i;
      }
    }
  }
}

/// Moments of a state, widened.
double moment_at(OptimizerArrays& arrays, std::string const& name, std::size_t i) {
  auto const& planes = arrays.layout.planes();
  std::size_t plane = 0;
  std::size_t scale = 0;
  for (std::size_t k = 0; k < planes.size(); ++k) {
    plane = planes[k].name == name ? k : plane;
    scale = planes[k].name == name + "_scale" ? k : scale;
  }
  if (plane == 0) {
    return 0.0;
  }
  switch (planes[plane].type) {
    case PlaneType::bf16:
      return to_float(arrays.plane<bfloat16>(plane)[i]);
    case PlaneType::signed8:
      return momentum_of(arrays.plane<std::uint8_t>(plane)[i], arrays.plane<float>(scale)[i / 256]);
    case PlaneType::unsigned8:
      return variance_of(arrays.plane<std::uint8_t>(plane)[i], arrays.plane<float>(scale)[i / 256]);
    default:
      return arrays.plane<float>(plane)[i];
  }
}

// A step is of the moments before they are rounded; what is kept is a neighbour of them.
TEST(Optimize, WithSmallMomentsTakesTheStepOfTheNumbersThatTheyStandFor) {
  for (OptimizerCase const& of : all_moments()) {
    SCOPED_TRACE(of.name());
    OptimizerArrays arrays{of, 512, 0, Values::ordinary};
    arrays.decayed = 300;
    OptimizerStep const step = ordinary_optimizer_step(of);
    std::vector<Fp64Rule> exact(512, {.s = step});
    for (std::size_t i = 0; i < 512; ++i) {
      exact[i].p = arrays.plane<float>(0)[i];
      exact[i].m = moment_at(arrays, "momentum", i);
      exact[i].v = moment_at(arrays, "variance", i);
      exact[i].step(arrays.as<float>(arrays.gradient)[i], i < 300);
    }
    double largest_m = 0.0, largest_v = 0.0;
    for (Fp64Rule const& rule : exact) {
      largest_m = std::max(largest_m, std::abs(rule.m));
      largest_v = std::max(largest_v, rule.v);
    }
    host::optimize(of.layout(), arrays.part(), step);
    // Steps of the number's own size, and in 8 bits of the block's.
    double const place = of.moments == Moments::fp32   ? 1e-6
                         : of.moments == Moments::bf16 ? 0x1p-7
                                                       : 0.125;
    double const least = of.moments == Moments::int8 ? 0x1p-17 : 1e-7;
    bool const has_m = arrays.layout.planes()[1 % arrays.planes.size()].name == "momentum";
    for (std::size_t i = 0; i < 512; ++i) {
      EXPECT_NEAR(arrays.plane<float>(0)[i], exact[i].p, 2e-6 * std::max(1.0, std::abs(exact[i].p)))
          << i;
      if (has_m) {
        EXPECT_NEAR(moment_at(arrays, "momentum", i), exact[i].m,
                    place * std::abs(exact[i].m) + least * largest_m)
            << i;
      }
      if (of.optimizer != Optimizer::lion && of.optimizer != Optimizer::sgd) {
        EXPECT_NEAR(moment_at(arrays, "variance", i), exact[i].v,
                    place * exact[i].v + least * largest_v)
            << i;
      }
    }
  }
}

// The smallest normal numbers, without a gradient: what is left of them is subnormal.
TEST(Optimize, MomentsThatFadeBecomeZero) {
  constexpr std::size_t count = 300;
  for (OptimizerCase const& of : all_moments()) {
    if (of.moments == Moments::int8 || of.optimizer == Optimizer::adagrad) {
      continue;  // 8 bits have none that are subnormal, and sums of squares do not fade
    }
    SCOPED_TRACE(of.name());
    StateLayout const layout = of.layout();
    for_each_optimize([&](auto const& optimize) {
      OptimizerArrays arrays{of, count, 0, Values::ordinary};
      std::ranges::fill(arrays.gradient, std::byte{0});
      auto const set = [&](std::size_t plane, std::uint32_t bits) {
        for (std::size_t i = 0; i < count; ++i) {
          if (of.moments == Moments::fp32 || plane == 0) {
            arrays.plane<std::uint32_t>(plane)[i] = bits;
          } else {
            arrays.plane<std::uint16_t>(plane)[i] = static_cast<std::uint16_t>(bits >> 16);
          }
        }
      };
      set(0, 0);
      for (std::size_t plane = 1; plane < layout.planes().size(); ++plane) {
        bool const has_sign = layout.planes()[plane].name == "momentum";
        set(plane, has_sign ? 0x80800000U : 0x00800000U);
      }
      optimize(layout, arrays.part(), ordinary_optimizer_step(of));
      for (std::size_t plane = 1; plane < layout.planes().size(); ++plane) {
        auto const* const bytes = arrays.at(plane);
        auto const size = count * static_cast<std::size_t>(bytes_of(layout.planes()[plane].type));
        EXPECT_TRUE(std::all_of(bytes, bytes + size, [](std::byte b) { return b == std::byte{0}; }))
            << layout.planes()[plane].name;
      }
    });
  }
}

TEST(Optimize, PaddingStaysZero) {
  for (OptimizerCase of : all_moments()) {
    for (bool const split : {false, true}) {
      of.split = split;
      SCOPED_TRACE(of.name());
      for_each_optimize([&](auto const& optimize) {
        OptimizerArrays arrays{of, 512, 0, Values::ordinary};
        arrays.decayed = 300;
        for (auto* const values : {&arrays.gradient, &arrays.copy}) {
          std::ranges::fill(*values, std::byte{0});
        }
        for (auto& plane : arrays.planes) {
          std::ranges::fill(plane, std::byte{0});
        }
        OptimizerArrays const zeros = arrays;
        optimize(of.layout(), arrays.part(), ordinary_optimizer_step(of));
        expect_same_bytes(arrays, zeros);
      });
    }
  }
}

TEST(Optimize, ANanSpoilsItsOwnElementAndIn8BitsItsBlockFromTheNextStepOn) {
  constexpr std::size_t at = 77;
  for (OptimizerCase const& of : all_moments()) {
    SCOPED_TRACE(of.name());
    OptimizerStep const step = ordinary_optimizer_step(of);
    for_each_optimize([&](auto const& optimize) {
      OptimizerArrays with{of, 512, 0, Values::ordinary};
      OptimizerArrays without = with;
      with.as<float>(with.gradient)[at] = -std::numeric_limits<float>::quiet_NaN();
      optimize(of.layout(), with.part(), step);
      optimize(of.layout(), without.part(), step);
      bool const has_moments = with.planes.size() > 1;
      for (std::size_t i = 0; i < 512; ++i) {
        EXPECT_EQ(bits_of_float(with.plane<float>(0)[i]),
                  i == at ? nan_bits : bits_of_float(without.plane<float>(0)[i]));
        EXPECT_EQ(with.as<bfloat16>(with.copy)[i].bits,
                  i == at ? bf16_canonical_nan : without.as<bfloat16>(without.copy)[i].bits);
      }
      OptimizerArrays const after_one = with;
      std::ranges::fill(with.gradient, std::byte{0});
      optimize(of.layout(), with.part(), step);
      for (std::size_t i = 0; i < 512; ++i) {
        bool const is_spoilt = of.moments == Moments::int8 && has_moments ? i < 256 : i == at;
        EXPECT_EQ(std::isnan(with.plane<float>(0)[i]), is_spoilt) << i;
      }
    });
  }
}

TEST(Optimize, DoesNotDependOnHowALayerIsCut) {
  for (OptimizerCase const& of : all_moments()) {
    SCOPED_TRACE(of.name());
    OptimizerArrays whole{of, 2048, 0, Values::ordinary};
    whole.decayed = 1100;
    OptimizerArrays cut = whole;
    OptimizerStep const step = ordinary_optimizer_step(of);
    host::optimize(of.layout(), whole.part(), step);
    OptimizerPart const all = cut.part();
    for (std::int64_t begin = 0; begin < 2048; begin += 512) {
      OptimizerPart part = all;
      for (std::size_t i = 0; i < cut.planes.size(); ++i) {
        Plane const& plane = cut.layout.planes()[i];
        part.planes[i] += begin / plane.elements_per_value * bytes_of(plane.type);
      }
      auto const from = static_cast<std::size_t>(begin);
      part.gradient = std::get<std::span<float const>>(all.gradient).subspan(from, 512);
      part.working_copy = std::get<std::span<bfloat16>>(all.working_copy).subspan(from, 512);
      part.elements = 512;
      part.decayed = std::clamp<std::int64_t>(1100 - begin, 0, 512);
      part.first = all.first + from;
      host::optimize(of.layout(), part, step);
    }
    expect_same_bytes(cut, whole);
  }
}

TEST(Optimize, RoundsByTheSeedTheStepTheLayerAndTheElement) {
  for (Moments const moments : {Moments::bf16, Moments::int8}) {
    OptimizerCase const of{.optimizer = Optimizer::sgd, .momentum = 0.9, .moments = moments};
    OptimizerStep const step = ordinary_optimizer_step(of);
    auto const momenta = [&](auto const& change) {
      OptimizerArrays arrays{of, 512, 0, Values::ordinary};
      OptimizerPart part = arrays.part();
      OptimizerStep how = step;
      change(part, how);
      host::optimize(of.layout(), part, how);
      return arrays.planes[1];
    };
    auto const usual = momenta([](auto&, auto&) {});
    EXPECT_EQ(momenta([](auto&, auto&) {}), usual);
    EXPECT_NE(momenta([](auto&, auto& how) { how.seed = 18; }), usual);
    EXPECT_NE(momenta([](auto&, auto& how) { how.step = 4; }), usual);
    EXPECT_NE(momenta([](auto& part, auto&) { part.layer = 3; }), usual);
    EXPECT_NE(momenta([](auto& part, auto&) { part.first = 0; }), usual);
  }
}

TEST(Optimize, ASplitParameterTakesTheStepsOfAWholeOne) {
  for (OptimizerCase of : all_moments()) {
    SCOPED_TRACE(of.name());
    OptimizerArrays whole{of, 768, 0, Values::ordinary};
    of.split = true;
    OptimizerArrays split{of, 768, 0, Values::ordinary};
    for (std::size_t i = 0; i < 768; ++i) {
      split.plane<std::uint16_t>(0)[i] = lower_half(whole.plane<float>(0)[i]);
      split.as<bfloat16>(split.copy)[i] = upper_half(whole.plane<float>(0)[i]);
    }
    OptimizerStep step = ordinary_optimizer_step(of);
    for (step.step = 1; step.step <= 3; ++step.step) {
      host::optimize(whole.layout, whole.part(), step);
      host::optimize(split.layout, split.part(), step);
    }
    expect_same_bytes(split.copy, whole.copy, "working copy");
    for (std::size_t i = 0; i < 768; ++i) {
      EXPECT_EQ(join(split.as<bfloat16>(split.copy)[i], split.plane<std::uint16_t>(0)[i]),
                whole.plane<float>(0)[i]);
    }
    for (std::size_t plane = 1; plane < whole.planes.size(); ++plane) {
      expect_same_bytes(split.planes[plane], whole.planes[plane], "moments");
    }
  }
}

TEST(Optimize, ThreadsDoNotChangeBits) {
  for (OptimizerCase const& of :
       {OptimizerCase{.optimizer = Optimizer::adamw},
        OptimizerCase{.optimizer = Optimizer::adamw, .moments = Moments::int8}}) {
    OptimizerArrays const start{of, 200'192, 0, Values::extreme};
    OptimizerArrays one = start;
    OptimizerStep const step = ordinary_optimizer_step(of);
    with_threads(1, [&] { host::optimize(of.layout(), one.part(), step); });
    for (int const threads : {2, 3, 5}) {
      OptimizerArrays many = start;
      with_threads(threads, [&] { host::optimize(of.layout(), many.part(), step); });
      expect_same_bytes(many, one);
    }
  }
}

TEST(Optimize, RejectsWhatDoesNotFit) {
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerCase const in_8_bits{.optimizer = Optimizer::adamw, .moments = Moments::int8};
  for_each_optimize([&](auto const& optimize) {
    auto const rejects = [&](OptimizerCase const& with, auto const& change) {
      OptimizerArrays arrays{with, 512, 0, Values::ordinary};
      OptimizerPart part = arrays.part();
      OptimizerStep step = ordinary_optimizer_step(with);
      StateLayout layout = with.layout();
      EXPECT_NO_THROW(optimize(layout, part, step));
      change(layout, part, step);
      EXPECT_THROW(optimize(layout, part, step), PreconditionError);
    };
    rejects(of, [](auto&, auto&, auto& step) { step.step = 0; });
    rejects(of, [](auto&, auto& part, auto&) { part.elements = 511; });
    rejects(of, [](auto&, auto& part, auto&) { part.decayed = 513; });
    rejects(of, [](auto&, auto& part, auto&) { part.gradient = std::span<float const>{}; });
    rejects(of, [](auto&, auto& part, auto&) { part.working_copy = std::span<float>{}; });
    rejects(of, [](auto&, auto&, auto& step) { step.optimizer = Optimizer::lion; });
    rejects(of, [](auto& layout, auto&, auto&) {
      layout = state_layout(Optimizer::sgd, Moments::fp32, false);
    });
    rejects({.optimizer = Optimizer::sgd, .momentum = 0.9},
            [](auto&, auto&, auto& step) { step.momentum = 0.0; });
    rejects(in_8_bits, [](auto&, auto& part, auto&) { part.first = 4; });
    rejects(in_8_bits, [](auto&, auto& part, auto&) {
      part.elements = 511;
      part.gradient = std::get<std::span<float const>>(part.gradient).first(511);
      part.working_copy = std::get<std::span<bfloat16>>(part.working_copy).first(511);
    });
    rejects({.optimizer = Optimizer::adamw, .split = true, .copy = DType::bf16},
            [](auto&, auto& part, auto&) {
              auto const copy = std::get<std::span<bfloat16>>(part.working_copy);
              part.working_copy = std::span{reinterpret_cast<float16*>(copy.data()), copy.size()};
            });
  });
}

TEST(Optimize, RejectsAnInstructionSetThatTheCpuLacks) {
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerArrays arrays{of, 8, 0, Values::ordinary};
  EXPECT_THROW(
      host::optimize(of.layout(), arrays.part(), ordinary_optimizer_step(of), beyond_best_simd()),
      PreconditionError);
}

TEST(StateLayoutOfARule, HasItsPlanesInOrder) {
  auto const names = [](StateLayout const& layout) {
    std::string all;
    for (Plane const& plane : layout.planes()) {
      all += plane.name + " " + std::string{name_of(plane.type)} + " ";
    }
    return all;
  };
  EXPECT_EQ(names(state_layout(Optimizer::adamw, Moments::fp32, false)),
            "parameter fp32 momentum fp32 variance fp32 ");
  EXPECT_EQ(names(state_layout(Optimizer::adam, Moments::bf16, false, true)),
            "parameter low16 momentum bf16 variance bf16 ");
  EXPECT_EQ(names(state_layout(Optimizer::rmsprop, Moments::int8, true)),
            "parameter fp32 momentum signed8 variance unsigned8 momentum_scale fp32 variance_scale "
            "fp32 ");
  EXPECT_EQ(names(state_layout(Optimizer::rmsprop, Moments::int8, false)),
            "parameter fp32 variance unsigned8 variance_scale fp32 ");
  EXPECT_EQ(names(state_layout(Optimizer::adagrad, Moments::fp32, false)),
            "parameter fp32 variance fp32 ");
  EXPECT_EQ(names(state_layout(Optimizer::sgd, Moments::fp32, false)), "parameter fp32 ");
  EXPECT_EQ(names(state_layout(Optimizer::lion, Moments::bf16, false)),
            "parameter fp32 momentum bf16 ");
  EXPECT_EQ(state_layout(Optimizer::adamw, Moments::int8, false).bytes_per_element(), 6.03125);
}

TEST(StateLayoutOfARule, WithoutMomentsHasNoneToMakeSmaller) {
  try {
    static_cast<void>(state_layout(Optimizer::sgd, Moments::int8, false));
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_STREQ(
        error.what(),
        "optimizer.moments=8bit: optimizer.kind=sgd without momentum keeps no moments; write "
        "optimizer.moments=fp32, or optimizer.momentum above 0");
  }
}

}  // namespace
}  // namespace offstage::kernels
