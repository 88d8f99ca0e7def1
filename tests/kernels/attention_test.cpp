#include "kernels/attention/attention.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/simd.hpp"
#include "device/device.hpp"
#include "kernels/attention/attention_simd.hpp"
#include "kernels/attention_support.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage::kernels {
namespace {

template <class T>
Problem<T> solved_by_host(AttentionShape const& shape, Simd simd) {
  Problem<T> problem{shape};
  attention_forward_by(simd, problem.forward());
  attention_backward_by(simd, problem.backward());
  return problem;
}

/// As this CPU computes best.
template <class T>
Problem<T> solved_by_host(AttentionShape const& shape) {
  Problem<T> problem{shape};
  host::attention_forward(problem.forward());
  host::attention_backward(problem.backward());
  return problem;
}

/// softmax(Q K^T / sqrt(d)) V with the whole row of scores, one output element at a time.
double attention_by_definition(AttentionShape const& s, std::vector<double> const& qkv,
                               std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) {
  auto const element = [&](std::int64_t position, std::int64_t head, std::int64_t column) {
    auto const row = (b * s.sequence + position) * (s.heads + 2 * s.kv_heads) + head;
    return qkv[static_cast<std::size_t>(row * s.head_dim + column)];
  };
  auto const kv_head = h / (s.heads / s.kv_heads);
  double numerator = 0;
  double denominator = 0;
  std::int64_t const first = s.window > 0 ? std::max<std::int64_t>(0, t + 1 - s.window) : 0;
  for (std::int64_t j = first; j <= t; ++j) {
    double score = 0;
    for (std::int64_t e = 0; e < s.head_dim; ++e) {
      score += element(t, h, e) * element(j, s.heads + kv_head, e);
    }
    double const weight = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
    denominator += weight;
    numerator += weight * element(j, s.heads + s.kv_heads + kv_head, c);
  }
  return numerator / denominator;
}

std::vector<AttentionShape> small_shapes() {
  return {{1, 1, 1, 1, 2},    {2, 5, 2, 2, 4},    {2, 9, 4, 2, 6},   {1, 7, 6, 1, 8},
          {2, 9, 4, 2, 6, 4}, {1, 7, 2, 1, 4, 1}, {1, 5, 1, 1, 2, 5}};
}

/// Around tiles of 64 and rows padded to 32; head_dim of common models and odd ones.
std::vector<AttentionShape> shapes_across_tiles() {
  return {{1, 1, 2, 2, 64},       {1, 63, 2, 1, 32},      {2, 64, 4, 4, 64},
          {1, 65, 2, 2, 128},     {2, 130, 4, 2, 48},     {1, 200, 3, 3, 2},
          {1, 257, 8, 2, 80},     {3, 17, 5, 1, 100},     {1, 130, 1, 1, 64, 1},
          {1, 200, 2, 1, 32, 5},  {1, 200, 2, 2, 48, 64}, {2, 257, 4, 2, 80, 100},
          {1, 300, 2, 1, 32, 129}};
}

std::string describe(AttentionShape const& s, Simd simd) {
  return fmt::format("{}: T {}, {} heads of {}, window {}", name_of(simd), s.sequence, s.heads,
                     s.head_dim, s.window);
}

TEST(Attention, TheFirstPositionCopiesItsValueAndEqualKeysAverage) {
  // One head of two columns: q, k, v of three positions. All keys are equal, so weights are too.
  std::vector<float> qkv{1, 2, 1, 1, 3, 6, 5, 4, 1, 1, 5, 8, 0, 1, 1, 1, 1, 1};
  std::vector<float> out(6);
  std::vector<float> log_sum_exp(3);
  ref::attention_forward<float>({{1, 3, 1, 1, 2}, qkv, out, log_sum_exp});
  std::vector<float> const wanted{3, 6, 4, 7, 3, 5};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(out[i], wanted[i], 1e-6);
  }
  EXPECT_NEAR(log_sum_exp[0], 3 / std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(log_sum_exp[1], 9 / std::sqrt(2.0) + std::log(2.0), 1e-6);
}

// A window as long as the sequence hides nothing.
TEST(Attention, AWindowOfTheSequenceHasTheBitsOfNone) {
  AttentionShape const plain{1, 150, 2, 1, 32};
  auto const wanted = solved_by_host<float>(plain);
  for (std::int64_t const window : {150, 151, 4096}) {
    auto shape = plain;
    shape.window = window;
    auto const found = solved_by_host<float>(shape);
    EXPECT_EQ(found.out, wanted.out) << window;
    EXPECT_EQ(found.d_qkv, wanted.d_qkv) << window;
  }
}

/// Rows `first` to `first` + `count` of sequence b, as a problem of their own.
Problem<double> rows_alone(Problem<double> const& all, std::int64_t b, std::int64_t first,
                           std::int64_t count) {
  auto shape = all.shape;
  shape.batch = 1;
  shape.sequence = count;
  Problem<double> alone{shape};
  auto const take = [&](std::vector<double> const& from, std::vector<double>& to) {
    auto const width = std::ssize(from) / (all.shape.batch * all.shape.sequence);
    std::copy_n(from.begin() + (b * all.shape.sequence + first) * width, count * width, to.begin());
  };
  take(all.qkv, alone.qkv);
  take(all.d_out, alone.d_out);
  ref::attention_forward(alone.forward());
  ref::attention_backward(alone.backward());
  return alone;
}

TEST(Attention, DocumentsThatShareASequenceAreAsEachAlone) {
  for (ShapeWithDocuments const& each : shapes_with_documents()) {
    AttentionShape const& shape = each.shape;
    Documents const& documents = each.documents;
    Problem<double> packed{shape};
    packed.documents = documents;
    ref::attention_forward(packed.forward());
    ref::attention_backward(packed.backward());
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t first = 0; first < shape.sequence;) {
        auto const end = documents.ends[static_cast<std::size_t>(b * shape.sequence + first)];
        auto const alone = rows_alone(packed, b, first, end - first);
        auto const begin_in = [&](auto const& array) {
          auto const width = std::ssize(array) / (shape.batch * shape.sequence);
          return array.begin() + (b * shape.sequence + first) * width;
        };
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), begin_in(packed.out)));
        EXPECT_TRUE(std::equal(alone.d_qkv.begin(), alone.d_qkv.end(), begin_in(packed.d_qkv)));
        first = end;
      }
    }
  }
}

