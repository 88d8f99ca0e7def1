#include "kernels/attention/cached_simd.hpp"

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/cached.hpp"
#include "kernels/host/simd_exp.hpp"
#include "kernels/host/simd_rows.hpp"

namespace offstage::kernels {
namespace {

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

/// scores <- exp(factor * (scores - their largest)). Returns their sum.
float weigh(float* scores, float factor, std::int64_t count) {
  float largest = scores[0];
#pragma omp simd reduction(max : largest)
  for (std::int64_t j = 0; j < count; ++j) {
    largest = scores[j] > largest ? scores[j] : largest;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = 0; j < count; ++j) {
    scores[j] = simd_exp(factor * (scores[j] - largest));
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
  row_products(query, keys, pitch, scores, count, width);
  float const total = weigh(scores, 1.0F / __builtin_sqrtf(static_cast<float>(width)), count);
  for (std::int64_t i = 0; i < width; ++i) {
    sum[i] = 0;
  }
  auto const fours = count / 4 * 4;
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
