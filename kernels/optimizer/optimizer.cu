#include "kernels/optimizer/optimizer.hpp"

#include "kernels/cuda/packs.cuh"
#include "kernels/optimizer/optimizer_call.hpp"
#include "kernels/optimizer/rounding.hpp"

namespace offstage::kernels::cuda {
namespace {

// A warp takes a block of 256 elements, each lane two packs of four, so that a warp's accesses have
// no gaps and the largest of the block is found by shuffles. Calls as most runs make them
// (usual_bytes) have kernels of their own, in which all reads of a block are queued before the
// first number is looked at. For the rest, types of numbers are asked for at run time, alike for
// all threads: a kernel for each combination would take minutes to compile.

constexpr int pack_elements = 4;
constexpr int lane_packs = 2;
constexpr std::size_t elements_per_block = 256;
static_assert(elements_per_block == scale_block &&
              elements_per_block == std::size_t{warp_threads} * pack_elements * lane_packs);

/// Four elements as memory has them: of 4 bytes a word each, of 2 bytes two in a word, of 1 byte
/// four.
using Raw = uint4;

__device__ std::uint32_t word_of(Raw const& raw, int index) {
  return index == 0 ? raw.x : index == 1 ? raw.y : index == 2 ? raw.z : raw.w;
}

/// Fewer than four, or where packs are not aligned.
__device__ __noinline__ Raw read_slowly(std::byte const* from, int bytes, int valid) {
  std::uint32_t words[pack_elements] = {};
#pragma unroll
  for (int k = 0; k < pack_elements; ++k) {
    if (k < valid) {
      if (bytes == 4) {
        words[k] = reinterpret_cast<std::uint32_t const*>(from)[k];
      } else if (bytes == 2) {
        words[k / 2] |= std::uint32_t{reinterpret_cast<std::uint16_t const*>(from)[k]}
                        << (16 * (k % 2));
      } else {
        words[0] |= std::uint32_t{reinterpret_cast<std::uint8_t const*>(from)[k]} << (8 * k);
      }
    }
  }
  return {words[0], words[1], words[2], words[3]};
}
__device__ __noinline__ void write_slowly(std::byte* to, int bytes, int valid, Raw const raw) {
#pragma unroll
  for (int k = 0; k < pack_elements; ++k) {
    if (k < valid) {
      if (bytes == 4) {
        reinterpret_cast<std::uint32_t*>(to)[k] = word_of(raw, k);
      } else if (bytes == 2) {
        reinterpret_cast<std::uint16_t*>(to)[k] =
            static_cast<std::uint16_t>(word_of(raw, k / 2) >> (16 * (k % 2)));
      } else {
        reinterpret_cast<std::uint8_t*>(to)[k] = static_cast<std::uint8_t>(raw.x >> (8 * k));
      }
    }
  }
}

/// Elements of a pack that exist.
struct Valid {
  int count;
  bool wide;  ///< all four, and aligned
};

/// `bytes`: of an element.
__device__ Raw read_raw(std::byte const* array, std::size_t first, int bytes, Valid valid) {
  std::byte const* const from = array + first * static_cast<std::size_t>(bytes);
  if (!valid.wide) {
    return read_slowly(from, bytes, valid.count);
  }
  if (bytes == 4) {
    return read_in_order<uint4>(from);
  }
  if (bytes == 2) {
    auto const two = read_in_order<uint2>(from);
    return {two.x, two.y, 0, 0};
  }
  return {*reinterpret_cast<std::uint32_t const*>(from), 0, 0, 0};
}
__device__ void write_raw(std::byte* array, std::size_t first, int bytes, Valid valid,
                          Raw const& raw) {
  std::byte* const to = array + first * static_cast<std::size_t>(bytes);
  if (!valid.wide) {
    write_slowly(to, bytes, valid.count, raw);
  } else if (bytes == 4) {
    *reinterpret_cast<uint4*>(to) = raw;
  } else if (bytes == 2) {
    *reinterpret_cast<uint2*>(to) = {raw.x, raw.y};
  } else {
    *reinterpret_cast<std::uint32_t*>(to) = raw.x;
  }
}

__device__ std::uint16_t half_of(Raw const& raw, int k) {
  return static_cast<std::uint16_t>(word_of(raw, k / 2) >> (16 * (k % 2)));
}
__device__ std::uint8_t byte_of(Raw const& raw, int k) {
  return static_cast<std::uint8_t>(raw.x >> (8 * k));
}

__device__ Raw pack_words(std::uint32_t const (&x)[pack_elements]) {
  return {x[0], x[1], x[2], x[3]};
}
__device__ Raw pack_halves(std::uint32_t const (&x)[pack_elements]) {
  return {x[0] | x[1] << 16, x[2] | x[3] << 16, 0, 0};
}
__device__ Raw pack_bytes(std::uint32_t const (&x)[pack_elements]) {
  return {x[0] | x[1] << 8 | x[2] << 16 | x[3] << 24, 0, 0, 0};
}

__device__ float number_of(Raw const& raw, int k, DType type) {
  if (type == DType::bf16) {
    return device_load(bfloat16{half_of(raw, k)});
  }
  if (type == DType::fp16) {
    return device_load(float16{half_of(raw, k)});
  }
  return __uint_as_float(word_of(raw, k));
}

__device__ int size_of(DType type) {
  return type == DType::fp32 ? 4 : 2;
}
__device__ int size_of(Moments moments) {
  return moments == Moments::fp32 ? 4 : moments == Moments::bf16 ? 2 : 1;
}

/// key_of(): ten rounds of Philox.
__device__ BlockKey device_key(OptimizerCall const& c, std::size_t block) {
  std::uint64_t const key = c.seed ^ rounding_stream;
  std::uint64_t const stream = (c.layer << 40U) ^ c.step;
  std::uint64_t const counter = c.first_block + block;
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t x[4] = {
      static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xD2511F53U} * x[0];
    std::uint64_t const b = std::uint64_t{0xCD9E8D57U} * x[2];
    x[0] = static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ k0;
    x[1] = static_cast<std::uint32_t>(b);
    x[2] = static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ k1;
    x[3] = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {x[0], x[1]};
}

/// The step of stepped() in optimizer_ref.cpp. The _rn intrinsics forbid the compiler's own
/// contraction: same bits as the host.
template <Rule rule>
__device__ void step(float& p, float& m, float& v, float gradient, bool decays,
                     OptimizerCall const& call) {
  Coefficients const& c = call.decayed_by;
  float const decay = decays ? c.decay : call.not_decayed.decay;
  float g = __fmul_rn(gradient, c.gradient_scale);
  if constexpr (rule != Rule::adamw && rule != Rule::lion) {
    g = __fmaf_rn(decays ? c.l2 : call.not_decayed.l2, p, g);
  }
  if constexpr (rule == Rule::adamw || rule == Rule::adam) {
    m = kept(__fmaf_rn(c.beta1, m, __fmul_rn(c.one_minus_beta1, g)));
    v = kept(__fmaf_rn(c.beta2, v, __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g)));
    float const d = __fmaf_rn(__fsqrt_rn(v), c.inverse_sqrt_correction2, c.epsilon);
    float const decayed = rule == Rule::adamw ? __fmul_rn(p, decay) : p;
    p = __fmaf_rn(-c.step_size, __fdiv_rn(m, d), decayed);
  } else if constexpr (rule == Rule::adagrad) {
    v = kept(__fmaf_rn(g, g, v));
    p = __fmaf_rn(-c.step_size, __fdiv_rn(g, __fadd_rn(__fsqrt_rn(v), c.epsilon)), p);
  } else if constexpr (rule == Rule::rmsprop || rule == Rule::rmsprop_momentum) {
    v = kept(__fmaf_rn(c.beta2, v, __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g)));
    float u = __fdiv_rn(g, __fadd_rn(__fsqrt_rn(v), c.epsilon));
    if constexpr (rule == Rule::rmsprop_momentum) {
      u = kept(__fmaf_rn(c.momentum, m, u));
      m = u;
    }
    p = __fmaf_rn(-c.step_size, u, p);
  } else if constexpr (rule == Rule::sgd) {
    p = __fmaf_rn(-c.step_size, g, p);
  } else if constexpr (rule == Rule::sgd_momentum) {
    m = kept(__fmaf_rn(c.momentum, m, g));
    p = __fmaf_rn(-c.step_size, m, p);
  } else {
    float const towards = __fmaf_rn(c.beta1, m, __fmul_rn(c.one_minus_beta1, g));
    float const sign = towards > 0.0F ? 1.0F : towards < 0.0F ? -1.0F : towards;
    p = __fmaf_rn(-c.step_size, sign, __fmul_rn(p, decay));
    m = kept(__fmaf_rn(c.beta2, m, __fmul_rn(c.one_minus_beta2, g)));
  }
  p = device_canonical(p);
  m = device_canonical(m);
  v = device_canonical(v);
}

