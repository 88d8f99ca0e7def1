#pragma once

#include <span>
#include <vector>

#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer_support.hpp"

namespace offstage::kernels {

constexpr AdamwStep ordinary_step{.learning_rate = 1e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1,
                                  .gradient_scale = 0.125,
                                  .step = 3};

/// Owns what a step needs: `offset` guard elements, `count` elements, and guard elements behind.
template <class G, class W>
struct AdamwArrays {
  AdamwArrays(std::size_t elements, std::size_t guard, Values kind)
      : offset{guard},
        count{elements},
        parameter{make_values<float>(offset + count + 3, kind, 1)},
        momentum{make_values<float>(offset + count + 3, kind, 2)},
        variance{make_values<float>(offset + count + 3, kind, 3)},
        gradient{make_values<G>(offset + count + 3, kind, 4)},
        working_copy(offset + count + 3, store<W>(42.0F)) {
    for (float& v : variance) {
      v *= v;
    }
  }

  AdamwState<G, W> state() {
    return {.parameter = std::span{parameter}.subspan(offset, count),
            .momentum = std::span{momentum}.subspan(offset, count),
            .variance = std::span{variance}.subspan(offset, count),
            .gradient = std::span<G const>{gradient}.subspan(offset, count),
            .working_copy = std::span{working_copy}.subspan(offset, count)};
  }

  std::size_t offset;
  std::size_t count;
  std::vector<float> parameter, momentum, variance;
  std::vector<G> gradient;
  std::vector<W> working_copy;
};

template <class G, class W>
void expect_same_bits(AdamwArrays<G, W> const& got, AdamwArrays<G, W> const& expected) {
  expect_same_bits(got.parameter, expected.parameter, "parameter");
  expect_same_bits(got.momentum, expected.momentum, "momentum");
  expect_same_bits(got.variance, expected.variance, "variance");
  expect_same_bits(got.working_copy, expected.working_copy, "working copy");
}

/// A typed test suite's parameter.
template <class GradientType, class WorkingCopyType>
struct AdamwTypes {
  using G = GradientType;
  using W = WorkingCopyType;
};
using AllAdamwTypes = testing::Types<AdamwTypes<float, float>, AdamwTypes<float, bfloat16>,
                                     AdamwTypes<bfloat16, float>, AdamwTypes<bfloat16, bfloat16>,
                                     AdamwTypes<float, float16>, AdamwTypes<float16, float>,
                                     AdamwTypes<float16, float16>>;

}  // namespace offstage::kernels
