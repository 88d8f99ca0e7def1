#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "effort.hpp"
#include "environment_variable.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention_gpu_support.hpp"
#include "kernels/gpu_support.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {
namespace {

/// Both directions by the kernels themselves, with `units` key-value heads at a time; `skew`
/// elements spoil the alignment of every view; `choices`: as attention_backward takes them.
template <class T>
void solve_on_gpu(Problem<T>& p, std::int64_t units = 64, std::size_t skew = 0,
                  cuda::AttentionChoices choices = {}) {
  choices.parts = choices.parts == 0 ? attention_parts<T>(p.shape) : choices.parts;
  auto const surrounded = [&](std::vector<T> values) {  // who reads beside them gets NaN
    auto const nan = store<T>(std::numeric_limits<float>::quiet_NaN());
    values.insert(values.begin(), margin + skew, nan);
    values.insert(values.end(), margin, nan);
    return DeviceArray<T>{values};
  };
  DeviceArray<T> const qkv{surrounded(p.qkv)};
  DeviceArray<T> const d_out{surrounded(p.d_out)};
  DeviceArray<T> const out{p.out};
  DeviceArray<T> const d_qkv{p.d_qkv};
  DeviceArray<float> const log_sum_exp{p.log_sum_exp};
  auto const scratch_bytes = Problem<T>::count(units * attention_scratch(p.shape, choices.parts));
  std::vector<std::byte> scratch_values(scratch_bytes + margin, std::byte{0x5A});
  DeviceArray<std::byte> const scratch{scratch_values};
  auto const qkv_view = qkv.view(margin + skew, p.qkv.size());
  auto const out_view = out.view(margin - skew, p.inner(p.out));
  auto const log_view = log_sum_exp.view(margin, p.inner(p.log_sum_exp));
  DeviceArray<std::int32_t> const begins{p.begins};
  DeviceArray<std::int32_t> const ends{p.ends};
  AttentionDocuments const documents{begins.view(0, p.begins.size()), ends.view(0, p.ends.size())};
  cuda::attention_forward<T>({.shape = p.shape,
                              .qkv = qkv_view,
                              .out = out_view,
                              .log_sum_exp = log_view,
                              .documents = documents},
                             nullptr);
  AttentionBackward<T> const backward{.shape = p.shape,
                                      .qkv = qkv_view,
                                      .out = out_view,
                                      .d_out = d_out.view(margin + skew, p.d_out.size()),
                                      .log_sum_exp = log_view,
                                      .d_qkv = d_qkv.view(margin - skew, p.inner(p.d_qkv)),
                                      .documents = documents};
  cuda::attention_backward(backward, scratch.view(0, scratch_bytes), nullptr, choices);
  offstage::cuda::check(cudaDeviceSynchronize());
  out.copy_to(p.out);
  d_qkv.copy_to(p.d_qkv);
  log_sum_exp.copy_to(p.log_sum_exp);
  scratch.copy_to(scratch_values);
  EXPECT_TRUE(std::all_of(scratch_values.begin() + static_cast<std::ptrdiff_t>(scratch_bytes),
                          scratch_values.end(), [](std::byte b) { return b == std::byte{0x5A}; }));
}

/// Around tiles of 64 and 128, for every number of columns, groups of 1, 2 and 4.
std::vector<AttentionShape> shapes() {
  return {{1, 1, 1, 1, 64},       {2, 7, 4, 1, 32},        {1, 64, 2, 2, 64},
          {1, 65, 2, 1, 128},     {2, 130, 2, 1, 64},      {1, 200, 2, 2, 96},
          {1, 130, 1, 1, 128},    {1, 200, 4, 1, 32},      {1, 130, 2, 1, 80},
          {1, 65, 2, 1, 256},     {1, 40, 3, 3, 8},        {2, 9, 2, 1, 10},
          {1, 257, 1, 1, 64},     {1, 130, 2, 1, 64, 1},   {1, 300, 2, 1, 128, 5},
          {2, 260, 2, 1, 32, 64}, {1, 300, 4, 1, 64, 129}, {1, 400, 1, 1, 96, 200},
          {1, 65, 2, 1, 256, 20}};
}

template <class T>
class AttentionOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (offstage::cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
  }
};
using AttentionTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(AttentionOnGpu, AttentionTypes);

TYPED_TEST(AttentionOnGpu, AgreesWithTheReferenceAndWritesNothingElse) {
  using T = TypeParam;
  // Each shape for one of the types, unless all are tried.
  std::size_t turn = std::is_same_v<T, float> ? 0 : std::is_same_v<T, bfloat16> ? 1 : 2;
  for (auto const& shape : shapes()) {
    if (turn++ % 3 != 0 && !tries_all()) {
      continue;
    }
    Problem<T> problem{shape};
    solve_on_gpu(problem);
    expect_close(problem, Wanted<T>{problem}, tolerance<T>);
  }
}

