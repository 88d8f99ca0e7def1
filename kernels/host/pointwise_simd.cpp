#include "kernels/host/pointwise_loops.hpp"
#include "kernels/host/simd_exp.hpp"
#include "kernels/host/simd_rows.hpp"
#include "kernels/pointwise/normal_tail.hpp"

// Plain loops that the compiler vectorises. `omp simd` promises independent iterations (equal
// addresses in one iteration are fine, so in-place calls are) and lets sums run in lanes.

namespace offstage::kernels::OFFSTAGE_SIMD {
namespace {

template <class T>
void add(T const* x, T const* y, T* out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = store<T>(load(x[i]) + load(y[i]));
  }
}

template <class T>
void accumulate(T const* x, float* sums, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] += load(x[i]);
  }
}

template <class T>
float rmsnorm_forward(T const* x, T const* delta, T* residual, T const* weight, T* y,
                      std::int64_t width, float epsilon) {
  if (delta != nullptr) {
    add(x, delta, residual, width);
    x = residual;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    sum += load(x[i]) * load(x[i]);
  }
  float const inverse = 1.0F / __builtin_sqrtf(sum / static_cast<float>(width) + epsilon);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    y[i] = store<T>(load(x[i]) * inverse * load(weight[i]));
  }
  return inverse;
}

template <class T>
void rmsnorm_backward(T const* x, T const* weight, T const* dy, float inverse_rms, T* dx,
                      float* d_weight, std::int64_t width, bool add) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) {
    dot += load(weight[i]) * load(dy[i]) * load(x[i]);
  }
  float const pull = dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const g = load(dy[i]);
    float const value = load(x[i]);
    float const before = add ? load(dx[i]) : 0.0F;
    dx[i] = store<T>(before + (inverse_rms * load(weight[i]) * g - pull * value));
    d_weight[i] += g * value * inverse_rms;
  }
}

template <class T>
RowStatistics layernorm_forward(T const* x, T const* delta, T* residual, T const* weight,
                                T const* bias, T* y, std::int64_t width, float epsilon) {
  if (delta != nullptr) {
    add(x, delta, residual, width);
    x = residual;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    sum += load(x[i]);
  }
  float const mean = sum / static_cast<float>(width);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) {
    float const centred = load(x[i]) - mean;
    squares += centred * centred;
  }
  float const inverse = 1.0F / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    y[i] = store<T>((load(x[i]) - mean) * inverse * load(weight[i]) + load(bias[i]));
  }
  return {mean, inverse};
}

template <class T>
void layernorm_backward(T const* x, T const* weight, T const* dy, RowStatistics row, T* dx,
                        float* d_weight, float* d_bias, std::int64_t width) {
  float const mean = row.mean;  // no structured binding: Clang takes none into an OpenMP loop
  float const inverse = row.inverse_deviation;
  float shift = 0;
  float stretch = 0;
#pragma omp simd reduction(+ : shift, stretch)
  for (std::int64_t i = 0; i < width; ++i) {
    float const g = load(weight[i]) * load(dy[i]);
    shift += g;
    stretch += g * ((load(x[i]) - mean) * inverse);
  }
  shift /= static_cast<float>(width);
  stretch /= static_cast<float>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const d = load(dy[i]);
    float const normed = (load(x[i]) - mean) * inverse;
    dx[i] = store<T>(load(dx[i]) + inverse * (load(weight[i]) * d - shift - normed * stretch));
    d_weight[i] += d * normed;
    d_bias[i] += d;
  }
}

template <class T>
void rope(T* head, std::int64_t heads, std::int64_t half, float const* cosine, float const* sine,
          float sign) {
  for (std::int64_t h = 0; h < heads; ++h, head += 2 * half) {
    T* const other = head + half;
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      float const s = sign * sine[i];
      float const first = load(head[i]);
      float const second = load(other[i]);
      head[i] = store<T>(first * cosine[i] - second * s);
      other[i] = store<T>(second * cosine[i] + first * s);
    }
  }
}

template <class T>
void swiglu_forward(T const* gate, T const* up, T* y, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const g = load(gate[i]);
    y[i] = store<T>(g / (1.0F + simd_exp(-g)) * load(up[i]));
  }
}

