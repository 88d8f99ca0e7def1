#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/optimizer/gradient.hpp"

namespace offstage::update {

/// Addition of one micro-batch's gradient to a step's sums.
struct Addition {
  bool partial =
      false;  ///< it goes to the sum of its block, which has a place of its own; else to the total
  bool begins = false;  ///< the sum begins with it
  bool ends = false;    ///< the block's sum is complete then and is added to the total
  bool final = false;   ///< the total is complete then
};

/// A place for the sums of a range of elements.
template <class A>
struct SumPlaces {
  std::span<A> total;
  std::span<A> partial;  ///< the sum of a block that is not the first; empty with one level

  [[nodiscard]] SumPlaces part(std::size_t offset, std::size_t count) const {
    return {total.subspan(offset, count),
            partial.empty() ? partial : partial.subspan(offset, count)};
  }
};

/// The order in which a step's gradients are added (numerics.sum-block). With one level acc =
/// round(acc + grad_g) for g = 0, 1, ... With two, blocks of `size` consecutive micro-batches are
/// so summed, each from its first gradient on, and the total is round(total + block_k) for k = 0,
/// 1, ... The last block may be short. The order depends on global indices alone, so that whoever
/// has all of a block may sum it.
struct SumBlocks {
  std::int64_t size = 0;  ///< micro-batches of a block; 0: one level

  /// Values for each element of a place of sums.
  [[nodiscard]] int planes() const { return size > 0 ? 2 : 1; }
  /// `g`: of the step; `last`: no gradient follows in it. The first block's sum is the total's
  /// beginning.
  [[nodiscard]] Addition addition(std::int64_t g, bool last) const {
    if (size == 0) {
      return {.begins = g == 0, .final = last};
    }
    bool const partial = g >= size;
    return {.partial = partial,
            .begins = g % size == 0,
            .ends = partial && (last || (g + 1) % size == 0),
            .final = last};
  }
};

/// Adds a gradient by `accumulate`, which is called with kernels::Accumulate.
template <class A, class G, class Call>
void add_to(SumPlaces<A> const& sums, std::span<G const> gradient, Addition const& how,
            Call const& accumulate) {
  accumulate(
      kernels::Accumulate<A, G>{how.partial ? sums.partial : sums.total, gradient, how.begins});
  if (how.ends) {
    accumulate(kernels::Accumulate<A, A>{sums.total, sums.partial, false});
  }
}

}  // namespace offstage::update
