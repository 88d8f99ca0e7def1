#include "kernels/pointwise/add.hpp"

#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void add(Add<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::int64_t const row = r * a.width;
    loops.add(a.x.data() + row, a.y.data() + row, a.sum.data() + row, a.width);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, add)

}  // namespace host

template <class T>
void add(device::Stream& stream, Add<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::add(a);
        } else {
          host::add(a);
        }
      },
      [&](auto* native) { cuda::add(a, native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, add)

}  // namespace offstage::kernels
