#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/simd.hpp"

namespace offstage::kernels::host {

/// work(std::integral_constant<Simd, simd>{}): from an instruction set chosen at run time to the
/// template that was compiled for it.
template <class Work>
void with_simd(Simd simd, Work const& work) {
  require(simd <= best_simd(), "this CPU does not have the instruction set asked for");
  switch (simd) {
    case Simd::avx512:
      return work(std::integral_constant<Simd, Simd::avx512>{});
    case Simd::avx2:
      return work(std::integral_constant<Simd, Simd::avx2>{});
    case Simd::baseline:
      return work(std::integral_constant<Simd, Simd::baseline>{});
  }
}

/// Elements that one thread takes at a time: long enough for the prefetchers, short enough to share
/// out a small subgroup. Whole chunks.
constexpr std::size_t piece_elements = 16 * static_cast<std::size_t>(chunk_elements);

/// work(begin, count) for pieces of [0, total) on all threads. A single piece makes no team of
/// threads: OpenMP allocates one even for one thread, which costs more than a row of a product's
/// tile.
template <class Work>
void for_each_piece(std::size_t total, Work const& work) {
  auto const pieces = static_cast<std::int64_t>((total + piece_elements - 1) / piece_elements);
  if (pieces == 1) {
    work(std::size_t{0}, total);
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < pieces; ++i) {
    std::size_t const begin = static_cast<std::size_t>(i) * piece_elements;
    work(begin, std::min(piece_elements, total - begin));
  }
}

}  // namespace offstage::kernels::host
