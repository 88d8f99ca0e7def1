#pragma once

#include <gtest/gtest.h>

#include "base/dtype.hpp"

namespace offstage::kernels {

/// A typed test suite's parameter.
template <class AccumulatorType, class GradientType>
struct AccumulateTypes {
  using A = AccumulatorType;
  using G = GradientType;
};
using AllAccumulateTypes =
    testing::Types<AccumulateTypes<float, float>, AccumulateTypes<float, bfloat16>,
                   AccumulateTypes<bfloat16, float>, AccumulateTypes<bfloat16, bfloat16>,
                   AccumulateTypes<float, float16>, AccumulateTypes<float16, float>,
                   AccumulateTypes<float16, float16>>;

using AllElements = testing::Types<float, bfloat16, float16>;

}  // namespace offstage::kernels