TEST(Attention, OneDocumentHasTheBitsOfNone) {
  AttentionShape const shape{2, 150, 2, 1, 32};
  auto const wanted = solved_by_host<float>(shape);
  Problem<float> found{shape};
  found.documents = Documents{{{150}, {150}}};
  host::attention_forward(found.forward());
  host::attention_backward(found.backward());
  EXPECT_EQ(found.out, wanted.out);
  EXPECT_EQ(found.log_sum_exp, wanted.log_sum_exp);
  EXPECT_EQ(found.d_qkv, wanted.d_qkv);
}

TEST(Attention, TheHostHoldsDocumentsApartInEveryType) {
  auto const expect_close = []<class T>(T, double tolerance) {
    for (auto const& [shape, documents] : shapes_with_documents()) {
      Problem<T> wanted{shape};
      wanted.documents = documents;
      ref::attention_forward(wanted.forward());
      ref::attention_backward(wanted.backward());
      for (auto const simd : available_simd()) {
        Problem<T> host{shape};
        host.documents = documents;
        attention_forward_by(simd, host.forward());
        attention_backward_by(simd, host.backward());
        EXPECT_LT(difference(host.out, wanted.out), tolerance) << describe(shape, simd);
        EXPECT_LT(difference(host.log_sum_exp, wanted.log_sum_exp), 1e-5) << describe(shape, simd);
        EXPECT_LT(difference(host.d_qkv, wanted.d_qkv), tolerance) << describe(shape, simd);
      }
    }
  };
  expect_close(float{}, 1e-5);
  expect_close(bfloat16{}, 0x1p-8);
  expect_close(float16{}, 0x1p-11);
}

TEST(Attention, TheReferenceIsSoftmaxByDefinition) {
  for (auto const& s : small_shapes()) {
    Problem<double> problem{s};
    ref::attention_forward(problem.forward());
    std::size_t at = 0;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t t = 0; t < s.sequence; ++t) {
        for (std::int64_t h = 0; h < s.heads; ++h) {
          for (std::int64_t c = 0; c < s.head_dim; ++c) {
            ASSERT_NEAR(problem.out[at++], attention_by_definition(s, problem.qkv, b, t, h, c),
                        1e-13);
          }
        }
      }
    }
  }
}