/// The largest magnitude of a warp's numbers, as bits.
__device__ std::uint32_t largest_of(float const (&x)[lane_packs][pack_elements]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int h = 0; h < lane_packs; ++h) {
#pragma unroll
    for (int k = 0; k < pack_elements; ++k) {
      largest = max(largest, __float_as_uint(x[h][k]) & 0x7FFFFFFFU);
    }
  }
#pragma unroll
  for (int other = warp_threads / 2; other > 0; other /= 2) {
    largest = max(largest, __shfl_xor_sync(whole_warp, largest, other));
  }
  return largest;
}

/// Each moment has its own codes and its own rounding.
struct Momentum {
  static constexpr CodeFormat format = momentum_codes;
  static __device__ float read8(std::uint8_t code, float scale) { return momentum_of(code, scale); }
  static __device__ std::uint32_t write16(float x, std::uint32_t random) {
    return round_momentum16(x, random);
  }
  static __device__ std::uint32_t write8(float x, float inverse, std::uint32_t random) {
    return round_momentum8(x, inverse, random);
  }
};
struct Variance {
  static constexpr CodeFormat format = variance_codes;
  static __device__ float read8(std::uint8_t code, float scale) { return variance_of(code, scale); }
  static __device__ std::uint32_t write16(float x, std::uint32_t random) {
    return round_variance16(x, random);
  }
  static __device__ std::uint32_t write8(float x, float inverse, std::uint32_t random) {
    return round_variance8(x, inverse, random);
  }
};

