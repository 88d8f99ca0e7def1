#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/instantiate.hpp"
#include "kernels/attention/calls.cuh"
#include "kernels/cuda/elements.cuh"
#include "platform/cuda/gpus.hpp"

// Attention as tiles.cuh has it, in FP32 from shared memory: for float, whose purpose is checks,
// and for heads that tensor cores do not get. A block is a square of threads: one score each, and a
// row's columns of results.
namespace offstage::kernels::cuda {
namespace {

constexpr int side = 16;
constexpr int threads = side * side;
constexpr int most_columns = static_cast<int>(largest_simple_width) / side;  // of a thread

/// Floats from a row to the next in shared memory; odd, so that equal columns lie in different
/// banks.
__host__ __device__ constexpr int pitch_of(int width) {
  return width | 1;
}
constexpr int square_pitch = side + 1;
constexpr int square = side * square_pitch;

constexpr std::size_t shared_bytes(int tiles, int squares, int width) {
  return sizeof(float) *
         (static_cast<std::size_t>(tiles) * side * static_cast<std::size_t>(pitch_of(width)) +
          static_cast<std::size_t>(squares) * square);
}
static_assert(shared_bytes(4, 2, static_cast<int>(largest_simple_width)) <=
              offstage::cuda::least_shared_bytes);

/// A thread's place in its block, whose square has the positions from `first` on as rows.
struct Place {
  int width, sequence, first, row, column;

  __device__ Place(AttentionHeads const& at, int tile)
      : width{at.width},
        sequence{at.sequence},
        first{tile * side},
        row{static_cast<int>(threadIdx.x) / side},
        column{static_cast<int>(threadIdx.x) % side} {}

  [[nodiscard]] __device__ int position() const { return first + row; }
  [[nodiscard]] __device__ bool is_there() const { return position() < sequence; }

  /// The block's tiles in shared memory, and the thread's row of the first square behind so many of
  /// them.
  [[nodiscard]] __device__ float* tile(int index) const {
    return reinterpret_cast<float*>(shared_memory()) + index * side * pitch_of(width);
  }
  [[nodiscard]] __device__ float* row_behind(int tiles) const {
    return tile(tiles) + row * square_pitch;
  }
  [[nodiscard]] __device__ float const* own_row(float const* tile) const {
    return tile + row * pitch_of(width);
  }
  /// Of the thread's row of `a` and the row of `b` that its column stands for.
  [[nodiscard]] __device__ float dot(float const* a, float const* b) const {
    float const* const own = own_row(a);
    float const* const other = b + column * pitch_of(width);
    float sum = 0;
    for (int c = 0; c < width; ++c) {
      sum = __fmaf_rn(own[c], other[c], sum);
    }
    return sum;
  }

  /// All threads load a tile of the rows of `from` from position `begin` on, widened; zeros stand
  /// where the sequence ends.
  template <class T>
  __device__ void load(float* tile, T const* from, std::int64_t stride, int begin) const {
    for (int i = static_cast<int>(threadIdx.x); i < side * width; i += threads) {
      int const r = i / width;
      int const c = i % width;
      tile[r * pitch_of(width) + c] =
          r < sequence - begin ? device_load(from[(begin + r) * stride + c]) : 0.0F;
    }
  }
};

/// sums += weights (side) times the rows of a tile, in the columns place.column, place.column +
/// side and so on.
__device__ inline void add_rows(float (&sums)[most_columns], float const* weights,
                                float const* tile, Place const& place) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    int const c = place.column + i * side;
    if (c < place.width) {
      for (int k = 0; k < side; ++k) {
        sums[i] = __fmaf_rn(weights[k], tile[k * pitch_of(place.width) + c], sums[i]);
      }
    }
  }
}

template <class T>
__device__ void store_row(T* to, float const (&sums)[most_columns], float factor,
                          Place const& place) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    int const c = place.column + i * side;
    if (c < place.width) {
      device_store(to[c], device_canonical(factor * sums[i]));
    }
  }
}

template <class T>
__global__ __launch_bounds__(threads) void simple_forward_kernel(ForwardCall<T> const call,
                                                                 int tiles) {
  auto const task = query_task(call.at, 0, call.units, tiles);
  Place const place{call.at, task.tile};
  auto const stride = call.at.qkv_stride;
  T const* const keys_begin = call.qkv + call.at.key(task.b, task.kv_head);
  float* const queries = place.tile(0);
  float* const keys = place.tile(1);
  float* const values = place.tile(2);
  float* const own_scores = place.row_behind(3);
  place.load(queries, call.qkv + call.at.query(task.b, task.head), stride, place.first);
  float largest = -INFINITY;
  float total = 0;
  float sums[most_columns] = {};
  for (int key = call.at.first_key(task.b, place.first) / side * side; key <= place.first;
       key += side) {
    __syncthreads();
    place.load(keys, keys_begin, stride, key);
    place.load(values, keys_begin + call.at.to_values(), stride, key);
    __syncthreads();
    float const score = call.at.scale * place.dot(queries, keys);
    own_scores[place.column] =
        call.at.sees(task.b, place.position(), key + place.column) ? score : -INFINITY;
    __syncthreads();
    float weights[side];
    float shift = largest;
    for (int k = 0; k < side; ++k) {
      weights[k] = own_scores[k];
      shift = fmaxf(shift, weights[k]);
    }
    // A row that has seen no key yet has weights of zero.
    float const base = shift > -INFINITY ? shift : 0;
    float const factor = expf(largest - base);
    largest = shift;
    total *= factor;
    for (int k = 0; k < side; ++k) {
      weights[k] = expf(weights[k] - base);
      total += weights[k];
    }
#pragma unroll
    for (int i = 0; i < most_columns; ++i) {
      sums[i] *= factor;
    }
    add_rows(sums, weights, values, place);
  }
  if (place.is_there()) {
    store_row(call.out + call.at.out(task.b, task.head) + place.position() * call.at.out_stride,
              sums, 1 / total, place);
    if (place.column == 0) {
      call.log_sum_exp[call.at.row(task.b, task.head) + place.position()] = largest + logf(total);
    }
  }
}