TEST(Attention, TheReferenceBackwardIsTheDerivative) {
  constexpr double step = 1e-5;
  for (auto const& shape : small_shapes()) {
    auto problem = solved_by_reference<double>(shape);
    auto const d_qkv = problem.d_qkv;
    auto const objective = [&] {
      ref::attention_forward(problem.forward());
      double sum = 0;
      for (std::size_t i = 0; i < problem.out.size(); ++i) {
        sum += problem.out[i] * problem.d_out[i];
      }
      return sum;
    };
    for (std::size_t i = 0; i < d_qkv.size(); ++i) {
      double const kept = problem.qkv[i];
      problem.qkv[i] = kept + step;
      double const above = objective();
      problem.qkv[i] = kept - step;
      double const below = objective();
      problem.qkv[i] = kept;
      ASSERT_NEAR(d_qkv[i], (above - below) / (2 * step), 1e-8) << "element " << i;
    }
  }
}

TEST(Attention, TheHostAgreesWithTheReferenceInFp32) {
  for (auto const& shape : shapes_across_tiles()) {
    auto const wanted = solved_by_reference<double>(shape);
    for (auto const simd : available_simd()) {
      auto const host = solved_by_host<float>(shape, simd);
      EXPECT_LT(difference(host.out, wanted.out), 1e-5) << describe(shape, simd);
      EXPECT_LT(difference(host.log_sum_exp, wanted.log_sum_exp), 1e-5) << describe(shape, simd);
      EXPECT_LT(difference(host.d_qkv, wanted.d_qkv), 1e-5) << describe(shape, simd);
    }
  }
}

template <class T>
void expect_agreement_with_ref(double tolerance) {
  for (auto const& shape : shapes_across_tiles()) {
    auto const wanted = solved_by_reference<T>(shape);
    for (auto const simd : available_simd()) {
      auto const host = solved_by_host<T>(shape, simd);
      EXPECT_LT(difference(host.out, wanted.out), tolerance) << describe(shape, simd);
      EXPECT_LT(difference(host.log_sum_exp, wanted.log_sum_exp), 1e-5) << describe(shape, simd);
      EXPECT_LT(difference(host.d_qkv, wanted.d_qkv), tolerance) << describe(shape, simd);
    }
  }
}

TEST(Attention, TheHostAgreesWithTheReferenceInBf16) {
  expect_agreement_with_ref<bfloat16>(0x1p-8);
}

TEST(Attention, TheHostAgreesWithTheReferenceInFp16) {
  expect_agreement_with_ref<float16>(0x1p-11);
}

TEST(Attention, LargeScoresNeitherOverflowNorVanish) {
  AttentionShape const shape{1, 100, 1, 1, 16};
  Problem<float> problem{shape};
  for (float& x : problem.qkv) {
    x *= 30;
  }
  auto reference = problem;
  host::attention_forward(problem.forward());
  host::attention_backward(problem.backward());
  ref::attention_forward(reference.forward());
  ref::attention_backward(reference.backward());
  // Scores near 10^4 carry 10^-3 of rounding, which the exponential hands on.
  EXPECT_LT(difference(problem.out, reference.out), 1e-2);
  EXPECT_LT(difference(problem.d_qkv, reference.d_qkv), 1e-2);
}

TEST(Attention, LaterPositionsDoNotReachEarlierOnes) {
  AttentionShape const shape{1, 150, 2, 1, 16};
  Problem<float> before{shape};
  host::attention_forward(before.forward());
  auto after = before;
  constexpr std::size_t changed = 70;
  for (std::size_t i = changed * 4 * 16; i < after.qkv.size(); ++i) {
    after.qkv[i] = 1e6F;
  }
  host::attention_forward(after.forward());
  EXPECT_TRUE(
      std::equal(before.out.begin(), before.out.begin() + changed * 2 * 16, after.out.begin()));
}

