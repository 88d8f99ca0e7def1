#include "kernels/optimizer/optimizer_simd.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "kernels/host/simd_half.hpp"
#include "kernels/optimizer/canonical.hpp"

namespace offstage::kernels {
namespace {

// A block of elements stays in the level-1 cache while it is widened to FP32, stepped, rounded and
// written. Loops are plain C++, which the compiler vectorises, over arrays that do not overlap;
// builtins because <cmath>'s functions are inline ones of a shared header.

constexpr std::size_t block = 256;
static_assert(block == scale_block);

struct alignas(64) Floats {
  float at[block];
};

/// A block's numbers in FP32: in place where memory has them so.
struct Views {
  float* p;
  float* m;
  float* v;
  float const* g;
};

/// Returns whether any p is NaN, as an integer: a bool would keep the compiler from vectorising.
/// Where m or v is NaN, p is.
template <Rule rule>
[[gnu::always_inline]] inline std::uint32_t step(Views const& views, std::size_t count,
                                                 Coefficients const& c) {
  float* __restrict__ const ps = views.p;
  float* __restrict__ const ms = views.m;
  float* __restrict__ const vs = views.v;
  float const* __restrict__ const gs = views.g;
  std::uint32_t any_nan = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float p = ps[i];
    float g = gs[i] * c.gradient_scale;
    if constexpr (rule != Rule::adamw && rule != Rule::lion) {
      g = __builtin_fmaf(c.l2, p, g);
    }
    if constexpr (rule == Rule::adamw || rule == Rule::adam) {
      float const m = kept(__builtin_fmaf(c.beta1, ms[i], c.one_minus_beta1 * g));
      float const v = kept(__builtin_fmaf(c.beta2, vs[i], (c.one_minus_beta2 * g) * g));
      float const d = __builtin_fmaf(__builtin_sqrtf(v), c.inverse_sqrt_correction2, c.epsilon);
      p = __builtin_fmaf(-c.step_size, m / d, rule == Rule::adamw ? p * c.decay : p);
      ms[i] = m;
      vs[i] = v;
    } else if constexpr (rule == Rule::adagrad) {
      float const v = kept(__builtin_fmaf(g, g, vs[i]));
      p = __builtin_fmaf(-c.step_size, g / (__builtin_sqrtf(v) + c.epsilon), p);
      vs[i] = v;
    } else if constexpr (rule == Rule::rmsprop || rule == Rule::rmsprop_momentum) {
      float const v = kept(__builtin_fmaf(c.beta2, vs[i], (c.one_minus_beta2 * g) * g));
      float u = g / (__builtin_sqrtf(v) + c.epsilon);
      if constexpr (rule == Rule::rmsprop_momentum) {
        u = kept(__builtin_fmaf(c.momentum, ms[i], u));
        ms[i] = u;
      }
      p = __builtin_fmaf(-c.step_size, u, p);
      vs[i] = v;
    } else if constexpr (rule == Rule::sgd) {
      p = __builtin_fmaf(-c.step_size, g, p);
    } else if constexpr (rule == Rule::sgd_momentum) {
      float const m = kept(__builtin_fmaf(c.momentum, ms[i], g));
      p = __builtin_fmaf(-c.step_size, m, p);
      ms[i] = m;
    } else {
      float const towards = __builtin_fmaf(c.beta1, ms[i], c.one_minus_beta1 * g);
      // One with the sign, or what has none: zero and NaN.
      float const one = float_of_bits((bits_of_float(towards) & 0x80000000U) | 0x3F800000U);
      bool const has_sign = towards < 0.0F || towards > 0.0F;
      p = __builtin_fmaf(-c.step_size, has_sign ? one : towards, p * c.decay);
      ms[i] = kept(__builtin_fmaf(c.beta2, ms[i], c.one_minus_beta2 * g));
    }
    ps[i] = p;
    any_nan |= p != p ? 1U : 0U;
  }
  return any_nan;
}

/// The block's first elements decay, the others do not.
template <Rule rule>
std::uint32_t step_block(Views const& views, std::size_t count, OptimizerCall const& call) {
  std::size_t const decayed = call.decayed < count ? call.decayed : count;
  if (decayed == 0 || decayed == count) {
    return step<rule>(views, count, decayed == 0 ? call.not_decayed : call.decayed_by);
  }
  Views const rest{views.p + decayed, views.m + decayed, views.v + decayed, views.g + decayed};
  return step<rule>(views, decayed, call.decayed_by) |
         step<rule>(rest, count - decayed, call.not_decayed);
}

std::uint32_t step_block(Views const& views, std::size_t count, OptimizerCall const& call) {
  switch (call.rule) {
    case Rule::adamw:
      return step_block<Rule::adamw>(views, count, call);
    case Rule::adam:
      return step_block<Rule::adam>(views, count, call);
    case Rule::adagrad:
      return step_block<Rule::adagrad>(views, count, call);
    case Rule::rmsprop:
      return step_block<Rule::rmsprop>(views, count, call);
    case Rule::rmsprop_momentum:
      return step_block<Rule::rmsprop_momentum>(views, count, call);
    case Rule::sgd:
      return step_block<Rule::sgd>(views, count, call);
    case Rule::sgd_momentum:
      return step_block<Rule::sgd_momentum>(views, count, call);
    case Rule::lion:
      return step_block<Rule::lion>(views, count, call);
  }
  return 0;
}

void canonicalise(float* x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = canonical(x[i]);
  }
}

