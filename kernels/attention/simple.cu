#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/calls.cuh"
#include "kernels/cuda/elements.cuh"

// Attention as tiles.cuh has it, in FP32 from shared memory: for float, whose purpose is checks, and for
// heads that tensor cores do not get. A block is a square of threads: one score each, and a row's columns of results.
namespace offstage::kernels::cuda {
namespace {

constexpr int side = 16;
constexpr int threads = side * side;
constexpr int most_columns = static_cast<int>(largest_simple_width) / side;  // of a thread

/// Floats from a row to the next in shared memory; odd, so that equal columns lie in different banks.
__host__ __device__ constexpr int pitch_of(int width) {
  return width | 1;
}
constexpr int square_pitch = side + 1;
constexpr int square = side * square_pitch;

std::size_t shared_bytes(int tiles, int squares, int width) {
  return sizeof(float) *
         (static_cast<std::size_t>(tiles) * side * static_cast<std::size_t>(pitch_of(width)) +
          static_cast<std::size_t>(squares) * square);
}

/// Of all threads: `there` of a tile's rows, widened, and zeros for the others.
template <class T>
__device__ void load_tile(float* tile, T const* from, std::int64_t stride, int there, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < side * width; i += threads) {
    int const row = i / width;
    int const column = i % width;
    tile[row * pitch_of(width) + column] =
        row < there ? device_load(from[row * stride + column]) : 0.0F;
  }
}

__device__ inline float dot(float const* a, float const* b, int width) {
  float sum = 0;
  for (int c = 0; c < width; ++c) {
    sum = __fmaf_rn(a[c], b[c], sum);
  }
  return sum;
}

/// sums += weights (side) times the rows of a tile, in the columns `column`, column + side and so on.
__device__ inline void add_rows(float (&sums)[most_columns], float const* weights,
                                float const* tile, int column, int width) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    int const c = column + i * side;
    if (c < width) {
      for (int k = 0; k < side; ++k) {
        sums[i] = __fmaf_rn(weights[k], tile[k * pitch_of(width) + c], sums[i]);
      }
    }
  }
}

template <class T>
__device__ void store_row(T* to, float const (&sums)[most_columns], float factor, int column,
                          int width) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    int const c = column + i * side;
    if (c < width) {
      device_store(to[c], device_canonical(factor * sums[i]));
    }
  }
}

template <class T>
__global__ __launch_bounds__(threads) void simple_forward_kernel(ForwardCall<T> const call,
                                                                 int tiles) {
  auto const task = query_task(call.at, 0, call.units, tiles);
  auto const stride = call.at.qkv_stride;
  int const sequence = call.at.sequence;
  int const width = call.at.width;
  int const row = static_cast<int>(threadIdx.x) / side;
  int const column = static_cast<int>(threadIdx.x) % side;
  int const first = task.tile * side;
  int const own_offset = row * pitch_of(width);
  T const* const keys_begin = call.qkv + call.at.key(task.b, task.kv_head);
  auto* const queries = reinterpret_cast<float*>(shared_memory());
  float* const keys = queries + side * pitch_of(width);
  float* const values = keys + side * pitch_of(width);
  float* const scores = values + side * pitch_of(width);
  load_tile(queries, call.qkv + call.at.query(task.b, task.head) + first * stride, stride,
            sequence - first, width);
  float largest = -INFINITY;
  float total = 0;
  float sums[most_columns] = {};
  for (int key = 0; key <= first; key += side) {
    __syncthreads();
    load_tile(keys, keys_begin + key * stride, stride, sequence - key, width);
    load_tile(values, keys_begin + call.at.to_values() + key * stride, stride, sequence - key,
              width);
    __syncthreads();
    float const score =
        call.at.scale * dot(queries + own_offset, keys + column * pitch_of(width), width);
    scores[row * square_pitch + column] = key + column <= first + row ? score : -INFINITY;
    __syncthreads();
    float weights[side];
    float shift = largest;
    for (int k = 0; k < side; ++k) {
      weights[k] = scores[row * square_pitch + k];
      shift = fmaxf(shift, weights[k]);
    }
    float const factor = expf(largest - shift);
    largest = shift;
    total *= factor;
    for (int k = 0; k < side; ++k) {
      weights[k] = expf(weights[k] - shift);
      total += weights[k];
    }
#pragma unroll
    for (int i = 0; i < most_columns; ++i) {
      sums[i] *= factor;
    }
    add_rows(sums, weights, values, column, width);
  }
  int const position = first + row;
  if (position < sequence) {
    store_row(call.out + call.at.out(task.b, task.head) + position * call.at.out_stride, sums,
              1 / total, column, width);
    if (column == 0) {
      call.log_sum_exp[call.at.row(task.b, task.head) + position] = largest + logf(total);
    }
  }
}

