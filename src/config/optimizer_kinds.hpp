#pragma once

#include <algorithm>
#include <array>

#include "kernels/optimizer/optimizer.hpp"

namespace offstage::config {

/// A value of optimizer.kind, the keys of optimizer.* that it has beside those of all kinds, and
/// its defaults. Decay that is part of the gradient (L2) is none by default, as elsewhere: 0.1
/// suits decoupled decay alone.
struct OptimizerKind {
  kernels::Optimizer optimizer{};
  bool beta1{}, beta2{}, momentum{}, eps{};
  char const* default_beta2{};
  char const* default_decay{};
};

constexpr std::array optimizer_kinds{
    OptimizerKind{kernels::Optimizer::adamw, true, true, false, true, "0.95", "0.1"},
    OptimizerKind{kernels::Optimizer::adam, true, true, false, true, "0.95", "0"},
    OptimizerKind{kernels::Optimizer::adagrad, false, false, false, true, "0.95", "0"},
    OptimizerKind{kernels::Optimizer::rmsprop, false, true, true, true, "0.99", "0"},
    OptimizerKind{kernels::Optimizer::sgd, false, false, true, false, "0.95", "0"},
    OptimizerKind{kernels::Optimizer::lion, true, true, false, false, "0.99", "0.1"},
};

[[nodiscard]] inline OptimizerKind const& kind_of(kernels::Optimizer optimizer) {
  return *std::ranges::find(optimizer_kinds, optimizer, &OptimizerKind::optimizer);
}

}  // namespace offstage::config