/// Ends of documents in tiles, at their edges and beside them; of one token, and of many tiles;
/// with a window, too.
TYPED_TEST(AttentionOnGpu, HoldsDocumentsApart) {
  using T = TypeParam;
  struct Case {
    AttentionShape shape;
    std::vector<std::int32_t> lengths;
  };
  std::vector<Case> const cases{{{1, 5, 2, 1, 8}, {2, 3}},
                                {{2, 130, 4, 2, 64}, {64, 1, 65}},
                                {{1, 300, 2, 1, 128}, {127, 2, 65, 63, 43}},
                                {{1, 400, 4, 1, 96}, {10, 150, 200, 40}},
                                {{2, 300, 2, 1, 32, 40}, {30, 200, 70}},
                                {{1, 70, 1, 1, 64}, std::vector<std::int32_t>(70, 1)},
                                {{1, 65, 2, 1, 256, 20}, {33, 32}}};
  for (auto const& [shape, lengths] : cases) {
    Problem<T> problem{shape};
    part(problem, lengths);
    solve_on_gpu(problem);
    expect_close(problem, Wanted<T>{problem}, tolerance<T>);
  }
}

TYPED_TEST(AttentionOnGpu, OneDocumentHasTheBitsOfNone) {
  using T = TypeParam;
  Problem<T> plain{{2, 150, 2, 1, 64}};
  auto one = plain;
  part(one, {150});
  solve_on_gpu(plain);
  solve_on_gpu(one);
  EXPECT_TRUE(plain.out == one.out && plain.d_qkv == one.d_qkv);
  EXPECT_EQ(plain.log_sum_exp, one.log_sum_exp);
}

TYPED_TEST(AttentionOnGpu, HasTilesForTheSharedMemoryOfAnyGpu) {
  using T = TypeParam;
  for (std::int64_t const head_dim : {32, 64, 96, 104, 128}) {
    Problem<T> problem{{1, 200, 2, 1, head_dim}};
    solve_on_gpu(problem, 64, 0, {.most_shared = offstage::cuda::least_shared_bytes});
    expect_close(problem, Wanted<T>{problem}, tolerance<T>);
  }
}

TYPED_TEST(AttentionOnGpu, TakesLargerTilesWhereThereIsRoomForThem) {
  using T = TypeParam;
  EnvironmentVariable const stand_in{"CUDA_ON_CPU_CAPABILITY", "9.0"};  // a real GPU is what it is
  for (std::int64_t const head_dim : {104, 128}) {
    Problem<T> problem{{1, 200, 2, 1, head_dim}};
    solve_on_gpu(problem);
    expect_close(problem, Wanted<T>{problem}, tolerance<T>);
  }
}

TYPED_TEST(AttentionOnGpu, TakesViewsThatAreNotAligned) {
  using T = TypeParam;
  Problem<T> problem{{1, 70, 2, 1, 32}};
  solve_on_gpu(problem, 64, 1);
  expect_close(problem, Wanted<T>{problem}, tolerance<T>, 1);
}

TYPED_TEST(AttentionOnGpu, LargeScoresNeitherOverflowNorVanish) {
  using T = TypeParam;
  for (std::int64_t const head_dim : {64, 20}) {
    Problem<T> problem{{1, 100, 2, 1, head_dim}, 30};
    solve_on_gpu(problem);
    Wanted<T> const wanted{problem};
    // Scores near 10^4 carry 10^-3 of rounding, which the exponential hands on.
    EXPECT_LT(difference(problem.out, wanted.out, margin), 1e-2);
    EXPECT_LT(difference(problem.log_sum_exp, wanted.log_sum_exp, margin), 1e-5);
    EXPECT_LT(difference(problem.d_qkv, wanted.d_qkv, margin), 3e-2);
  }
}

TYPED_TEST(AttentionOnGpu, GivesTheSameBitsTwiceAndWithLittleScratchMemory) {
  using T = TypeParam;
  Problem<T> once{{3, 150, 2, 1, 64}};
  auto again = once;
  solve_on_gpu(once);
  solve_on_gpu(again, 3);
  EXPECT_TRUE(once.out == again.out && once.d_qkv == again.d_qkv);
  EXPECT_EQ(once.log_sum_exp, again.log_sum_exp);
  for (std::int64_t const units : {2, 1}) {
    auto in_parts = once;
    std::ranges::fill(in_parts.d_qkv, canary<T>());
    solve_on_gpu(in_parts, units);
    EXPECT_TRUE(once.d_qkv == in_parts.d_qkv) << units;
  }
}

