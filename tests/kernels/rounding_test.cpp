#include "kernels/optimizer/rounding.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "kernels/optimizer/optimizer_call.hpp"
#include "kernels/optimizer_arrays.hpp"

namespace offstage::kernels {
namespace {

OptimizerCall call_with(std::uint64_t seed, std::int64_t step, std::uint64_t layer,
                        std::uint64_t first) {
  OptimizerCase const of{.optimizer = Optimizer::adamw, .moments = Moments::bf16};
  OptimizerArrays arrays{of, 256, 0, Values::ordinary};
  OptimizerPart part = arrays.part();
  part.layer = layer;
  part.first = first;
  OptimizerStep how = ordinary_optimizer_step(of);
  how.seed = seed;
  how.step = step;
  return call_of(of.layout(), part, how);
}

/// Of 256 equally likely values.
double chi_square(std::array<std::int64_t, 256> const& counts, std::int64_t total) {
  double const expected = static_cast<double>(total) / 256.0;
  double sum = 0.0;
  for (std::int64_t const count : counts) {
    double const off = static_cast<double>(count) - expected;
    sum += off * off / expected;
  }
  return sum;
}
constexpr double most_chi_square = 255.0 + 6.0 * 22.6;  // six standard deviations

/// The correlation of two words, each as a number in [-1/2, 1/2), in standard deviations.
class Correlation {
 public:
  void add(std::uint32_t a, std::uint32_t b) {
    sum_ += (static_cast<double>(a) * 0x1p-32 - 0.5) * (static_cast<double>(b) * 0x1p-32 - 0.5);
    ++count_;
  }
  [[nodiscard]] double deviations() const { return sum_ * 12.0 / std::sqrt(count_); }

 private:
  double sum_ = 0.0;
  double count_ = 0.0;
};

TEST(RandomWord, IsUniformInEachOfItsBytesAndDoesNotFollowItsNeighbours) {
  constexpr std::uint32_t blocks = 4096;
  std::array<std::array<std::int64_t, 256>, 4> counts{};
  Correlation next_element, next_block, next_step, halves;
  OptimizerCall const now = call_with(1, 5, 3, 0);
  OptimizerCall const later = call_with(1, 6, 3, 0);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    BlockKey const key = key_of(now, block);
    BlockKey const of_next_block = key_of(now, block + 1);
    BlockKey const of_next_step = key_of(later, block);
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t const word = random_word(key, i);
      for (std::size_t byte = 0; byte < 4; ++byte) {
        ++counts[byte][(word >> (8 * byte)) & 0xFFU];
      }
      next_element.add(word, random_word(key, (i + 1) % 256));
      next_block.add(word, random_word(of_next_block, i));
      next_step.add(word, random_word(of_next_step, i));
      halves.add(word, word << 16);
    }
  }
  for (auto const& of_byte : counts) {
    EXPECT_LT(chi_square(of_byte, std::int64_t{blocks} * 256), most_chi_square);
  }
  for (auto const* const correlation : {&next_element, &next_block, &next_step, &halves}) {
    EXPECT_LT(std::abs(correlation->deviations()), 5.0);
  }
}

TEST(RandomWord, HasAKeyOfSeedStepLayerAndBlock) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  for (auto const& call : {call_with(1, 1, 0, 0), call_with(2, 1, 0, 0), call_with(1, 2, 0, 0),
                           call_with(1, 1, 1, 0), call_with(1, 1, 0, 512)}) {
    for (std::size_t const block : {std::size_t{0}, std::size_t{1}}) {
      BlockKey const key = key_of(call, block);
      keys.insert({key.start, key.mask});
    }
  }
  EXPECT_EQ(keys.size(), 10U);
  BlockKey const by_part = key_of(call_with(1, 1, 0, 512), 1);
  BlockKey const by_block = key_of(call_with(1, 1, 0, 0), 3);
  EXPECT_EQ(by_part.start, by_block.start);
  EXPECT_EQ(by_part.mask, by_block.mask);
}

TEST(Bf16Moments, AreOnAverageTheNumber) {
  for (float const x : {1.0F, 1.000123F, 3.14159F, 0x1.FFFEp-3F, 1e-20F, 0x1.234567p-130F}) {
    double sum_m = 0.0, sum_v = 0.0;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {  // all that there are
      sum_m += to_float(bfloat16{round_momentum16(-x, random << 16)});
      sum_v += to_float(bfloat16{round_variance16(x, random)});
    }
    EXPECT_EQ(sum_m, -65536.0 * x) << x;
    EXPECT_EQ(sum_v, 65536.0 * x) << x;
  }
}

