#pragma once

#include <cstdint>

namespace offstage {

/// Elements [begin, begin + count) of something contiguous.
struct Range {
  std::int64_t begin{};
  std::int64_t count{};
};

}  // namespace offstage
