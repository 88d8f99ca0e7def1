#include "kernels/pointwise/rope.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void rope(Rope<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  std::int64_t const half = a.head_dim / 2;
  std::int64_t const row_length = (a.heads + 2 * a.kv_heads) * a.head_dim;
  float const sign = a.inverse ? -1.0F : 1.0F;
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const angles = (r % a.sequence) * half;
    loops.rope(a.qkv.data() + r * row_length, a.heads + a.kv_heads, half, a.cosine.data() + angles,
               a.sine.data() + angles, sign);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rope)

}  // namespace host

template <class T>
void rope(device::Stream& stream, Rope<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::rope(a);
        } else {
          host::rope(a);
        }
      },
      [&](auto* native) { cuda::rope(a, native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, rope)

}  // namespace offstage::kernels
