#include "add.hpp"

#include <algorithm>
#include <type_traits>

#include "base/error.hpp"
#include "pointwise_loops.hpp"

namespace offstage::kernels {

namespace ref {

template <class T>
void add(Add<T> const& a) {
  require(a.x.size() == a.y.size(), "add: the views differ in length");
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    a.x[i] = store<T>(load(a.x[i]) + load(a.y[i]));
  }
}

template void add(Add<double> const&);
template void add(Add<float> const&);
template void add(Add<bfloat16> const&);

}  // namespace ref

namespace host {

template <class T>
void add(Add<T> const& a) {
  require(a.x.size() == a.y.size(), "add: the views differ in length");
  constexpr std::int64_t block = 16'384;
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  auto const count = static_cast<std::int64_t>(a.x.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; begin += block) {
    loops.add(a.x.data() + begin, a.y.data() + begin, std::min(block, count - begin));
  }
}

template void add(Add<float> const&);
template void add(Add<bfloat16> const&);

}  // namespace host

template <class T>
void add(device::Stream& stream, Add<T> const& a) {
  stream.enqueue([a] {
    if constexpr (std::is_same_v<T, double>) {
      ref::add(a);
    } else {
      host::add(a);
    }
  });
}

template void add(device::Stream&, Add<double> const&);
template void add(device::Stream&, Add<float> const&);
template void add(device::Stream&, Add<bfloat16> const&);

}  // namespace offstage::kernels