/// dQ of 16 queries; leaves delta behind.
template <class T>
__global__ __launch_bounds__(threads) void simple_d_query_kernel(BackwardCall<T> const call,
                                                                 int tiles) {
  auto const task = query_task(call.at, call.first_unit, call.units, tiles);
  auto const stride = call.at.qkv_stride;
  auto const out_stride = call.at.out_stride;
  int const sequence = call.at.sequence;
  int const width = call.at.width;
  int const row = static_cast<int>(threadIdx.x) / side;
  int const column = static_cast<int>(threadIdx.x) % side;
  int const first = task.tile * side;
  int const position = first + row;
  bool const there = position < sequence;
  int const own_offset = row * pitch_of(width);
  T const* const keys_begin = call.qkv + call.at.key(task.b, task.kv_head);
  std::int64_t const query_offset = call.at.query(task.b, task.head) + first * stride;
  std::int64_t const out_offset = call.at.out(task.b, task.head) + first * out_stride;
  auto* const queries = reinterpret_cast<float*>(shared_memory());
  float* const d_outs = queries + side * pitch_of(width);
  float* const keys = d_outs + side * pitch_of(width);
  float* const values = keys + side * pitch_of(width);
  float* const changes = values + side * pitch_of(width);
  float* const own_changes = changes + row * square_pitch;
  load_tile(queries, call.qkv + query_offset, stride, sequence - first, width);
  load_tile(d_outs, call.d_out + out_offset, out_stride, sequence - first, width);
  load_tile(keys, call.out + out_offset, out_stride, sequence - first, width);
  __syncthreads();
  own_changes[column] = 0;
  for (int c = column; c < width; c += side) {
    own_changes[column] =
        __fmaf_rn(d_outs[own_offset + c], keys[own_offset + c], own_changes[column]);
  }
  __syncthreads();
  float delta = 0;
  for (int k = 0; k < side; ++k) {
    delta += own_changes[k];
  }
  if (there && column == 0) {
    call.delta[std::int64_t{task.local} * sequence + position] = delta;
  }
  float const log_sum_exp =
      there ? call.log_sum_exp[call.at.row(task.b, task.head) + position] : 0.0F;
  float sums[most_columns] = {};
  for (int key = 0; key <= first; key += side) {
    __syncthreads();
    load_tile(keys, keys_begin + key * stride, stride, sequence - key, width);
    load_tile(values, keys_begin + call.at.to_values() + key * stride, stride, sequence - key,
              width);
    __syncthreads();
    int const other_offset = column * pitch_of(width);
    float const score = call.at.scale * dot(queries + own_offset, keys + other_offset, width);
    float const d_weight = dot(d_outs + own_offset, values + other_offset, width);
    float const change = expf(score - log_sum_exp) * (d_weight - delta);
    own_changes[column] = key + column <= position ? change : 0.0F;
    __syncthreads();
    add_rows(sums, own_changes, keys, column, width);
  }
  if (there) {
    store_row(call.d_qkv + query_offset + row * stride, sums, call.at.scale, column, width);
  }
}

