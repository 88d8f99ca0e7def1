#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/calls.cuh"
#include "kernels/attention/layout.hpp"

namespace offstage::kernels::cuda {

dim3 attention_blocks(std::int64_t heads, std::int64_t tiles) {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  require(tiles <= most / heads, "attention: more tiles of all heads than blocks of a launch");
  return dim3{static_cast<unsigned>(heads * tiles)};
}

namespace {

/// Kernels count positions and heads of all sequences and a row's elements as int, also somewhat
/// past the end.
AttentionHeads heads_of(AttentionShape const& shape, AttentionDocuments const& documents) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() / 2;
  require(shape.sequence <= most, "attention: the sequence is too long for a GPU");
  require(shape.heads + 2 * shape.kv_heads <= most / shape.head_dim,
          "attention: too many heads for a GPU");
  require(shape.batch <= most / std::max(shape.heads, shape.sequence),
          "attention: too many sequences for a GPU");
  AttentionLayout const layout{shape};
  return {.qkv_stride = layout.qkv_stride(),
          .out_stride = layout.out_stride(),
          .sequence = static_cast<int>(shape.sequence),
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .group = static_cast<int>(layout.group()),
          .width = static_cast<int>(shape.head_dim),
          .reach = static_cast<int>(shape.reach()),
          .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
          .begins = documents.begins.empty() ? nullptr : documents.begins.data(),
          .ends = documents.ends.empty() ? nullptr : documents.ends.data()};
}

/// Whether tensor cores can have it, which take 16 bytes at a time.
template <class T, class... Pointers>
bool by_tiles(AttentionShape const& shape, Pointers const*... pointers) {
  return attention_has_tiles<T>(shape) &&
         ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

void require_simple_width(AttentionShape const& shape) {
  require(shape.head_dim <= largest_simple_width,
          "attention: on a GPU head_dim can be 256 at most; use device.kind=host, or more heads");
}

}  // namespace

template <class T>
void attention_forward(AttentionForward<T> const& in, CUstream_st* stream) {
  static_cast<void>(AttentionLayout::checked(in));
  require_simple_width(in.shape);
  if (in.qkv.empty()) {
    return;
  }
  ForwardCall<T> const call{.at = heads_of(in.shape, in.documents),
                            .units = static_cast<int>(in.shape.batch * in.shape.kv_heads),
                            .qkv = in.qkv.data(),
                            .out = in.out.data(),
                            .log_sum_exp = in.log_sum_exp.data()};
  if constexpr (!std::is_same_v<T, float>) {
    if (by_tiles<T>(in.shape, call.qkv, call.out)) {
      return forward_by_tiles(call, stream);
    }
  }
  simple_forward(call, stream);
}

template <class T>
void attention_backward(AttentionBackward<T> const& in, std::span<std::byte> scratch,
                        CUstream_st* stream, AttentionChoices const& choices) {
  auto const layout = AttentionLayout::checked(in);
  std::int64_t const parts = choices.parts == 0 ? attention_parts<T>(in.shape) : choices.parts;
  require(parts > 0 && layout.group() % parts == 0,
          "attention: parts that do not divide a key-value head's query heads");
  require_simple_width(in.shape);
  if (in.qkv.empty()) {
    return;
  }
  std::int64_t const units = in.shape.batch * in.shape.kv_heads;
  std::int64_t const room =
      std::min(units, std::ssize(scratch) / attention_scratch(in.shape, parts));
  require(room > 0, "attention: less scratch memory than attention_scratch() says");
  require(reinterpret_cast<std::uintptr_t>(scratch.data()) % 16 == 0,
          "attention: scratch memory that is not aligned to 16 bytes");
  // Each time takes equally many, so that none has too few to keep the GPU busy.
  std::int64_t const times = (units + room - 1) / room;
  std::int64_t const units_at_once = (units + times - 1) / times;
  auto* const sums = reinterpret_cast<float*>(scratch.data());
  BackwardCall<T> call{
      .at = heads_of(in.shape, in.documents),
      .first_unit = 0,
      .units = 0,
      .qkv = in.qkv.data(),
      .out = in.out.data(),
      .d_out = in.d_out.data(),
      .log_sum_exp = in.log_sum_exp.data(),
      .d_qkv = in.d_qkv.data(),
      .parts = static_cast<int>(parts),
      .sums = sums,
      .delta = sums +
               (parts > 1 ? units_at_once * parts * 2 * in.shape.sequence * in.shape.head_dim : 0)};
  std::size_t const most_shared =
      choices.most_shared > 0 ? choices.most_shared : most_shared_bytes();
  for (std::int64_t first = 0; first < units; first += units_at_once) {
    call.first_unit = static_cast<int>(first);
    call.units = static_cast<int>(std::min(units_at_once, units - first));
    if constexpr (!std::is_same_v<T, float>) {
      if (by_tiles<T>(in.shape, call.qkv, call.out, call.d_out, call.d_qkv)) {
        d_queries_by_tiles(call, most_shared, stream);
        d_keys_by_tiles(call, most_shared, stream);
        continue;
      }
    }
    simple_backward(call, stream);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_backward)

}  // namespace offstage::kernels::cuda
