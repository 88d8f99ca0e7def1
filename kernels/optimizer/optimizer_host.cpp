#include <array>

#include "kernels/host/simd_dispatch.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer/optimizer_call.hpp"
#include "kernels/optimizer/optimizer_simd.hpp"

namespace offstage::kernels::host {

void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step,
              Simd simd) {
  OptimizerCall const call = call_of(layout, part, step);
  constexpr std::size_t blocks = piece_elements / scale_block;
  with_simd(simd, [&](auto chosen) {
    for_each_piece(call.count, [&](std::size_t begin, std::size_t count) {
      OptimizerCall const piece = part_of(call, begin, count);
      std::array<BlockKey, blocks> keys{};
      if (call.moments != Moments::fp32) {
        for (std::size_t b = 0; b * scale_block < count; ++b) {
          keys[b] = key_of(piece, b);
        }
      }
      optimize_range<chosen()>(piece, keys.data());
    });
  });
}

}  // namespace offstage::kernels::host