/// dQ of 16 queries; leaves delta behind.
template <class T>
__global__ __launch_bounds__(threads) void simple_d_query_kernel(BackwardCall<T> const call,
                                                                 int tiles) {
  auto const task = query_task(call.at, call.first_unit, call.units, tiles);
  Place const place{call.at, task.tile};
  auto const stride = call.at.qkv_stride;
  auto const out_stride = call.at.out_stride;
  T const* const keys_begin = call.qkv + call.at.key(task.b, task.kv_head);
  std::int64_t const query_offset = call.at.query(task.b, task.head);
  std::int64_t const out_offset = call.at.out(task.b, task.head);
  float* const queries = place.tile(0);
  float* const d_outs = place.tile(1);
  float* const keys = place.tile(2);
  float* const values = place.tile(3);
  float* const own_changes = place.row_behind(4);
  place.load(queries, call.qkv + query_offset, stride, place.first);
  place.load(d_outs, call.d_out + out_offset, out_stride, place.first);
  place.load(keys, call.out + out_offset, out_stride, place.first);
  __syncthreads();
  own_changes[place.column] = 0;
  for (int c = place.column; c < place.width; c += side) {
    own_changes[place.column] =
        __fmaf_rn(place.own_row(d_outs)[c], place.own_row(keys)[c], own_changes[place.column]);
  }
  __syncthreads();
  float delta = 0;
  for (int k = 0; k < side; ++k) {
    delta += own_changes[k];
  }
  if (place.is_there() && place.column == 0) {
    call.delta[std::int64_t{task.local} * place.sequence + place.position()] = delta;
  }
  float const log_sum_exp =
      place.is_there() ? call.log_sum_exp[call.at.row(task.b, task.head) + place.position()] : 0.0F;
  float sums[most_columns] = {};
  for (int key = call.at.first_key(task.b, place.first) / side * side; key <= place.first;
       key += side) {
    __syncthreads();
    place.load(keys, keys_begin, stride, key);
    place.load(values, keys_begin + call.at.to_values(), stride, key);
    __syncthreads();
    float const score = call.at.scale * place.dot(queries, keys);
    float const d_weight = place.dot(d_outs, values);
    float const change = expf(score - log_sum_exp) * (d_weight - delta);
    own_changes[place.column] =
        call.at.sees(task.b, place.position(), key + place.column) ? change : 0.0F;
    __syncthreads();
    add_rows(sums, own_changes, keys, place);
  }
  if (place.is_there()) {
    store_row(call.d_qkv + query_offset + place.position() * stride, sums, call.at.scale, place);
  }
}

/// dK and dV of 16 keys.
template <class T>
__global__ __launch_bounds__(threads) void simple_d_key_kernel(BackwardCall<T> const call) {
  auto const task = key_task(call.at, call.first_unit, call.units, 1);
  Place const place{call.at, task.tile};
  auto const stride = call.at.qkv_stride;
  std::int64_t const key_offset = call.at.key(task.b, task.kv_head);
  std::int64_t const value_offset = key_offset + call.at.to_values();
  float* const keys = place.tile(0);
  float* const values = place.tile(1);
  float* const queries = place.tile(2);
  float* const d_outs = place.tile(3);
  float* const own_weights = place.row_behind(4);
  float* const own_changes = own_weights + square;
  place.load(keys, call.qkv + key_offset, stride, place.first);
  place.load(values, call.qkv + value_offset, stride, place.first);
  int const end = call.at.end_of_queries(task.b, place.first + side - 1);
  float d_keys[most_columns] = {};
  float d_values[most_columns] = {};
  for (int member = 0; member < call.at.group; ++member) {
    int const head = task.head + member;
    T const* const queries_begin = call.qkv + call.at.query(task.b, head);
    T const* const d_out_begin = call.d_out + call.at.out(task.b, head);
    for (int query = place.first; query < end; query += side) {
      __syncthreads();
      place.load(queries, queries_begin, stride, query);
      place.load(d_outs, d_out_begin, call.at.out_stride, query);
      __syncthreads();
      int const position = query + place.column;
      float weight = 0;
      float change = 0;
      if (position < place.sequence && call.at.sees(task.b, position, place.position())) {
        float const score = call.at.scale * place.dot(keys, queries);
        float const d_weight = place.dot(values, d_outs);
        weight = expf(score - call.log_sum_exp[call.at.row(task.b, head) + position]);
        change =
            weight *
            (d_weight - call.delta[std::int64_t{task.local + member} * place.sequence + position]);
      }
      own_weights[place.column] = weight;
      own_changes[place.column] = change;
      __syncthreads();
      add_rows(d_values, own_weights, d_outs, place);
      add_rows(d_keys, own_changes, queries, place);
    }
  }
  if (place.is_there()) {
    std::int64_t const own_offset = place.position() * stride;
    store_row(call.d_qkv + key_offset + own_offset, d_keys, call.at.scale, place);
    store_row(call.d_qkv + value_offset + own_offset, d_values, 1, place);
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

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, simple_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, simple_backward)

}  // namespace offstage::kernels::cuda
