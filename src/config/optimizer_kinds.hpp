#pragma once

#include <array>

#include "kernels/optimizer/optimizer.hpp"

namespace offstage::config {

/// A value of optimizer.kind, and the keys of optimizer.* that it has beside those of all kinds.
struct OptimizerKind {
  kernels::Optimizer optimizer{};
  bool beta1{}, beta2{}, momentum{}, eps{};
};

constexpr std::array optimizer_kinds{
    OptimizerKind{kernels::Optimizer::adamw, true, true, false, true},
    OptimizerKind{kernels::Optimizer::adam, true, true, false, true},
    OptimizerKind{kernels::Optimizer::adagrad, false, false, false, true},
    OptimizerKind{kernels::Optimizer::rmsprop, false, true, true, true},
    OptimizerKind{kernels::Optimizer::sgd, false, false, true, false},
    OptimizerKind{kernels::Optimizer::lion, true, true, false, false},
};

}  // namespace offstage::config