TEST(Bf16Moments, KeepInfinityAndNanAndNoVarianceBecomesZero) {
  for (std::uint32_t const random : {0x00000000U, 0xFFFFFFFFU}) {
    EXPECT_EQ(round_momentum16(-std::numeric_limits<float>::infinity(), random), 0xFF80);
    EXPECT_EQ(round_momentum16(float_of_bits(nan_bits), random), 0x7FC0);
    EXPECT_EQ(round_variance16(std::numeric_limits<float>::infinity(), random), 0x7F80);
    EXPECT_EQ(round_variance16(0.0F, random), 0);
    EXPECT_EQ(round_momentum16(0.0F, random), 0);
    EXPECT_EQ(round_variance16(0x1p-149F, random), 1);
  }
  EXPECT_EQ(round_momentum16(0x1p-149F, 0), 0);  // plain cutting off
}

TEST(EightBitCodes, GrowFromZeroToTheLargestAndKeepTheirNumbers) {
  for (float const scale : {0x1p-92F, 1.0F, 0x1p5F, 0x1p126F}) {
    float const inverse = 1.0F / scale;
    EXPECT_EQ(variance_of(0, scale), 0.0F);
    EXPECT_EQ(momentum_of(0, scale), 0.0F);
    EXPECT_EQ(variance_of(1, scale), 0x1p-34F * scale);
    EXPECT_EQ(momentum_of(1, scale), 0x1p-18F * scale);
    EXPECT_NEAR(variance_of(255, scale) / scale, 1.875, 1e-9);
    EXPECT_NEAR(momentum_of(127, scale) / scale, 1.875, 1e-4);
    for (std::uint32_t code = 0; code < 256; ++code) {
      auto const byte = static_cast<std::uint8_t>(code);
      for (std::uint32_t const random : {0U, 0xFFFFFFFFU, 0x12345678U}) {
        EXPECT_EQ(round_variance8(variance_of(byte, scale), inverse, random), code);
        EXPECT_EQ(round_momentum8(momentum_of(byte, scale), inverse, random), code);
      }
      if (code > 0) {
        EXPECT_GT(variance_of(byte, scale),
                  variance_of(static_cast<std::uint8_t>(code - 1), scale));
      }
      if (code > 128) {
        EXPECT_LT(momentum_of(byte, scale),
                  momentum_of(static_cast<std::uint8_t>(code - 1), scale));
        EXPECT_EQ(momentum_of(byte, scale),
                  -momentum_of(static_cast<std::uint8_t>(code - 128), scale));
      }
    }
  }
}

TEST(EightBitCodes, AreOnAverageTheNumber) {
  // From the block's largest to what is below the smallest code, which for v is the exception.
  for (float const x : {1.8F, 1.0F, 0.77F, 0.013F, 1e-4F, 3e-5F, 1e-6F, 1e-9F}) {
    double sum_m = 0.0, sum_v = 0.0;
    constexpr std::uint32_t all = 0x100000;
    for (std::uint32_t random = 0; random < all; ++random) {
      sum_m += momentum_of(round_momentum8(-x, 0.5F, random << 12), 2.0F);
      sum_v += variance_of(round_variance8(x, 0.5F, random), 2.0F);
    }
    // A 2^20th of a step is the least difference in probability.
    double const place = std::max(0.125 * x, 0x1p-17) * 0x1p-20;
    EXPECT_NEAR(sum_m / all, -x, 2.0 * place) << x;
    EXPECT_NEAR(sum_v / all, x, 2.0 * std::max(0.125 * x, 0x1p-33) * 0x1p-20 + 1e-7 * x) << x;
  }
}

TEST(EightBitCodes, OfAVarianceThatIsNotZeroAreNot) {
  for (std::uint32_t const random : {0U, 0xFFFFFFFFU}) {
    for (float const v : {1e-12F, 1e-20F, 0x1p-149F}) {
      EXPECT_EQ(round_variance8(v, 1.0F, random), 1) << v;
    }
    EXPECT_EQ(round_variance8(0.0F, 1.0F, random), 0);
    EXPECT_EQ(round_momentum8(0.0F, 1.0F, random), 0);
  }
}

TEST(EightBitCodes, LoseTheMomentumNoLaterThanItsSquare) {
  // m of the smallest code over sqrt(v) of the smallest, both beside 1, is a step of at most 1.
  EXPECT_LE(momentum_of(1, 1.0F) / std::sqrt(variance_of(1, 1.0F)), 1.0F);
}

TEST(BlockScale, IsAPowerOfTwoThatTheLargestIsNearTo) {
  auto const of = [](float largest, CodeFormat format) {
    return scale_of(bits_of_float(largest), format);
  };
  EXPECT_EQ(of(1.0F, momentum_codes).scale, 1.0F);
  EXPECT_EQ(of(1.875F, momentum_codes).scale, 1.0F);
  EXPECT_EQ(of(1.8750001F, momentum_codes).scale, 2.0F);
  EXPECT_EQ(of(1.8750001F, momentum_codes).inverse, 0.5F);
  EXPECT_EQ(of(0.0F, momentum_codes).scale, 0.0F);
  EXPECT_EQ(of(0x1p-149F, momentum_codes).scale, 0x1p-108F);
  EXPECT_EQ(of(0x1p-149F, variance_codes).scale, 0x1p-92F);
  EXPECT_EQ(of(std::numeric_limits<float>::max(), variance_codes).scale, 0x1p126F);
  EXPECT_EQ(of(std::numeric_limits<float>::max(), variance_codes).inverse, 0x1p-126F);
  EXPECT_EQ(round_variance8(std::numeric_limits<float>::max(), 0x1p-126F, 0xFFFFFFFFU), 255);
  EXPECT_EQ(bits_of_float(of(std::numeric_limits<float>::infinity(), variance_codes).scale),
            nan_bits);
  EXPECT_EQ(bits_of_float(of(float_of_bits(nan_bits), variance_codes).scale), nan_bits);
}