#ifdef _OPENMP
TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  auto const solved = [](ShapeWithDocuments const& of) {
    Problem<float> problem{of.shape};
    problem.documents = of.documents;
    attention_forward_by(best_simd(), problem.forward());
    attention_backward_by(best_simd(), problem.backward());
    return problem;
  };
  auto const threads = omp_get_max_threads();
  for (ShapeWithDocuments const& of : shapes_for_teams()) {
    omp_set_num_threads(1);
    auto const one = solved(of);
    for (int const several : {2, 3, 5, 16}) {
      omp_set_num_threads(several);
      auto const many = solved(of);
      EXPECT_EQ(one.out, many.out) << several << " of " << of.shape.sequence;
      EXPECT_EQ(one.log_sum_exp, many.log_sum_exp) << several << " of " << of.shape.sequence;
      EXPECT_EQ(one.d_qkv, many.d_qkv) << several << " of " << of.shape.sequence;
    }
  }
  omp_set_num_threads(threads);
}

// OpenMP ends the process where it cannot start a thread of a team again.
TEST(Attention, OfFewerTasksThanThreadsLeavesTheTeamItsThreads) {
  auto const threads = omp_get_max_threads();
  omp_set_num_threads(3);
  auto const team = [] {
    std::array<pid_t, 3> members{};
#pragma omp parallel
    members.at(static_cast<std::size_t>(omp_get_thread_num())) = gettid();
    return members;
  };
  auto const before = team();
  (void)solved_by_host<float>({2, 8, 1, 1, 16});
  EXPECT_EQ(team(), before);
  omp_set_num_threads(threads);
}
#endif

template <class T>
void expect_same_on_a_stream(AttentionShape const& shape, Problem<T> const& wanted) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  Problem<T> problem{shape};
  attention_forward(*stream, problem.forward());
  attention_backward(*stream, problem.backward());
  stream->synchronize();
  EXPECT_EQ(problem.out, wanted.out);
  EXPECT_EQ(problem.d_qkv, wanted.d_qkv);
}

TEST(Attention, AStreamOfTheHostBackendTakesEveryType) {
  AttentionShape const shape{1, 20, 2, 1, 8};
  expect_same_on_a_stream(shape, solved_by_host<float>(shape));
  expect_same_on_a_stream(shape, solved_by_host<bfloat16>(shape));
  expect_same_on_a_stream(shape, solved_by_host<float16>(shape));
  expect_same_on_a_stream(shape, solved_by_reference<double>(shape));
}

/// The share of `places` that is busy while blocks of dK and dV run, longest first, each on the
/// place that is free first. A block takes as long as its query tiles, and most of another one to
/// begin and end.
double busy(AttentionShape const& shape, std::int64_t parts, std::int64_t places) {
  constexpr double overhead = 0.7;
  constexpr std::int64_t query_tile = 64;
  std::int64_t const members = shape.heads / shape.kv_heads / parts;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  for (std::int64_t i = 0; i < places; ++i) {
    ends.push(0);
  }
  double work = 0;
  double last = 0;
  for (std::int64_t key = 0; key < shape.sequence; key += attention_key_tile) {
    double const length =
        overhead + static_cast<double>(members * (shape.sequence - key)) / query_tile;
    for (std::int64_t i = 0; i < shape.batch * shape.kv_heads * parts; ++i) {
      last = std::max(last, ends.top() + length);
      ends.push(ends.top() + length);
      ends.pop();
      work += length;
    }
  }
  return work / (last * static_cast<double>(places));
}

TEST(AttentionParts, KeepALargeGpuBusyByAsFewSumsAsTheyCan) {
  constexpr std::int64_t processors = 132;
  for (auto const& shape :
       {AttentionShape{4, 2048, 32, 4, 64}, AttentionShape{1, 2048, 32, 4, 64},
        AttentionShape{16, 2048, 32, 4, 64}, AttentionShape{4, 2048, 32, 4, 128},
        AttentionShape{1, 4096, 32, 8, 128}, AttentionShape{8, 1024, 32, 8, 64},
        AttentionShape{2, 4096, 28, 4, 128}}) {
    std::int64_t const places = shape.head_dim <= 64 ? 2 * processors : processors;
    std::int64_t const parts = attention_parts<bfloat16>(shape);
    EXPECT_GT(busy(shape, parts, places), 0.96) << shape.batch << " x " << shape.sequence;
    EXPECT_EQ(shape.heads / shape.kv_heads % parts, 0);
  }
  AttentionShape const usual{4, 2048, 32, 4, 64};
  EXPECT_LT(busy(usual, 1, 2 * processors), 0.6);  // what a block per tile of keys would come to
  EXPECT_EQ(attention_parts<bfloat16>(usual), 4);
  EXPECT_EQ(attention_parts<bfloat16>({1, 2048, 32, 4, 64}), 8);
  EXPECT_EQ(attention_parts<bfloat16>({16, 2048, 32, 4, 64}), 1);
  EXPECT_EQ(attention_parts<bfloat16>({1, 64, 28, 4, 64}), 7);
}

