#include "kernels/optimizer/gradient.hpp"

#include "base/instantiate.hpp"
#include "kernels/host/simd_dispatch.hpp"
#include "kernels/optimizer/gradient_simd.hpp"
#include "kernels/optimizer/gradient_types.hpp"

namespace offstage::kernels::host {

template <class A, class G>
void accumulate(Accumulate<A, G> const& call, Simd simd) {
  require_equal_lengths(call);
  with_simd(simd, [&](auto chosen) {
    for_each_piece(call.gradient.size(), [&](std::size_t begin, std::size_t count) {
      A* const accumulator = call.accumulator.data() + begin;
      G const* const gradient = call.gradient.data() + begin;
      if (call.first) {
        convert_range<chosen()>(accumulator, gradient, count);
      } else {
        accumulate_range<chosen()>(accumulator, gradient, count);
      }
    });
  });
}

template <class G>
void chunk_norms(ChunkNorms<G> const& call, Simd simd) {
  require_one_sum_per_chunk(call);
  constexpr auto chunk = static_cast<std::size_t>(chunk_elements);
  with_simd(simd, [&](auto chosen) {
    for_each_piece(call.x.size(), [&](std::size_t begin, std::size_t count) {
      for (std::size_t at = begin; at < begin + count; at += chunk) {
        std::size_t const length = std::min(chunk, begin + count - at);
        call.sums[at / chunk] = chunk_norm<chosen()>(call.x.data() + at, length);
      }
    });
  });
}

void convert(std::span<float const> in, std::span<bfloat16> out, Simd simd) {
  accumulate<bfloat16, float>({.accumulator = out, .gradient = in, .first = true}, simd);
}

void convert(std::span<float const> in, std::span<float16> out, Simd simd) {
  accumulate<float16, float>({.accumulator = out, .gradient = in, .first = true}, simd);
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, accumulate)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, chunk_norms)

}  // namespace offstage::kernels::host