TYPED_TEST(AttentionOnGpu, DealsAGroupsHeadsBetweenAnyNumberOfBlocks) {
  using T = TypeParam;
  for (std::int64_t const parts : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} parts", parts));
    Problem<T> problem{{1, 140, 6, 1, 40}};
    solve_on_gpu(problem, 1, 0, {.parts = parts});
    expect_close(problem, Wanted<T>{problem}, tolerance<T>);
  }
}

TYPED_TEST(AttentionOnGpu, LaterPositionsDoNotReachEarlierOnes) {
  using T = TypeParam;
  Problem<T> before{{1, 150, 2, 1, 64}};
  auto after = before;
  constexpr std::size_t changed = 70;
  std::fill(after.qkv.begin() + changed * 4 * 64, after.qkv.end(), store<T>(1e4F));
  solve_on_gpu(before);
  solve_on_gpu(after);
  EXPECT_TRUE(std::equal(before.out.begin(), before.out.begin() + margin + changed * 2 * 64,
                         after.out.begin()));
}

TYPED_TEST(AttentionOnGpu, RunsOnAStreamOfItsScratchMemory) {
  using T = TypeParam;
  auto const device = device::make_cuda_device(0, 0);
  auto const stream = device->make_calling_stream("model");
  Problem<T> problem{{1, 66, 2, 1, 64}};
  auto wanted = problem;
  solve_on_gpu(wanted);
  DeviceArray<T> const qkv{problem.qkv};
  DeviceArray<T> const d_out{problem.d_out};
  DeviceArray<T> const out{problem.out};
  DeviceArray<T> const d_qkv{problem.d_qkv};
  DeviceArray<float> const log_sum_exp{problem.log_sum_exp};
  auto const out_view = out.view(margin, problem.d_out.size());
  auto const log_view = log_sum_exp.view(margin, problem.inner(problem.log_sum_exp));
  attention_forward<T>(*stream,
                       {problem.shape, qkv.view(0, problem.qkv.size()), out_view, log_view});
  attention_backward<T>(*stream, {problem.shape, qkv.view(0, problem.qkv.size()), out_view,
                                  d_out.view(0, problem.d_out.size()), log_view,
                                  d_qkv.view(margin, problem.qkv.size())});
  stream->synchronize();
  out.copy_to(problem.out);
  d_qkv.copy_to(problem.d_qkv);
  EXPECT_TRUE(problem.out == wanted.out);
  EXPECT_TRUE(problem.d_qkv == wanted.d_qkv);
}

TEST(AttentionOnGpuChecks, ItsArgumentsWithoutAGpu) {
  Problem<bfloat16> p{{1, 4, 2, 1, 8}};
  auto const forward = [&](AttentionShape const& shape) {
    cuda::attention_forward<bfloat16>({shape, p.qkv, p.out, p.log_sum_exp}, nullptr);
  };
  EXPECT_THROW(forward(p.shape), PreconditionError);  // margins make the views too long
  EXPECT_THROW(forward({1, 4, 3, 2, 8}), PreconditionError);
  AttentionForward<bfloat16> const nothing{{0, 8, 2, 1, 8}, {}, {}, {}};
  EXPECT_NO_THROW(cuda::attention_forward(nothing, nullptr));
  AttentionForward<float> const wide{{0, 8, 2, 1, 264}, {}, {}, {}};
  EXPECT_THROW(cuda::attention_forward(wide, nullptr), PreconditionError);
  AttentionShape const vast{1 << 16, 1 << 15, 1, 1, 8};  // 2^31 positions in all
  std::int64_t const positions = vast.batch * vast.sequence;
  auto const views_of = [&](auto& array, std::int64_t width) {
    return std::span{array.data(), static_cast<std::size_t>(positions * width)};
  };
  AttentionForward<bfloat16> const long_views{vast, views_of(p.qkv, 24), views_of(p.out, 8),
                                              views_of(p.log_sum_exp, 1)};
  EXPECT_THROW(cuda::attention_forward(long_views, nullptr), PreconditionError);
  std::vector<std::byte> scratch(static_cast<std::size_t>(attention_scratch<bfloat16>(p.shape)) -
                                 1);
  AttentionBackward<bfloat16> const backward{
      p.shape,
      p.qkv,
      std::span{p.out}.subspan(margin, p.d_out.size()),
      p.d_out,
      std::span{p.log_sum_exp}.subspan(margin, p.inner(p.log_sum_exp)),
      std::span{p.d_qkv}.subspan(margin, p.qkv.size())};
  EXPECT_THROW(cuda::attention_backward(backward, scratch, nullptr), PreconditionError);
  scratch.resize(static_cast<std::size_t>(attention_scratch(p.shape, 2)));
  for (std::int64_t const parts : {-1, 3, 4}) {
    EXPECT_THROW(cuda::attention_backward(backward, scratch, nullptr, {.parts = parts}),
                 PreconditionError);
  }
}

}  // namespace
}  // namespace offstage::kernels