TEST(AttentionParts, AreOneWhereNoTensorCoresAre) {
  AttentionShape const shape{1, 2048, 32, 4, 64};
  EXPECT_EQ(attention_parts<float>(shape), 1);
  EXPECT_EQ(attention_parts<float16>({1, 2048, 32, 4, 60}), 1);
  EXPECT_EQ(attention_parts<float16>({1, 2048, 32, 4, 136}), 1);
}

TEST(AttentionParts, HaveTheirSumsInScratchMemory) {
  AttentionShape const shape{4, 2048, 32, 4, 64};
  Bytes const deltas = 8 * 2048 * 4;
  EXPECT_EQ(attention_scratch<bfloat16>(shape), deltas + 4 * 2 * 2048 * 64 * 4);
  EXPECT_EQ(attention_scratch<float>(shape), deltas);
  EXPECT_EQ(attention_workspace<bfloat16>(shape), 16 * attention_scratch<bfloat16>(shape));
  EXPECT_EQ(attention_scratch<bfloat16>({4, 2048, 4, 4, 64}), 2048 * 4);
}

TEST(Attention, NothingIsDoneForNoPositions) {
  for (AttentionShape const& shape :
       {AttentionShape{0, 8, 2, 1, 4}, AttentionShape{2, 0, 2, 1, 4}}) {
    EXPECT_NO_THROW(solved_by_host<float>(shape));
    EXPECT_NO_THROW(solved_by_reference<float>(shape));
  }
}

TEST(Attention, ShapesThatMakeNoSenseAreRefused) {
  for (auto const& shape : {AttentionShape{1, 4, 3, 2, 4}, AttentionShape{1, 4, 2, 0, 4},
                            AttentionShape{1, 4, 0, 1, 4}, AttentionShape{1, 4, 2, 2, 0}}) {
    EXPECT_THROW(solved_by_host<float>(shape), PreconditionError);
    EXPECT_THROW(solved_by_reference<float>(shape), PreconditionError);
  }
  AttentionForward<float> const negative{{-1, 4, 2, 2, 4}, {}, {}, {}};
  EXPECT_THROW(host::attention_forward(negative), PreconditionError);
  EXPECT_THROW(ref::attention_forward(negative), PreconditionError);
}

template <class Call>
void expect_refused(void (*shorten)(Problem<float>&), Call call) {
  Problem<float> problem{{1, 4, 2, 1, 4}};
  shorten(problem);
  EXPECT_THROW(call(problem), PreconditionError);
}

TEST(Attention, ViewsOfTheWrongLengthAreRefused) {
  auto const forward = [](auto& p) { host::attention_forward(p.forward()); };
  auto const backward = [](auto& p) { host::attention_backward(p.backward()); };
  expect_refused([](auto& p) { p.qkv.pop_back(); }, forward);
  expect_refused([](auto& p) { p.out.pop_back(); }, forward);
  expect_refused([](auto& p) { p.log_sum_exp.pop_back(); }, forward);
  expect_refused([](auto& p) { p.qkv.pop_back(); }, backward);
  expect_refused([](auto& p) { p.out.pop_back(); }, backward);
  expect_refused([](auto& p) { p.d_out.pop_back(); }, backward);
  expect_refused([](auto& p) { p.log_sum_exp.pop_back(); }, backward);
  expect_refused([](auto& p) { p.d_qkv.pop_back(); }, backward);
  expect_refused([](auto& p) { p.documents = Documents{{{3}}}; }, forward);
  expect_refused([](auto& p) { p.documents = Documents{{{2, 1}}}; }, backward);
  expect_refused(
      [](auto& p) {
        p.documents = Documents{{{4}}};
        p.documents.ends.clear();
      },
      forward);
}

}  // namespace
}  // namespace offstage::kernels
