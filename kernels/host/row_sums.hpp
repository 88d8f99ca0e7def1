#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace offstage::kernels::host {

/// Sums over rows whose bits do not depend on the number of threads: rows are added in blocks of
/// fixed size, and the blocks in order. add(r, sums) adds row r's part to `width` sums.
template <class Add>
[[nodiscard]] std::vector<float> sum_over_rows(std::int64_t rows, std::int64_t width,
                                               Add const& add) {
  constexpr std::int64_t block_rows = 64;
  std::int64_t const blocks = (rows + block_rows - 1) / block_rows;
  std::vector<float> sums(std::max<std::int64_t>(1, blocks) * width);
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::int64_t const end = std::min(rows, (block + 1) * block_rows);
    for (std::int64_t r = block * block_rows; r < end; ++r) {
      add(r, sums.data() + block * width);
    }
  }
  for (std::int64_t block = 1; block < blocks; ++block) {
    for (std::int64_t i = 0; i < width; ++i) {
      sums[i] += sums[block * width + i];
    }
  }
  sums.resize(width);
  return sums;
}

}  // namespace offstage::kernels::host
