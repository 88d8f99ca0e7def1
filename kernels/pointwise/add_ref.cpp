#include "base/instantiate.hpp"
#include "kernels/pointwise/add.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void add(Add<T> const& a) {
  check(a);
  for (std::int64_t i = 0; i < a.rows * a.width; ++i) {
    a.sum[i] = store<T>(load(a.x[i]) + load(a.y[i]));
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, add)

}  // namespace offstage::kernels::ref
