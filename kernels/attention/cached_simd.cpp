#include "kernels/attention/cached_simd.hpp"

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/cached.hpp"
#include "kernels/host/simd_exp.hpp"

namespace offstage::kernels {
namespace {

// Loops over bf16 take 16 elements at a time: left to itself GCC 12 takes 32, and halves them.

/// scores[i] = factor * query . key i, for four keys: the query is read once for them.
template <class T>
void score_four(T const* query, T const* keys, std::int64_t pitch, std::int64_t width, float factor,
                float* scores) {
  float a = 0;
  float b = 0;
  float c = 0;
  float d = 0;
#pragma omp simd simdlen(16) reduction(+ : a, b, c, d)
  for (std::int64_t i = 0; i < width; ++i) {
    float const q = load(query[i]);
    a = multiply_add(q, load(keys[i]), a);
    b = multiply_add(q, load(keys[pitch + i]), b);
    c = multiply_add(q, load(keys[2 * pitch + i]), c);
    d = multiply_add(q, load(keys[3 * pitch + i]), d);
  }
  scores[0] = factor * a;
  scores[1] = factor * b;
  scores[2] = factor * c;
  scores[3] = factor * d;
}

template <class T>
float score_one(T const* query, T const* key, std::int64_t width, float factor) {
  float sum = 0;
#pragma omp simd simdlen(16) reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    sum = multiply_add(load(query[i]), load(key[i]), sum);
  }
  return factor * sum;
}

/// sum += weights . four values: the sum is read and written once for them.
template <class T>
void add_four(float const* weights, T const* values, std::int64_t pitch, std::int64_t width,
              float* sum) {
  float const a = weights[0];
  float const b = weights[1];
  float const c = weights[2];
  float const d = weights[3];
#pragma omp simd simdlen(16)
  for (std::int64_t i = 0; i < width; ++i) {
    float const two =
        multiply_add(b, load(values[pitch + i]), multiply_add(a, load(values[i]), sum[i]));
    sum[i] = multiply_add(d, load(values[3 * pitch + i]),
                          multiply_add(c, load(values[2 * pitch + i]), two));
  }
}

template <class T>
void add_one(float weight, T const* value, std::int64_t width, float* sum) {
#pragma omp simd simdlen(16)
  for (std::int64_t i = 0; i < width; ++i) {
    sum[i] = multiply_add(weight, load(value[i]), sum[i]);
  }
}

/// scores <- exp(scores - their largest). Returns their sum.
float weigh(float* scores, std::int64_t count) {
  float largest = scores[0];
#pragma omp simd reduction(max : largest)
  for (std::int64_t j = 0; j < count; ++j) {
    largest = scores[j] > largest ? scores[j] : largest;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = 0; j < count; ++j) {
    scores[j] = simd_exp(scores[j] - largest);
    total += scores[j];
  }
  return total;
}

}  // namespace

template <Simd simd, class T>
void attend_row(CachedRow<T> const& row, float* scratch) {
  auto const [count, width, pitch, query, keys, values, out] = row;
  float* const scores = scratch;
  float* const sum = scratch + count;
  float const factor = 1.0F / __builtin_sqrtf(static_cast<float>(width));
  auto const fours = count / 4 * 4;
  for (std::int64_t j = 0; j < fours; j += 4) {
    score_four(query, keys + j * pitch, pitch, width, factor, scores + j);
  }
  for (std::int64_t j = fours; j < count; ++j) {
    scores[j] = score_one(query, keys + j * pitch, width, factor);
  }
  float const total = weigh(scores, count);
  for (std::int64_t i = 0; i < width; ++i) {
    sum[i] = 0;
  }
  for (std::int64_t j = 0; j < fours; j += 4) {
    add_four(scores + j, values + j * pitch, pitch, width, sum);
  }
  for (std::int64_t j = fours; j < count; ++j) {
    add_one(scores[j], values + j * pitch, width, sum);
  }
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = store<T>(sum[i] / total);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, attend_row, Simd::OFFSTAGE_SIMD)

}  // namespace offstage::kernels
