#include "kernels/attention/cached.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/error.hpp"
#include "base/instantiate.hpp"

namespace offstage::kernels {
namespace {

// Fewer products than these are done before a team has begun.
constexpr std::int64_t worth_a_team = 1 << 16;

template <class T>
float dot(T const* a, T const* b, std::int64_t count) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < count; ++c) {
    sum += load(a[c]) * load(b[c]);
  }
  return sum;
}

template <class T>
void check(CachedAttention<T> const& a) {
  bool const sane = a.rows >= 1 && a.past >= 0 && a.kv_heads >= 1 && a.heads >= 1 &&
                    a.heads % a.kv_heads == 0 && a.head_dim >= 1 && a.window >= 0;
  require(sane, "cached_attention: no such shape");
  auto const all = (a.past + a.rows) * a.kv_heads * a.head_dim;
  require(std::ssize(a.qkv) == a.rows * (a.heads + 2 * a.kv_heads) * a.head_dim &&
              std::ssize(a.keys) == all && std::ssize(a.values) == all &&
              std::ssize(a.out) == a.rows * a.heads * a.head_dim,
          "cached_attention: spans do not have the sizes of their shape");
}

/// One row of one head.
template <class T>
void attend(CachedAttention<T> const& a, std::int64_t row, std::int64_t head,
            std::vector<float>& score) {
  auto const width = a.head_dim;
  auto const pitch = a.kv_heads * width;
  auto const end = a.past + row + 1;
  auto const first = a.window > 0 ? std::max<std::int64_t>(0, end - a.window) : 0;
  auto const count = end - first;
  auto const offset = first * pitch + head / (a.heads / a.kv_heads) * width;
  T const* const query = a.qkv.data() + row * (a.heads + 2 * a.kv_heads) * width + head * width;
  T const* const keys = a.keys.data() + offset;
  T const* const values = a.values.data() + offset;
  float const scale = 1.0F / std::sqrt(static_cast<float>(width));
  score.resize(static_cast<std::size_t>(count + width));
  float* const sum = score.data() + count;
  std::fill(sum, sum + width, 0.0F);
  for (std::int64_t j = 0; j < count; ++j) {
    score[static_cast<std::size_t>(j)] = scale * dot(query, keys + j * pitch, width);
  }
  float const largest = *std::max_element(score.begin(), score.begin() + count);
  float total = 0.0F;
  for (std::int64_t j = 0; j < count; ++j) {
    float const weight = std::exp(score[static_cast<std::size_t>(j)] - largest);
    T const* const value = values + j * pitch;
    total += weight;
    for (std::int64_t c = 0; c < width; ++c) {
      sum[c] += weight * load(value[c]);
    }
  }
  T* const out = a.out.data() + (row * a.heads + head) * width;
  for (std::int64_t c = 0; c < width; ++c) {
    out[c] = store<T>(sum[c] / total);
  }
}

}  // namespace

namespace host {

template <class T>
void cached_attention(CachedAttention<T> const& a) {
  check(a);
  [[maybe_unused]] bool const large =
      a.rows * a.heads * (a.past + a.rows) * a.head_dim >= worth_a_team;
#pragma omp parallel if (large)
  {
    std::vector<float> score;
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < a.rows * a.heads; ++i) {
      attend(a, i / a.heads, i % a.heads, score);
    }
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, cached_attention)

}  // namespace host

template <class T>
void cached_attention(device::Stream& stream, CachedAttention<T> const& a) {
  require(stream.kind() == device::Kind::host, "cached_attention: the host alone has it");
  stream.enqueue([a] { host::cached_attention(a); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, cached_attention)

}  // namespace offstage::kernels