void widen_bf16(void const* from, float* __restrict__ to, std::size_t count) {
  auto const* const numbers = static_cast<std::uint16_t const*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = float_of_bits(std::uint32_t{numbers[i]} << 16);
  }
}

/// A block's gradient as floats, in `room` if it is not.
float const* read_gradient(OptimizerCall const& call, std::size_t begin, std::size_t count,
                           float* room) {
  switch (call.gradient_type) {
    case DType::bf16:
      widen_bf16(call.gradient + 2 * begin, room, count);
      return room;
    case DType::fp16:
      widen_half(reinterpret_cast<float16 const*>(call.gradient) + begin, room, count);
      return room;
    case DType::fp32:
      break;
  }
  return reinterpret_cast<float const*>(call.gradient) + begin;
}

float* read_parameter(OptimizerCall const& call, std::size_t begin, std::size_t count,
                      float* __restrict__ room) {
  if (!call.split) {
    return reinterpret_cast<float*>(call.parameter) + begin;
  }
  auto const* const lower = reinterpret_cast<std::uint16_t const*>(call.parameter) + begin;
  auto const* const upper = reinterpret_cast<bfloat16 const*>(call.working_copy) + begin;
  for (std::size_t i = 0; i < count; ++i) {
    room[i] = join(upper[i], lower[i]);
  }
  return room;
}

void write_lower_half(OptimizerCall const& call, std::size_t begin, std::size_t count,
                      float const* __restrict__ p) {
  auto* const lower = reinterpret_cast<std::uint16_t*>(call.parameter) + begin;
  for (std::size_t i = 0; i < count; ++i) {
    lower[i] = lower_half(p[i]);
  }
}

#if defined(__x86_64__)
/// Writes past the caches: nobody reads the working copy while it would still be there, and a plain
/// store would read its line first. Of a split parameter the line is there already.
void stream(void const* from, std::byte* to, std::size_t bytes) {
  if (bytes % sizeof(__m128i) != 0 || reinterpret_cast<std::size_t>(to) % sizeof(__m128i) != 0) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  auto const* const vectors = static_cast<__m128i const*>(from);
  auto* const lines = reinterpret_cast<__m128i*>(to);
  for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i) {
    _mm_stream_si128(lines + i, _mm_loadu_si128(vectors + i));
  }
}

/// Who learns that this is done must see the streamed lines too.
void end_streams() {
  _mm_sfence();
}
#else
/// A core that writes whole lines one after another reads none of them first.
void stream(void const* from, std::byte* to, std::size_t bytes) {
  __builtin_memcpy(to, from, bytes);
}

void end_streams() {}
#endif

void write_working_copy(OptimizerCall const& call, std::size_t begin, std::size_t count,
                        float const* __restrict__ p) {
  if (call.working_copy_type == DType::fp32) {
    stream(p, call.working_copy + 4 * begin, 4 * count);
    return;
  }
  alignas(64) std::uint16_t rounded[block];
  if (call.working_copy_type == DType::bf16) {
    for (std::size_t i = 0; i < count; ++i) {
      rounded[i] = upper_half(p[i]).bits;
    }
  } else {
    narrow_half(p, reinterpret_cast<float16*>(rounded), count);
  }
  stream(rounded, call.working_copy + 2 * begin, 2 * count);
}