/// v of many elements after steps of RMSprop from v = 1 whose gradient's square is always 2, and
/// its deviation over the elements.
struct Mean {
  double value, deviation;
};
Mean variance_after(Moments moments, int steps) {
  constexpr std::size_t count = 4096;
  OptimizerCase const of{.optimizer = Optimizer::rmsprop, .moments = moments};
  OptimizerArrays arrays{of, count, 0, Values::ordinary};
  std::fill_n(arrays.as<float>(arrays.gradient), count, std::sqrt(2.0F));
  if (moments == Moments::bf16) {
    std::fill_n(arrays.plane<bfloat16>(1), count, to_bf16(1.0F));
  } else {
    std::fill_n(arrays.plane<float>(2), count / 256, 1.0F);
    std::fill_n(arrays.plane<std::uint8_t>(1), count, round_variance8(1.0F, 1.0F, 0));
  }
  OptimizerStep step = ordinary_optimizer_step(of);
  step.learning_rate = 1e-6;
  step.beta2 = 0.999;
  step.gradient_scale = 1.0;
  for (step.step = 1; step.step <= steps; ++step.step) {
    host::optimize(of.layout(), arrays.part(), step);
  }
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    double const v = moments == Moments::bf16 ? to_float(arrays.plane<bfloat16>(1)[i])
                                              : variance_of(arrays.plane<std::uint8_t>(1)[i],
                                                            arrays.plane<float>(2)[i / 256]);
    sum += v;
    squares += v * v;
  }
  double const mean = sum / count;
  return {mean, std::sqrt((squares / count - mean * mean) / count)};
}

TEST(SmallMoments, FollowAChangeWherePlainRoundingStandsStill) {
  constexpr int steps = 1500;
  double const exact = 2.0 - std::pow(0.999, steps);
  float plain_bf16 = 1.0F;
  std::uint8_t plain_code = round_variance8(1.0F, 1.0F, 0);
  for (int step = 0; step < steps; ++step) {
    plain_bf16 = to_float(to_bf16(0.999F * plain_bf16 + 0.001F * 2.0F));
    // Half of a step added, and the rest cut off: to nearest.
    plain_code =
        round_variance8(0.999F * variance_of(plain_code, 1.0F) + 0.001F * 2.0F, 1.0F, 0x80000U);
  }
  EXPECT_EQ(plain_bf16, 1.0F);
  EXPECT_NEAR(variance_of(plain_code, 1.0F), 1.0F, 1e-6F);
  for (Moments const moments : {Moments::bf16, Moments::int8}) {
    Mean const ours = variance_after(moments, steps);
    EXPECT_NEAR(ours.value, exact, 5.0 * ours.deviation) << name_of(moments);
    EXPECT_LT(ours.deviation, 0.01);
  }
}

TEST(SmallMoments, DoNotStepFarWhereAVarianceUnderflows) {
  // One gradient is 10^9 times as large as its block's others, whose v in 8 bits would be zero.
  constexpr std::size_t count = 256;
  OptimizerCase const of{.optimizer = Optimizer::adamw, .moments = Moments::int8};
  OptimizerArrays arrays{of, count, 0, Values::ordinary};
  for (auto& plane : arrays.planes) {
    std::ranges::fill(plane, std::byte{0});
  }
  float* const gradient = arrays.as<float>(arrays.gradient);
  std::fill_n(gradient, count, 1e-3F);
  gradient[100] = 1e6F;
  OptimizerStep step = ordinary_optimizer_step(of);
  step.gradient_scale = 1.0;
  step.weight_decay = 0.0;
  float const v = static_cast<float>(1.0 - step.beta2) * 1e-6F;
  float const scale =
      scale_of(bits_of_float(static_cast<float>(1.0 - step.beta2) * 1e12F), variance_codes).scale;
  EXPECT_LT(v / scale, 0x1p-35F);  // to nearest that is zero
  // What follows a zero: m / eps.
  EXPECT_GT((1.0 - step.beta1) * 1e-3 / step.epsilon, 1e3);
  for (step.step = 1; step.step <= 20; ++step.step) {
    std::vector<float> const before{arrays.plane<float>(0), arrays.plane<float>(0) + count};
    host::optimize(of.layout(), arrays.part(), step);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_LE(std::abs(arrays.plane<float>(0)[i] - before[i]), 4.0 * step.learning_rate)
          << i << " in step " << step.step;
      EXPECT_GT(arrays.plane<std::uint8_t>(2)[i], 0);
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
