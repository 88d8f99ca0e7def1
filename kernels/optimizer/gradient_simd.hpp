#pragma once

#include <cstddef>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace offstage::kernels {

// Parts of gradient.hpp on raw pointers and the calling thread. Defined in gradient_simd.cpp, once
// for each `simd`.

template <Simd simd, class A, class G>
void accumulate_range(A* accumulator, G const* gradient, std::size_t count);

/// to[i] = from[i], rounded.
template <Simd simd, class To, class From>
void convert_range(To* to, From const* from, std::size_t count);

/// The sum of squares of one chunk.
template <Simd simd, class G>
double chunk_norm(G const* x, std::size_t count);

}  // namespace offstage::kernels