std::uint32_t largest_magnitude(float const* x, std::size_t count) {
  std::int32_t largest = 0;  // signed: every instruction set compares these
  for (std::size_t i = 0; i < count; ++i) {
    auto const magnitude = static_cast<std::int32_t>(bits_of_float(x[i]) & 0x7FFFFFFFU);
    largest = largest < magnitude ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

/// Each moment has its own codes.
struct Momentum {
  static float read8(std::uint8_t code, float scale) { return momentum_of(code, scale); }
};
struct Variance {
  static float read8(std::uint8_t code, float scale) { return variance_of(code, scale); }
};

/// A moment's block as floats, in `room` if it is not, or if the rule does not keep it and nobody
/// reads it.
template <class Which>
float* read_moment(Moments moments, std::byte* from, float const* scales, std::size_t begin,
                   std::size_t count, float* __restrict__ room) {
  if (from == nullptr) {
    return room;
  }
  if (moments == Moments::fp32) {
    return reinterpret_cast<float*>(from) + begin;
  }
  if (moments == Moments::bf16) {
    widen_bf16(from + 2 * begin, room, count);
    return room;
  }
  auto const* const codes = reinterpret_cast<std::uint8_t const*>(from) + begin;
  float const scale = scales[begin / block];
  for (std::size_t i = 0; i < block; ++i) {
    room[i] = Which::read8(codes[i], scale);
  }
  return room;
}

/// Null if the rule does not keep it.
template <class T>
T* values_from(std::byte* values, std::size_t begin) {
  return values == nullptr ? nullptr : reinterpret_cast<T*>(values) + begin;
}

// Both moments of an element share a random word, so that one loop rounds them.

template <bool has_m, bool has_v>
void write_bf16(OptimizerCall const& call, BlockKey key, Views const& views, std::size_t begin,
                std::size_t count) {
  float const* __restrict__ const m = views.m;
  float const* __restrict__ const v = views.v;
  std::uint16_t* __restrict__ const to_m = values_from<std::uint16_t>(call.momentum, begin);
  std::uint16_t* __restrict__ const to_v = values_from<std::uint16_t>(call.variance, begin);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t const random = random_word(key, i);
    if constexpr (has_m) {
      to_m[i] = round_momentum16(m[i], random);
    }
    if constexpr (has_v) {
      to_v[i] = round_variance16(v[i], random);
    }
  }
}

/// Stores a block's scale. The codes beside one that is NaN are zero.
BlockScale write_scale(float const* x, CodeFormat format, float* to) {
  BlockScale const scale = scale_of(largest_magnitude(x, block), format);
  *to = scale.scale;
  return scale;
}
void zero_if_nan(BlockScale const& scale, std::uint8_t* codes) {
  if (scale.scale != scale.scale) {
    __builtin_memset(codes, 0, block);
  }
}

template <bool has_m, bool has_v>
void write_codes(OptimizerCall const& call, BlockKey key, Views const& views, std::size_t begin) {
  BlockScale of_m{}, of_v{};
  if constexpr (has_m) {
    of_m = write_scale(views.m, momentum_codes, call.momentum_scale + begin / block);
  }
  if constexpr (has_v) {
    of_v = write_scale(views.v, variance_codes, call.variance_scale + begin / block);
  }
  float const* __restrict__ const m = views.m;
  float const* __restrict__ const v = views.v;
  std::uint8_t* __restrict__ const to_m = values_from<std::uint8_t>(call.momentum, begin);
  std::uint8_t* __restrict__ const to_v = values_from<std::uint8_t>(call.variance, begin);
  for (std::uint32_t i = 0; i < block; ++i) {
    std::uint32_t const random = random_word(key, i);
    if constexpr (has_m) {
      to_m[i] = round_momentum8(m[i], of_m.inverse, random);
    }
    if constexpr (has_v) {
      to_v[i] = round_variance8(v[i], of_v.inverse, random);
    }
  }
  zero_if_nan(of_m, to_m);
  zero_if_nan(of_v, to_v);
}

template <bool has_m, bool has_v>
void write_moments(OptimizerCall const& call, BlockKey key, Views const& views, std::size_t begin,
                   std::size_t count) {
  if (call.moments == Moments::bf16) {
    write_bf16<has_m, has_v>(call, key, views, begin, count);
  } else {
    write_codes<has_m, has_v>(call, key, views, begin);
  }
}
void write_moments(OptimizerCall const& call, BlockKey key, Views const& views, std::size_t begin,
                   std::size_t count) {
  if (call.variance == nullptr) {
    write_moments<true, false>(call, key, views, begin, count);
  } else if (call.momentum == nullptr) {
    write_moments<false, true>(call, key, views, begin, count);
  } else {
    write_moments<true, true>(call, key, views, begin, count);
  }
}

}  // namespace

template <>
void optimize_range<Simd::OFFSTAGE_SIMD>(OptimizerCall const& given, BlockKey const* keys) {
  OptimizerCall call = given;  // a copy, which no store below can change
  Floats p_room, m_room, v_room, g_room;
  for (std::size_t begin = 0; begin < given.count; begin += block) {
    std::size_t const count = given.count - begin < block ? given.count - begin : block;
    Views const views{.p = read_parameter(call, begin, count, p_room.at),
                      .m = read_moment<Momentum>(call.moments, call.momentum, call.momentum_scale,
                                                 begin, count, m_room.at),
                      .v = read_moment<Variance>(call.moments, call.variance, call.variance_scale,
                                                 begin, count, v_room.at),
                      .g = read_gradient(call, begin, count, g_room.at)};
    call.decayed = given.decayed < begin ? 0 : given.decayed - begin;
    if (step_block(views, count, call) != 0) {
      canonicalise(views.p, count);
      if (call.momentum != nullptr) {
        canonicalise(views.m, count);
      }
      if (call.variance != nullptr) {
        canonicalise(views.v, count);
      }
    }
    write_working_copy(call, begin, count, views.p);
    if (call.split) {
      write_lower_half(call, begin, count, views.p);
    }
    if (call.moments != Moments::fp32) {
      write_moments(call, keys[begin / block], views, begin, count);
    }
  }
  end_streams();
}

}  // namespace offstage::kernels