template <class Which>
__device__ float moment_of(Raw const& raw, int k, Moments moments, float scale) {
  if (moments == Moments::int8) {
    return Which::read8(byte_of(raw, k), scale);
  }
  return number_of(raw, k, moments == Moments::bf16 ? DType::bf16 : DType::fp32);
}

/// Where a lane's packs are in the arrays.
struct Place {
  std::size_t block;
  std::size_t first[lane_packs];
  Valid valid[lane_packs];
};

template <class Which>
__device__ void write_moment(std::byte* to, float* scale, Moments moments, Place const& place,
                             float const (&x)[lane_packs][pack_elements],
                             std::uint32_t const (&random)[lane_packs][pack_elements]) {
  BlockScale of_block{};
  if (moments == Moments::int8) {
    of_block = scale_of(largest_of(x), Which::format);
    if (threadIdx.x % warp_threads == 0) {
      scale[place.block] = of_block.scale;
    }
  }
#pragma unroll
  for (int h = 0; h < lane_packs; ++h) {
    std::uint32_t codes[pack_elements];
    Raw raw;
    if (moments == Moments::fp32) {
#pragma unroll
      for (int k = 0; k < pack_elements; ++k) {
        codes[k] = __float_as_uint(x[h][k]);
      }
      raw = pack_words(codes);
    } else if (moments == Moments::bf16) {
#pragma unroll
      for (int k = 0; k < pack_elements; ++k) {
        codes[k] = Which::write16(x[h][k], random[h][k]);
      }
      raw = pack_halves(codes);
    } else {
#pragma unroll
      for (int k = 0; k < pack_elements; ++k) {
        // Codes beside a scale that is NaN are zero.
        codes[k] = of_block.scale == of_block.scale
                       ? Which::write8(x[h][k], of_block.inverse, random[h][k])
                       : 0U;
      }
      raw = pack_bytes(codes);
    }
    write_raw(to, place.first[h], size_of(moments), place.valid[h], raw);
  }
}

__device__ void write_parameter(OptimizerCall const& c, Place const& place,
                                float const (&p)[lane_packs][pack_elements]) {
#pragma unroll
  for (int h = 0; h < lane_packs; ++h) {
    std::uint32_t words[pack_elements], halves[pack_elements], lower[pack_elements];
#pragma unroll
    for (int k = 0; k < pack_elements; ++k) {
      words[k] = __float_as_uint(p[h][k]);
      lower[k] = lower_half(p[h][k]);
      if (c.working_copy_type == DType::fp16) {
        float16 half;
        device_store(half, p[h][k]);
        halves[k] = half.bits;
      } else {
        halves[k] = upper_half(p[h][k]).bits;
      }
    }
    write_raw(c.working_copy, place.first[h], size_of(c.working_copy_type), place.valid[h],
              c.working_copy_type == DType::fp32 ? pack_words(words) : pack_halves(halves));
    write_raw(c.parameter, place.first[h], c.split ? 2 : 4, place.valid[h],
              c.split ? pack_halves(lower) : pack_words(words));
  }
}

