#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer/gradient_types.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer/optimizer_call.hpp"

namespace offstage::kernels {

void optimize(device::Stream& stream, StateLayout const& layout, OptimizerPart const& part,
              OptimizerStep const& step) {
  static_cast<void>(call_of(layout, part, step));  // checks them
  launch_on<float>(
      stream, [layout, part, step] { host::optimize(layout, part, step); },
      [&](auto* native) { cuda::optimize(layout, part, step, native); },
      {.updates = part.elements});
}

template <class A, class G>
void accumulate(device::Stream& stream, Accumulate<A, G> const& call) {
  require_equal_lengths(call);
  launch_on<A>(
      stream, [call] { host::accumulate(call); },
      [&](auto* native) { cuda::accumulate(call, native); });
}

template <class G>
void chunk_norms(device::Stream& stream, ChunkNorms<G> const& call) {
  require_one_sum_per_chunk(call);
  launch_on<G>(
      stream, [call] { host::chunk_norms(call); },
      [&](auto* native) { cuda::chunk_norms(call, native); });
}

void convert(device::Stream& stream, std::span<float const> in, std::span<bfloat16> out) {
  accumulate<bfloat16, float>(stream, {.accumulator = out, .gradient = in, .first = true});
}

void convert(device::Stream& stream, std::span<float const> in, std::span<float16> out) {
  accumulate<float16, float>(stream, {.accumulator = out, .gradient = in, .first = true});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, accumulate)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, chunk_norms)

}  // namespace offstage::kernels