/// dK and dV of 16 keys.
template <class T>
__global__ __launch_bounds__(threads) void simple_d_key_kernel(BackwardCall<T> const call) {
  auto const task = key_task(call.at, call.first_unit, call.units);
  auto const stride = call.at.qkv_stride;
  auto const out_stride = call.at.out_stride;
  int const sequence = call.at.sequence;
  int const width = call.at.width;
  int const row = static_cast<int>(threadIdx.x) / side;
  int const column = static_cast<int>(threadIdx.x) % side;
  int const first = task.tile * side;
  int const own_offset = row * pitch_of(width);
  int const other_offset = column * pitch_of(width);
  std::int64_t const key_offset = call.at.key(task.b, task.kv_head) + first * stride;
  std::int64_t const value_offset = key_offset + call.at.to_values();
  auto* const keys = reinterpret_cast<float*>(shared_memory());
  float* const values = keys + side * pitch_of(width);
  float* const queries = values + side * pitch_of(width);
  float* const d_outs = queries + side * pitch_of(width);
  float* const own_weights = d_outs + side * pitch_of(width) + row * square_pitch;
  float* const own_changes = own_weights + square;
  load_tile(keys, call.qkv + key_offset, stride, sequence - first, width);
  load_tile(values, call.qkv + value_offset, stride, sequence - first, width);
  float d_keys[most_columns] = {};
  float d_values[most_columns] = {};
  for (int member = 0; member < call.at.group; ++member) {
    int const head = task.head + member;
    T const* const queries_begin = call.qkv + call.at.query(task.b, head);
    T const* const d_out_begin = call.d_out + call.at.out(task.b, head);
    for (int query = first; query < sequence; query += side) {
      __syncthreads();
      load_tile(queries, queries_begin + query * stride, stride, sequence - query, width);
      load_tile(d_outs, d_out_begin + query * out_stride, out_stride, sequence - query, width);
      __syncthreads();
      int const position = query + column;
      float weight = 0;
      float change = 0;
      if (position < sequence && position >= first + row) {
        float const score = call.at.scale * dot(keys + own_offset, queries + other_offset, width);
        float const d_weight = dot(values + own_offset, d_outs + other_offset, width);
        weight = expf(score - call.log_sum_exp[call.at.row(task.b, head) + position]);
        change = weight *
                 (d_weight - call.delta[std::int64_t{task.local + member} * sequence + position]);
      }
      own_weights[column] = weight;
      own_changes[column] = change;
      __syncthreads();
      add_rows(d_values, own_weights, d_outs, column, width);
      add_rows(d_keys, own_changes, queries, column, width);
    }
  }
  if (first + row < sequence) {
    store_row(call.d_qkv + key_offset + row * stride, d_keys, call.at.scale, column, width);
    store_row(call.d_qkv + value_offset + row * stride, d_values, 1, column, width);
  }
}

}  // namespace

template <class T>
void simple_forward(ForwardCall<T> const& call, CUstream_st* stream) {
  int const tiles = (call.at.sequence + side - 1) / side;
  std::int64_t const heads = std::int64_t{call.units} * call.at.group;
  launch(simple_forward_kernel<T>,
         Grid{attention_blocks(heads, tiles), threads, shared_bytes(3, 1, call.at.width)}, stream,
         call, tiles);
}

template <class T>
void simple_backward(BackwardCall<T> const& call, CUstream_st* stream) {
  int const tiles = (call.at.sequence + side - 1) / side;
  std::int64_t const heads = std::int64_t{call.units} * call.at.group;
  launch(simple_d_query_kernel<T>,
         Grid{attention_blocks(heads, tiles), threads, shared_bytes(4, 1, call.at.width)}, stream,
         call, tiles);
  launch(simple_d_key_kernel<T>,
         Grid{attention_blocks(call.units, tiles), threads, shared_bytes(4, 2, call.at.width)},
         stream, call);
}

template void simple_forward(ForwardCall<float> const&, CUstream_st*);
template void simple_forward(ForwardCall<bfloat16> const&, CUstream_st*);
template void simple_forward(ForwardCall<float16> const&, CUstream_st*);
template void simple_backward(BackwardCall<float> const&, CUstream_st*);
template void simple_backward(BackwardCall<bfloat16> const&, CUstream_st*);
template void simple_backward(BackwardCall<float16> const&, CUstream_st*);

}  // namespace offstage::kernels::cuda