template <Rule rule>
constexpr bool has_momentum = keeps_momentum(rule);
template <Rule rule>
constexpr bool has_variance = keeps_variance(rule);

template <Rule rule>
__device__ void step_block(OptimizerCall const& c, Place const& place) {
  Raw upper[lane_packs]{}, parameter[lane_packs], momentum[lane_packs]{}, variance[lane_packs]{},
      gradient[lane_packs];
  float momentum_scale = 0.0F;
  float variance_scale = 0.0F;
#pragma unroll
  for (int h = 0; h < lane_packs; ++h) {
    std::size_t const first = place.first[h];
    Valid const valid = place.valid[h];
    gradient[h] = read_raw(c.gradient, first, size_of(c.gradient_type), valid);
    parameter[h] = read_raw(c.parameter, first, c.split ? 2 : 4, valid);
    if (c.split) {
      upper[h] = read_raw(c.working_copy, first, 2, valid);
    }
    if constexpr (has_momentum<rule>) {
      momentum[h] = read_raw(c.momentum, first, size_of(c.moments), valid);
    }
    if constexpr (has_variance<rule>) {
      variance[h] = read_raw(c.variance, first, size_of(c.moments), valid);
    }
  }
  if (c.moments == Moments::int8) {
    if constexpr (has_momentum<rule>) {
      momentum_scale = c.momentum_scale[place.block];
    }
    if constexpr (has_variance<rule>) {
      variance_scale = c.variance_scale[place.block];
    }
    __syncwarp();  // before one lane writes the new ones
  }
  float p[lane_packs][pack_elements], m[lane_packs][pack_elements], v[lane_packs][pack_elements];
#pragma unroll
  for (int h = 0; h < lane_packs; ++h) {
#pragma unroll
    for (int k = 0; k < pack_elements; ++k) {
      p[h][k] = c.split ? join({half_of(upper[h], k)}, half_of(parameter[h], k))
                        : __uint_as_float(word_of(parameter[h], k));
      m[h][k] = moment_of<Momentum>(momentum[h], k, c.moments, momentum_scale);
      v[h][k] = moment_of<Variance>(variance[h], k, c.moments, variance_scale);
      step<rule>(p[h][k], m[h][k], v[h][k], number_of(gradient[h], k, c.gradient_type),
                 place.first[h] + static_cast<unsigned>(k) < c.decayed, c);
    }
  }
  write_parameter(c, place, p);
  std::uint32_t random[lane_packs][pack_elements] = {};
  if (c.moments != Moments::fp32) {
    BlockKey const key = device_key(c, place.block);
#pragma unroll
    for (int h = 0; h < lane_packs; ++h) {
#pragma unroll
      for (int k = 0; k < pack_elements; ++k) {
        random[h][k] =
            random_word(key, static_cast<std::uint32_t>(place.first[h] % elements_per_block) +
                                 static_cast<std::uint32_t>(k));
      }
    }
  }
  if constexpr (has_momentum<rule>) {
    write_moment<Momentum>(c.momentum, c.momentum_scale, c.moments, place, m, random);
  }
  if constexpr (has_variance<rule>) {
    write_moment<Variance>(c.variance, c.variance_scale, c.moments, place, v, random);
  }
}

/// Any call; the other values of usual_bytes() have a kernel of their own.
constexpr int not_usual = 0;
/// Bytes of a gradient's element, 2 or 4, if the call has what most runs have: a parameter that is
/// not split, a working copy of 16 bits, aligned arrays of whole blocks.
int usual_bytes(OptimizerCall const& call, bool aligned) {
  bool const is_usual = !call.split && call.working_copy_type != DType::fp32 && aligned &&
                        call.count % elements_per_block == 0;
  return is_usual ? static_cast<int>(bytes_of(call.gradient_type)) : not_usual;
}
__device__ DType of_16_bits(DType type) {
  return type == DType::fp16 ? DType::fp16 : DType::bf16;
}
/// The same call, of which the compiler knows the width of every access.
template <int usual, Moments moments>
__device__ OptimizerCall with_known_widths(OptimizerCall call) {
  if constexpr (usual != not_usual) {
    call.moments = moments;
    call.split = false;
    call.working_copy_type = of_16_bits(call.working_copy_type);
    call.gradient_type = usual == 4 ? DType::fp32 : of_16_bits(call.gradient_type);
  }
  return call;
}

