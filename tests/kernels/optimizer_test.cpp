#include "kernels/optimizer/optimizer.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "kernels/adamw_support.hpp"
#include "kernels/optimizer_arrays.hpp"

namespace offstage::kernels {
namespace {

/// Lengths that the moments allow.
std::vector<std::size_t> lengths_of(OptimizerCase const& of) {
  if (of.moments == Moments::int8) {
    return {0, 256, 512, 4096, 66'304};
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

TEST(Optimize, AdamwHasTheBitsThatItAlwaysHad) {
  for (Values const kind : all_kinds) {
    OptimizerCase const of{.optimizer = Optimizer::adamw, .copy = DType::fp32};
    OptimizerArrays got{of, 4096, 0, kind};
    got.decayed = 4096;
    AdamwArrays<float, float> old{4096, 0, kind};
    OptimizerArrays before = got;
    std::memcpy(old.parameter.data(), got.at(0), 4 * 4096);
    std::memcpy(old.momentum.data(), got.at(1), 4 * 4096);
    std::memcpy(old.variance.data(), got.at(2), 4 * 4096);
    std::memcpy(old.gradient.data(), got.gradient.data(), 4 * 4096);
    ref::adamw(old.state(), ordinary_step);
    host::optimize(of.layout(), got.part(), ordinary_optimizer_step(of));
    EXPECT_EQ(std::memcmp(old.parameter.data(), got.at(0), 4 * 4096), 0);
    EXPECT_EQ(std::memcmp(old.momentum.data(), got.at(1), 4 * 4096), 0);
    EXPECT_EQ(std::memcmp(old.variance.data(), got.at(2), 4 * 4096), 0);
    EXPECT_EQ(std::memcmp(old.working_copy.data(), got.copy.data(), 4 * 4096), 0);
  }
}

}  // namespace
}  // namespace offstage::kernels
