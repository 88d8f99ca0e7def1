#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"

namespace offstage {

/// The first `count` normal numbers of a stream of a generator, in a type, after `make`.
template <class T, class Make = std::identity>
std::vector<T> normal_values(std::uint64_t seed, std::uint64_t stream, std::int64_t count,
                             Make const& make = {}) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  normals(seed, stream, 0, numbers);
  std::vector<T> values;
  values.reserve(numbers.size());
  for (float const number : numbers) {
    values.push_back(store<T>(make(number)));
  }
  return values;
}

}  // namespace offstage