/// `usual`: usual_bytes(); `moments`: the call's, if it is usual.
template <Rule rule, int usual, Moments moments = Moments::fp32>
__global__ __launch_bounds__(block_size) void optimize_kernel(OptimizerCall const call,
                                                              bool const aligned) {
  OptimizerCall const c = with_known_widths<usual, moments>(call);
  constexpr std::size_t warps_per_block = block_size / warp_threads;
  unsigned const lane = threadIdx.x % warp_threads;
  std::size_t const warps = std::size_t{gridDim.x} * warps_per_block;
  std::size_t const warp = blockIdx.x * warps_per_block + threadIdx.x / warp_threads;
  for (std::size_t block = warp; block * elements_per_block < c.count; block += warps) {
    Place place{.block = block};
#pragma unroll
    for (int h = 0; h < lane_packs; ++h) {
      std::size_t const first = block * elements_per_block +
                                (static_cast<unsigned>(h) * warp_threads + lane) * pack_elements;
      std::size_t const left = first < c.count ? c.count - first : 0;
      place.first[h] = first;
      place.valid[h] = usual != not_usual
                           ? Valid{pack_elements, true}
                           : Valid{static_cast<int>(min(left, std::size_t{pack_elements})),
                                   aligned && left >= pack_elements};
    }
    step_block<rule>(c, place);
  }
}

/// Rules whose moments of fewer bits have kernels of their own.
template <Rule rule>
constexpr bool has_narrow_kernels = rule == Rule::adamw || rule == Rule::lion;

using Kernel = void (*)(OptimizerCall, bool);
template <Rule rule>
Kernel kernel_for(OptimizerCall const& call, bool aligned) {
  int const usual = usual_bytes(call, aligned);
  if (usual != not_usual && call.moments == Moments::fp32) {
    return usual == 2 ? optimize_kernel<rule, 2> : optimize_kernel<rule, 4>;
  }
  if constexpr (has_narrow_kernels<rule>) {
    if (usual == 2) {
      return call.moments == Moments::bf16 ? optimize_kernel<rule, 2, Moments::bf16>
                                           : optimize_kernel<rule, 2, Moments::int8>;
    }
  }
  return optimize_kernel<rule, not_usual>;
}

template <Rule rule>
void launch_rule(OptimizerCall const& call, bool aligned, CUstream_st* stream) {
  launch(kernel_for<rule>(call, aligned),
         {blocks_for(call.count, elements_per_block * block_size / warp_threads), block_size},
         stream, call, aligned);
}

bool is_aligned(std::byte const* array, std::size_t element_bytes) {
  return reinterpret_cast<std::uintptr_t>(array) % (pack_elements * element_bytes) == 0;
}

}  // namespace

void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step,
              CUstream_st* stream) {
  OptimizerCall const call = call_of(layout, part, step);
  if (call.count == 0) {
    return;
  }
  std::size_t const moment_bytes = call.moments == Moments::fp32   ? 4
                                   : call.moments == Moments::bf16 ? 2
                                                                   : 1;
  bool const aligned =
      is_aligned(call.parameter, call.split ? 2 : 4) && is_aligned(call.momentum, moment_bytes) &&
      is_aligned(call.variance, moment_bytes) &&
      is_aligned(call.gradient, static_cast<std::size_t>(bytes_of(call.gradient_type))) &&
      is_aligned(call.working_copy, static_cast<std::size_t>(bytes_of(call.working_copy_type)));
  switch (call.rule) {
    case Rule::adamw:
      return launch_rule<Rule::adamw>(call, aligned, stream);
    case Rule::adam:
      return launch_rule<Rule::adam>(call, aligned, stream);
    case Rule::adagrad:
      return launch_rule<Rule::adagrad>(call, aligned, stream);
    case Rule::rmsprop:
      return launch_rule<Rule::rmsprop>(call, aligned, stream);
    case Rule::rmsprop_momentum:
      return launch_rule<Rule::rmsprop_momentum>(call, aligned, stream);
    case Rule::sgd:
      return launch_rule<Rule::sgd>(call, aligned, stream);
    case Rule::sgd_momentum:
      return launch_rule<Rule::sgd_momentum>(call, aligned, stream);
    case Rule::lion:
      return launch_rule<Rule::lion>(call, aligned, stream);
  }
}

}  // namespace offstage::kernels::cuda
