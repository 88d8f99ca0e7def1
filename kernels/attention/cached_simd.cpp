#include "kernels/attention/cached_simd.hpp"

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/cached.hpp"
#include "kernels/host/simd_exp.hpp"
#include "kernels/host/simd_rows.hpp"

namespace offstage::kernels {
namespace {

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
  weighted_rows(scores, values, pitch, sum, count, width);
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = store<T>(sum[i] / total);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, attend_row, Simd::OFFSTAGE_SIMD)

}  // namespace offstage::kernels