template <class T>
void swiglu_backward(T const* gate, T const* up, T const* dy, T* d_gate, T* d_up,
                     std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const g = load(gate[i]);
    float const u = load(up[i]);
    float const d = load(dy[i]);
    float const sigmoid = 1.0F / (1.0F + simd_exp(-g));
    d_gate[i] = store<T>(d * u * sigmoid * (1.0F + g * (1.0F - sigmoid)));
    d_up[i] = store<T>(d * g * sigmoid);
  }
}

constexpr float twice_root_2_over_pi = 1.5957691216057308F;
constexpr float cubic = 0.044715F;

template <class T>
void gelu_forward(T const* x, T* y, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const value = load(x[i]);
    float const twice_u = twice_root_2_over_pi * value * (1.0F + cubic * value * value);
    y[i] = store<T>(value / (1.0F + simd_exp(-twice_u)));
  }
}

template <class T>
void gelu_backward(T const* x, T const* dy, T* dx, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const value = load(x[i]);
    float const square = cubic * value * value;
    float const twice_u = twice_root_2_over_pi * value * (1.0F + square);
    float const sigmoid = 1.0F / (1.0F + simd_exp(-twice_u));
    float const slope = twice_root_2_over_pi * (1.0F + 3.0F * square);
    dx[i] = store<T>(load(dy[i]) * sigmoid * (1.0F + value * (1.0F - sigmoid) * slope));
  }
}

template <class T>
void exact_gelu_forward(T const* x, T* y, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const value = load(x[i]);
    y[i] = store<T>(value * normal_below(value, simd_exp(-0.5F * value * value)));
  }
}

template <class T>
void exact_gelu_backward(T const* x, T const* dy, T* dx, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float const value = load(x[i]);
    float const bell = simd_exp(-0.5F * value * value);
    float const slope = normal_below(value, bell) + value * (inverse_root_2_pi * bell);
    dx[i] = store<T>(load(dy[i]) * slope);
  }
}

template <class T>
void add_rows(T* target, T const* source, std::int64_t stride, std::int64_t const* rows,
              std::int64_t row_count, std::int64_t count) {
  float sum[row_block];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    sum[i] = load(target[i]);
  }
  for (std::int64_t k = 0; k < row_count; ++k) {
    T const* const row = source + rows[k] * stride;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      sum[i] += load(row[i]);
    }
  }
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] = store<T>(sum[i]);
  }
}

float maximum(float const* x, std::int64_t count) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) {
    largest = largest < x[i] ? x[i] : largest;
  }
  return largest;
}

double sum_exp(float const* x, float shift, std::int64_t count) {
  constexpr std::int64_t block =
      1024;  // FP32 sums stay short, so that large vocabularies are exact
  double sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const end = begin + block < count ? begin + block : count;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t i = begin; i < end; ++i) {
      part += simd_exp(x[i] - shift);
    }
    sum += part;
  }
  return sum;
}

template <class T>
void scaled_exp(float const* x, float shift, float factor, T* y, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = store<T>(factor * simd_exp(x[i] - shift));
  }
}

template <class T>
constexpr PointwiseLoops<T> table{.add = add<T>,
                                  .accumulate = accumulate<T>,
                                  .rmsnorm_forward = rmsnorm_forward<T>,
                                  .rmsnorm_backward = rmsnorm_backward<T>,
                                  .layernorm_forward = layernorm_forward<T>,
                                  .layernorm_backward = layernorm_backward<T>,
                                  .rope = rope<T>,
                                  .swiglu_forward = swiglu_forward<T>,
                                  .swiglu_backward = swiglu_backward<T>,
                                  .gelu_forward = gelu_forward<T>,
                                  .gelu_backward = gelu_backward<T>,
                                  .exact_gelu_forward = exact_gelu_forward<T>,
                                  .exact_gelu_backward = exact_gelu_backward<T>,
                                  .add_rows = add_rows<T>,
                                  .row_products = row_products<T>,
                                  .weighted_rows = weighted_rows<T, T>,
                                  .maximum = maximum,
                                  .sum_exp = sum_exp,
                                  .scaled_exp = scaled_exp<T>};

}  // namespace

PointwiseLoops<float> const loops_float = table<float>;
PointwiseLoops<bfloat16> const loops_bfloat16 = table<bfloat16>;
PointwiseLoops<float16> const loops_float16 = table<float16>;

}  // namespace offstage::kernels::OFFSTAGE_SIMD
