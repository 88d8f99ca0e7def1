#pragma once

#include <memory>

#include "model/naive_gpt2.hpp"
#include "model/naive_llama.hpp"

namespace offstage::model::test {

/// The naive model with the parameters of `setup`, which must outlive it.
inline std::unique_ptr<NaiveModel> naive_of(TestModel<double> const& setup) {
  if (setup.shape.family == state::Family::gpt2) {
    return std::make_unique<NaiveGpt2>(setup.shape, setup.layers, setup.parameters);
  }
  return std::make_unique<NaiveLlama>(setup.shape, setup.layers, setup.parameters);
}

}  // namespace offstage::model::test
