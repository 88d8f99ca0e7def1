#include "kernels/optimizer/optimizer_simd.hpp"

#include <emmintrin.h>

#include "kernels/host/simd_half.hpp"
#include "kernels/optimizer/canonical.hpp"

namespace offstage::kernels {
namespace {

// A block of elements stays in the level-1 cache while it is widened to FP32, stepped, rounded and written. Loops are plain
// C++, which the compiler vectorises, over arrays that do not overlap; builtins because <cmath>'s functions are inline ones
// of a shared header.

constexpr std::size_t block = 256;
static_assert(block == scale_block);
constexpr std::size_t prefetched = 2;  // blocks ahead

struct alignas(64) Floats {
  float at[block];
};
struct alignas(64) Words {
  std::uint32_t at[block];
};

/// A block's numbers in FP32: in place where memory has them so.
struct Views {
  float* p;
  float* m;
  float* v;
  float const* g;
};

/// Returns whether any p is NaN, as an integer: a bool would keep the compiler from vectorising. Where m or v is NaN, p
/// is.
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
      float const m = __builtin_fmaf(c.beta1, ms[i], c.one_minus_beta1 * g);
      float const v = __builtin_fmaf(c.beta2, vs[i], (c.one_minus_beta2 * g) * g);
      float const d = __builtin_fmaf(__builtin_sqrtf(v), c.inverse_sqrt_correction2, c.epsilon);
      p = __builtin_fmaf(-c.step_size, m / d, rule == Rule::adamw ? p * c.decay : p);
      ms[i] = m;
      vs[i] = v;
    } else if constexpr (rule == Rule::adagrad) {
      float const v = __builtin_fmaf(g, g, vs[i]);
      p = __builtin_fmaf(-c.step_size, g / (__builtin_sqrtf(v) + c.epsilon), p);
      vs[i] = v;
    } else if constexpr (rule == Rule::rmsprop || rule == Rule::rmsprop_momentum) {
      float const v = __builtin_fmaf(c.beta2, vs[i], (c.one_minus_beta2 * g) * g);
      float u = g / (__builtin_sqrtf(v) + c.epsilon);
      if constexpr (rule == Rule::rmsprop_momentum) {
        u = __builtin_fmaf(c.momentum, ms[i], u);
        ms[i] = u;
      }
      p = __builtin_fmaf(-c.step_size, u, p);
      vs[i] = v;
    } else if constexpr (rule == Rule::sgd) {
      p = __builtin_fmaf(-c.step_size, g, p);
    } else if constexpr (rule == Rule::sgd_momentum) {
      float const m = __builtin_fmaf(c.momentum, ms[i], g);
      p = __builtin_fmaf(-c.step_size, m, p);
      ms[i] = m;
    } else {
      float const towards = __builtin_fmaf(c.beta1, ms[i], c.one_minus_beta1 * g);
      // One with the sign, or what has none: zero and NaN.
      float const one = float_of_bits((bits_of_float(towards) & 0x80000000U) | 0x3F800000U);
      bool const has_sign = towards < 0.0F || towards > 0.0F;
      p = __builtin_fmaf(-c.step_size, has_sign ? one : towards, p * c.decay);
      ms[i] = __builtin_fmaf(c.beta2, ms[i], c.one_minus_beta2 * g);
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

void make_random(BlockKey key, std::uint32_t* __restrict__ words) {
  for (std::uint32_t i = 0; i < block; ++i) {
    words[i] = random_word(key, i);
  }
}

std::uint32_t largest_magnitude(float const* x, std::size_t count) {
  std::int32_t largest = 0;  // signed: every instruction set compares these
  for (std::size_t i = 0; i < count; ++i) {
    auto const magnitude = static_cast<std::int32_t>(bits_of_float(x[i]) & 0x7FFFFFFFU);
    largest = largest < magnitude ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

/// What the momentum and the variance differ in. The codes of a block whose scale is NaN are zero.
struct Momentum {
  static void read8(std::uint8_t const* __restrict__ codes, float scale, float* __restrict__ to) {
    for (std::size_t i = 0; i < block; ++i) {
      to[i] = momentum_of(codes[i], scale);
    }
  }
  static void write16(float const* __restrict__ from, std::uint32_t const* __restrict__ random,
                      std::uint16_t* __restrict__ to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = round_momentum16(from[i], random[i]);
    }
  }
  static void write8(float const* __restrict__ from, std::uint32_t const* __restrict__ random,
                     std::uint8_t* __restrict__ to, float* scale) {
    BlockScale const s = scale_of(largest_magnitude(from, block), momentum_codes);
    *scale = s.scale;
    if (s.scale != s.scale) {
      __builtin_memset(to, 0, block);
      return;
    }
    for (std::size_t i = 0; i < block; ++i) {
      to[i] = round_momentum8(from[i], s.inverse, random[i]);
    }
  }
};
struct Variance {
  static void read8(std::uint8_t const* __restrict__ codes, float scale, float* __restrict__ to) {
    for (std::size_t i = 0; i < block; ++i) {
      to[i] = variance_of(codes[i], scale);
    }
  }
  static void write16(float const* __restrict__ from, std::uint32_t const* __restrict__ random,
                      std::uint16_t* __restrict__ to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = round_variance16(from[i], random[i]);
    }
  }
  static void write8(float const* __restrict__ from, std::uint32_t const* __restrict__ random,
                     std::uint8_t* __restrict__ to, float* scale) {
    BlockScale const s = scale_of(largest_magnitude(from, block), variance_codes);
    *scale = s.scale;
    if (s.scale != s.scale) {
      __builtin_memset(to, 0, block);
      return;
    }
    for (std::size_t i = 0; i < block; ++i) {
      to[i] = round_variance8(from[i], s.inverse, random[i]);
    }
  }
};

/// A moment's block as floats, in `room` if it is not; null if the rule does not keep it.
template <class Which>
float* read_moment(Moments moments, std::byte* from, float const* scale, std::size_t begin,
                   std::size_t count, float* room) {
  if (from == nullptr) {
    return room;  // nobody reads it
  }
  switch (moments) {
    case Moments::bf16:
      widen_bf16(from + 2 * begin, room, count);
      return room;
    case Moments::int8:
      Which::read8(reinterpret_cast<std::uint8_t const*>(from) + begin, scale[begin / block], room);
      return room;
    case Moments::fp32:
      break;
  }
  return reinterpret_cast<float*>(from) + begin;
}

template <class Which>
void write_moment(Moments moments, std::byte* to, float* scale, std::size_t begin,
                  std::size_t count, float const* from, std::uint32_t const* random) {
  if (to == nullptr) {
    return;
  }
  if (moments == Moments::bf16) {
    Which::write16(from, random, reinterpret_cast<std::uint16_t*>(to) + begin, count);
  } else {
    Which::write8(from, random, reinterpret_cast<std::uint8_t*>(to) + begin, scale + begin / block);
  }
}

void prefetch(std::byte const* values, std::size_t bytes, std::size_t begin) {
  constexpr std::size_t line_bytes = 64;
  if (values != nullptr) {
    for (std::size_t at = 0; at < bytes * block; at += line_bytes) {
      _mm_prefetch(reinterpret_cast<char const*>(values + bytes * begin + at), _MM_HINT_T0);
    }
  }
}

/// Asks memory for a whole block that will soon be worked on: while another is computed nobody else asks.
void prefetch(OptimizerCall const& call, std::size_t begin) {
  std::size_t const moment_bytes = call.moments == Moments::fp32   ? 4
                                   : call.moments == Moments::bf16 ? 2
                                                                   : 1;
  prefetch(call.parameter, call.split ? 2 : 4, begin);
  prefetch(call.momentum, moment_bytes, begin);
  prefetch(call.variance, moment_bytes, begin);
  prefetch(call.gradient, call.gradient_type == DType::fp32 ? 4 : 2, begin);
  if (call.split) {
    prefetch(call.working_copy, 2, begin);
  }
}

}  // namespace

template <>
void optimize_range<Simd::OFFSTAGE_SIMD>(OptimizerCall const& given, BlockKey const* keys) {
  OptimizerCall call = given;  // a copy, which no store below can change
  Floats p_room, m_room, v_room, g_room;
  Words random;
  for (std::size_t begin = 0; begin < given.count; begin += block) {
    std::size_t const count = given.count - begin < block ? given.count - begin : block;
    if (begin + (prefetched + 1) * block <= given.count) {
      prefetch(call, begin + prefetched * block);
    }
    Views const views{
        .p = read_parameter(call, begin, count, p_room.at),
        .m = read_moment<Momentum>(call.moments, call.momentum, call.momentum_scale, begin, count,
                                   m_room.at),
        .v = read_moment<Variance>(call.moments, call.variance, call.variance_scale, begin, count,
                                   v_room.at),
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
      make_random(keys[begin / block], random.at);
      write_moment<Momentum>(call.moments, call.momentum, call.momentum_scale, begin, count,
                             views.m, random.at);
      write_moment<Variance>(call.moments, call.variance, call.variance_scale, begin, count,
                             views.v, random.at);
    }
  }
  _mm_sfence();  // who learns that we are done must see the streamed lines too
}

}  // namespace offstage::kernels
