#include "kernels/attention/cached.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/error.hpp"
#include "kernels/attention_support.hpp"
#include "normal_values.hpp"

namespace offstage::kernels {
namespace {

struct Cached {
  std::int64_t rows, past, heads, kv_heads, head_dim, window;
};

template <class T>
std::vector<T> numbers(std::int64_t count, std::uint64_t stream) {
  return normal_values<T>(1, stream, count);
}

template <class T>
struct Inputs {
  explicit Inputs(Cached const& c)
      : qkv{numbers<T>(c.rows * (c.heads + 2 * c.kv_heads) * c.head_dim, 1)},
        keys{numbers<T>((c.past + c.rows) * c.kv_heads * c.head_dim, 2)},
        values{numbers<T>((c.past + c.rows) * c.kv_heads * c.head_dim, 3)},
        out(static_cast<std::size_t>(c.rows * c.heads * c.head_dim)) {}
  CachedAttention<T> call(Cached const& c) {
    return {.rows = c.rows,
            .past = c.past,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .qkv = qkv,
            .keys = keys,
            .values = values,
            .out = out,
            .window = c.window};
  }
  std::vector<T> qkv, keys, values, out;
};

/// softmax(q K^T / sqrt(d)) V of every row and head, in FP64 and one element after the other.
template <class T>
std::vector<double> by_definition(Cached const& c, Inputs<T> const& in) {
  auto const at = [](std::vector<T> const& all, std::int64_t i) {
    return double{load(all[static_cast<std::size_t>(i)])};
  };
  std::vector<double> out;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      std::int64_t const query = (row * (c.heads + 2 * c.kv_heads) + head) * c.head_dim;
      std::int64_t const kv_head = head * c.kv_heads / c.heads;
      auto const kept = [&](std::int64_t j) { return (j * c.kv_heads + kv_head) * c.head_dim; };
      std::vector<double> sums(static_cast<std::size_t>(c.head_dim));
      double total = 0;
      for (std::int64_t j = 0; j <= c.past + row; ++j) {
        if (c.window > 0 && c.past + row - j >= c.window) {
          continue;
        }
        double score = 0;
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          score += at(in.qkv, query + e) * at(in.keys, kept(j) + e);
        }
        double const weight = std::exp(score / std::sqrt(static_cast<double>(c.head_dim)));
        total += weight;
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          sums[static_cast<std::size_t>(e)] += weight * at(in.values, kept(j) + e);
        }
      }
      for (double const sum : sums) {
        out.push_back(sum / total);
      }
    }
  }
  return out;
}

// One new row or several, nothing or much before them, heads that share keys, windows that end
// before, within and after the new rows, and enough work for a team of threads.
std::vector<Cached> const cases{{1, 0, 1, 1, 4, 0},     {1, 9, 4, 2, 6, 0},   {5, 0, 4, 1, 8, 0},
                                {3, 20, 6, 3, 16, 0},   {1, 9, 4, 2, 6, 4},   {5, 3, 2, 1, 8, 1},
                                {5, 3, 2, 1, 8, 6},     {2, 30, 2, 2, 8, 99}, {4, 300, 8, 2, 64, 0},
                                {4, 300, 8, 2, 64, 130}};

template <class T>
void is_softmax_by_definition(double tolerance) {
  for (Cached const& c : cases) {
    Inputs<T> in{c};
    auto const wanted = by_definition(c, in);
    for (auto const simd : available_simd()) {
      host::cached_attention(in.call(c), simd);
      EXPECT_LT(difference(in.out, wanted), tolerance)
          << fmt::format("{}: {} rows after {}, {} heads on {} of {}, window {}", name_of(simd),
                         c.rows, c.past, c.heads, c.kv_heads, c.head_dim, c.window);
    }
  }
}

TEST(CachedAttention, InFp32IsSoftmaxByDefinition) {
  is_softmax_by_definition<float>(1e-5);
}
// The output is rounded to 8 bits, and nothing before it.
TEST(CachedAttention, InBf16IsSoftmaxByDefinition) {
  is_softmax_by_definition<bfloat16>(0x1p-8);
}

// The exponentials of these scores, and their sums, are no FP32 numbers.
TEST(CachedAttention, StandsScoresOfAnySize) {
  for (Cached const& c : cases) {
    Inputs<float> in{c};
    std::ranges::transform(in.qkv, in.qkv.begin(), [](float x) { return 100.0F * x; });
    host::cached_attention(in.call(c));
    EXPECT_LT(difference(in.out, by_definition(c, in)), 1e-3)
        << fmt::format("{} rows after {} of {}", c.rows, c.past, c.head_dim);
  }
}

TEST(CachedAttention, RejectsViewsAndShapesThatCannotBe) {
  Cached const good{2, 3, 4, 2, 6, 0};
  Inputs<float> in{good};
  auto const refused = [&](auto const& change) {
    auto call = in.call(good);
    change(call);
    EXPECT_THROW(host::cached_attention(call), PreconditionError);
  };
  refused([](auto& call) { call.past = 4; });
  refused([](auto& call) { call.heads = 3; });
  refused([](auto& call) { call.kv_heads = 0; });
  refused([](auto& call) { call.window = -1; });
  refused([](auto& call) { call.out = call.out.first(1); });
}

}  // namespace
}  // namespace offstage::kernels
