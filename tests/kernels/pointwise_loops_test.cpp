#include "kernels/host/pointwise_loops.hpp"

#include <limits>

#include "kernels/host/simd_exp.hpp"
#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

TEST(SimdExp, IsWithinFloatRoundingOfExp) {
  for (float x = -87.0F; x < 88.0F; x += 0.0107F) {
    double const exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(simd_exp(x) / exact, 1.0, 1e-7) << x;
  }
  EXPECT_EQ(simd_exp(0.0F), 1.0F);
}

TEST(SimdExp, SaturatesAndLetsNanThrough) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(simd_exp(-88.0F), 0.0F);
  EXPECT_EQ(simd_exp(-infinity), 0.0F);
  EXPECT_EQ(simd_exp(89.0F), infinity);
  EXPECT_EQ(simd_exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(simd_exp(std::nanf(""))));
}

TEST(PointwiseLoops, TheTableFitsTheCpu) {
  switch (best_simd()) {
    case Simd::avx512:
      EXPECT_EQ(&pointwise_loops<float>(), &avx512::loops_float);
      break;
    case Simd::avx2:
      EXPECT_EQ(&pointwise_loops<float>(), &avx2::loops_float);
      break;
    case Simd::baseline:
      EXPECT_EQ(&pointwise_loops<float>(), &baseline::loops_float);
      break;
  }
}

/// Everything that the loops compute from one set of inputs.
template <class T>
std::vector<double> all_results(PointwiseLoops<T> const& loops, std::int64_t width) {
  auto const a = random_values<T>(width, 1), b = random_values<T>(width, 2);
  auto const c = random_values<T>(width, 3);
  auto const floats = random_values<float>(width, 4);
  std::vector<double> results;
  auto const keep = [&](auto const& values) {
    auto const wide = convert<double>(values);
    results.insert(results.end(), wide.begin(), wide.end());
  };
  auto x = a, y = a;
  results.push_back(
      loops.rmsnorm_forward(x.data(), b.data(), x.data(), c.data(), y.data(), width, 1e-5F));
  keep(y);
  auto d_weight = floats;
  loops.rmsnorm_backward(a.data(), b.data(), c.data(), 0.7F, x.data(), d_weight.data(), width,
                         true);
  keep(x);
  keep(d_weight);
  auto d_bias = floats;
  auto const row = loops.layernorm_forward(x.data(), b.data(), x.data(), c.data(), a.data(),
                                           y.data(), width, 0.1F);
  results.push_back(row.mean);
  results.push_back(row.inverse_deviation);
  keep(y);
  loops.layernorm_backward(a.data(), b.data(), c.data(), {0.3F, 0.7F}, x.data(), d_weight.data(),
                           d_bias.data(), width);
  keep(x);
  keep(d_weight);
  keep(d_bias);
  loops.add(a.data(), b.data(), x.data(), width);
  keep(x);
  loops.accumulate(x.data(), d_bias.data(), width);
  keep(d_bias);
  loops.gelu_forward(a.data(), y.data(), width);
  keep(y);
  loops.gelu_backward(a.data(), b.data(), y.data(), width);
  keep(y);
  loops.exact_gelu_forward(a.data(), y.data(), width);
  keep(y);
  loops.exact_gelu_backward(a.data(), b.data(), y.data(), width);
  keep(y);
  loops.rope(x.data(), 1, width / 2, floats.data(), d_weight.data(), -1.0F);
  keep(x);
  loops.swiglu_forward(a.data(), b.data(), y.data(), width);
  keep(y);
  loops.swiglu_backward(a.data(), b.data(), c.data(), x.data(), y.data(), width);
  keep(x);
  keep(y);
  std::vector<std::int64_t> const rows{0, 0, 0};
  loops.add_rows(y.data(), a.data(), width, rows.data(), 3, std::min(width, row_block));
  keep(y);
  results.push_back(loops.maximum(floats.data(), width));
  results.push_back(loops.sum_exp(floats.data(), 0.5F, width));
  loops.scaled_exp(floats.data(), 0.5F, 3.0F, y.data(), width);
  keep(y);
  return results;
}

TEST(PointwiseLoops, EveryInstructionSetOfThisCpuComputesTheSame) {
  constexpr double float_rounding = 1e-6, bf16_rounding = 1.0 / 128, fp16_rounding = 1.0 / 1024;
  for (std::int64_t const width : {1, 15, 16, 64, 77, 2050}) {
    auto const floats = all_results(baseline::loops_float, width);
    auto const bf16s = all_results(baseline::loops_bfloat16, width);
    auto const fp16s = all_results(baseline::loops_float16, width);
    if (best_simd() >= Simd::avx2) {
      expect_close(all_results(avx2::loops_float, width), floats, float_rounding);
      expect_close(all_results(avx2::loops_bfloat16, width), bf16s, bf16_rounding);
      expect_close(all_results(avx2::loops_float16, width), fp16s, fp16_rounding);
    }
    if (best_simd() >= Simd::avx512) {
      expect_close(all_results(avx512::loops_float, width), floats, float_rounding);
      expect_close(all_results(avx512::loops_bfloat16, width), bf16s, bf16_rounding);
      expect_close(all_results(avx512::loops_float16, width), fp16s, fp16_rounding);
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
