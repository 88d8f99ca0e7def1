#include "kernels/attention/attention_bf16.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/amx_on_cpu.hpp"
#include "kernels/attention_support.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage::kernels {
namespace {

/// Each unit: AMX by a stand-in where the CPU does not have it.
class AttentionBf16 : public testing::TestWithParam<Bf16Unit> {
 protected:
  void SetUp() override {
    if (best_bf16_unit() == Bf16Unit::none) {
      GTEST_SKIP() << "no AVX512-BF16: not run";
    }
    if (GetParam() > best_bf16_unit()) {
      stand_in_.emplace();
    }
  }

  static void solve(Problem<bfloat16>& problem) {
    attention_forward_by(GetParam(), problem.forward());
    attention_backward_by(GetParam(), problem.backward());
  }
  static Problem<bfloat16> solved(AttentionShape const& shape) {
    Problem<bfloat16> problem{shape};
    solve(problem);
    return problem;
  }
  [[nodiscard]] bool has_stand_in() const { return stand_in_.has_value(); }

 private:
  std::optional<AmxOnCpu> stand_in_;
};
INSTANTIATE_TEST_SUITE_P(On, AttentionBf16, testing::Values(Bf16Unit::avx512_bf16, Bf16Unit::amx),
                         [](auto const& of) {
                           return of.param == Bf16Unit::amx ? "Amx" : "Avx512";
                         });

/// The same numbers in FP64, solved.
Problem<double> wanted(Problem<bfloat16> const& problem) {
  Problem<double> wide{problem.shape};
  wide.documents = problem.documents;
  auto const widen = [](bfloat16 x) { return double{load(x)}; };
  std::ranges::transform(problem.qkv, wide.qkv.begin(), widen);
  std::ranges::transform(problem.d_out, wide.d_out.begin(), widen);
  ref::attention_forward(wide.forward());
  ref::attention_backward(wide.backward());
  return wide;
}

std::string describe(AttentionShape const& s) {
  return fmt::format("{} x {}, {} heads on {} of {}", s.batch, s.sequence, s.heads, s.kv_heads,
                     s.head_dim);
}

/// Weights and their gradients are rounded too, so that the tolerance is that of GPUs.
constexpr double tolerance = 0x1p-7;

void expect_close(Problem<bfloat16> const& problem, double of_gradients = tolerance) {
  auto const exact = wanted(problem);
  EXPECT_LT(difference(problem.out, exact.out), tolerance) << describe(problem.shape);
  EXPECT_LT(difference(problem.log_sum_exp, exact.log_sum_exp), 1e-6) << describe(problem.shape);
  EXPECT_LT(difference(problem.d_qkv, exact.d_qkv), of_gradients) << describe(problem.shape);
}

void expect_same_bits(Problem<bfloat16> const& one, Problem<bfloat16> const& other) {
  EXPECT_TRUE(one.out == other.out) << describe(one.shape);
  EXPECT_TRUE(one.log_sum_exp == other.log_sum_exp) << describe(one.shape);
  EXPECT_TRUE(one.d_qkv == other.d_qkv) << describe(one.shape);
}

TEST_P(AttentionBf16, AgreesWithTheReferenceInFp64) {
  for (AttentionShape const& shape : {AttentionShape{1, 1, 2, 2, 64},
                                      {1, 31, 2, 1, 32},
                                      {1, 33, 2, 2, 40},
                                      {1, 63, 4, 2, 72},
                                      {2, 64, 1, 1, 64},
                                      {1, 65, 2, 1, 80},
                                      {1, 97, 3, 1, 96},
                                      {1, 129, 2, 1, 100},
                                      {1, 191, 1, 1, 112},
                                      {1, 200, 2, 2, 128},
                                      {1, 70, 1, 1, 160},
                                      {1, 67, 2, 1, 5},
                                      {1, 130, 1, 1, 64, 1},
                                      {1, 200, 2, 1, 32, 5},
                                      {1, 200, 2, 2, 48, 64},
                                      {1, 257, 2, 1, 80, 100},
                                      {1, 300, 1, 1, 64, 129},
                                      {1, 40, 1, 1, 1}}) {
    expect_close(solved(shape));
  }
}

TEST_P(AttentionBf16, HoldsDocumentsApart) {
  for (auto const& [shape, documents] : shapes_with_documents()) {
    Problem<bfloat16> problem{shape};
    problem.documents = documents;
    solve(problem);
    expect_close(problem);
  }
}

TEST_P(AttentionBf16, RunsOnTheUnitThatWasAskedFor) {
  auto const before = AmxOnCpu::products();
  solved({1, 20, 1, 1, 64});
  if (has_stand_in()) {
    // Forward 2 * 2 * 2 blocks of 2 * 2 tiles and 4 products; a diagonal tile leaves parts out.
    EXPECT_GT(AmxOnCpu::products() - before, 100);
  } else {
    EXPECT_EQ(AmxOnCpu::products(), before);
  }
}

TEST_P(AttentionBf16, GivesTheSameBitsInASecondRun) {
  for (AttentionShape const& shape : {AttentionShape{2, 98, 2, 1, 64}, {1, 77, 3, 1, 48}}) {
    expect_same_bits(solved(shape), solved(shape));
  }
}

#ifdef _OPENMP
TEST_P(AttentionBf16, BitsDoNotDependOnTheNumberOfThreads) {
  auto const solved_in = [](int threads, ShapeWithDocuments const& of) {
    omp_set_num_threads(threads);
    Problem<bfloat16> problem{of.shape};
    problem.documents = of.documents;
    solve(problem);
    return problem;
  };
  auto const threads = omp_get_max_threads();
  for (ShapeWithDocuments const& of : shapes_for_teams()) {
    expect_same_bits(solved_in(1, of), solved_in(5, of));
  }
  omp_set_num_threads(threads);
}
#endif

TEST_P(AttentionBf16, KeysThatScoreHigherAndHigherMoveTheScale) {
  AttentionShape const shape{1, 260, 1, 1, 32};
  Problem<bfloat16> problem{shape};
  auto const row = static_cast<std::size_t>(3 * shape.head_dim);
  for (std::size_t t = 0; t < 260; ++t) {
    for (std::size_t c = 0; c < 32; ++c) {
      // Scores rise by half a power of two from one key to the next.
      problem.qkv[t * row + c] = to_bf16(1);
      problem.qkv[t * row + 32 + c] = to_bf16(static_cast<float>(t) / 16.0F);
    }
  }
  solve(problem);
  // Gradients of scores all but cancel: by FP32 products they are 0.01 apart, as `out` is rounded.
  expect_close(problem, 0.03);
}

TEST_P(AttentionBf16, LargeScoresNeitherOverflowNorVanish) {
  Problem<bfloat16> problem{{1, 100, 1, 1, 64}};
  for (bfloat16& x : problem.qkv) {
    x = to_bf16(30 * load(x));
  }
  solve(problem);
  auto const exact = wanted(problem);
  // Scores near 10^4 carry 10^-3 of rounding, which the exponential hands on.
  EXPECT_LT(difference(problem.out, exact.out), 1e-2);
  EXPECT_LT(difference(problem.log_sum_exp, exact.log_sum_exp), 1e-6);
  EXPECT_LT(difference(problem.d_qkv, exact.d_qkv), 3e-2);
}

TEST_P(AttentionBf16, LaterPositionsDoNotReachEarlierOnes) {
  AttentionShape const shape{1, 150, 2, 1, 64};
  Problem<bfloat16> before{shape};
  auto after = before;
  constexpr std::size_t changed = 70;
  std::fill(after.qkv.begin() + changed * 4 * 64, after.qkv.end(), to_bf16(1e6F));
  attention_forward_by(GetParam(), before.forward());
  attention_forward_by(GetParam(), after.forward());
  EXPECT_TRUE(
      std::equal(before.out.begin(), before.out.begin() + changed * 2 * 64, after.out.begin()));
}

TEST_P(AttentionBf16, WhatIsNotANumberStaysSo) {
  Problem<bfloat16> problem{{1, 80, 1, 1, 32}};
  problem.qkv[70 * 96] = to_bf16(NAN);  // of a query
  solve(problem);
  for (std::size_t c = 0; c < 32; ++c) {
    EXPECT_TRUE(std::isnan(load(problem.out[70 * 32 + c])));
    EXPECT_TRUE(std::isnan(load(problem.d_qkv[c + 32]))) << "dK of the first position";
    EXPECT_FALSE(std::isnan(load(problem.out[69 * 32 + c])));
  }
  EXPECT_TRUE(std::isnan(problem.log_sum_exp[70]));
}

TEST(AttentionBf16Unit, GoesWithWhatOneDnnMayUse) {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) {  // as a run of this test has it
    EXPECT_EQ(best_bf16_unit(), Bf16Unit::none);
  }
  AttentionShape const shape{1, 70, 2, 1, 64};
  Problem<bfloat16> by_host{shape};
  auto by_unit = by_host;
  host::attention_forward(by_host.forward());
  host::attention_backward(by_host.backward());
  if (auto const best = best_bf16_unit(); best != Bf16Unit::none) {
    attention_forward_by(best, by_unit.forward());
    attention_backward_by(best, by_unit.backward());
  } else {
    attention_forward_by(best_simd(), by_unit.forward());
    attention_backward_by(best_simd(), by_unit.backward());
  }
  expect_same_bits(by_host, by_unit);
}

TEST(AttentionBf16Unit, NoneIsRefused) {
  Problem<bfloat16> problem{{1, 4, 1, 1, 4}};
  EXPECT_THROW(attention_forward_by(Bf16Unit::none, problem.forward()), PreconditionError);
  EXPECT_THROW(attention_backward_by(Bf16Unit::none, problem.backward()), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
