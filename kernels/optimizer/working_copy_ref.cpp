#include "kernels/optimizer/working_copy.hpp"

#include "base/error.hpp"
#include "kernels/optimizer/canonical.hpp"
#include "kernels/optimizer/rounding.hpp"

namespace offstage::kernels::ref {

void round_parameters(std::span<float const> parameters, std::span<bfloat16> copy) {
  require(parameters.size() == copy.size(), "working copy: views differ in length");
  for (std::size_t i = 0; i < copy.size(); ++i) {
    copy[i] = upper_half(canonical(parameters[i]));
  }
}

void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy) {
  require(parameters.size() == low.size(), "working copy: views differ in length");
  round_parameters(parameters, copy);
  for (std::size_t i = 0; i < low.size(); ++i) {
    low[i] = lower_half(canonical(parameters[i]));
  }
}

void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters) {
  require(parameters.size() == copy.size() && parameters.size() == low.size(),
          "working copy: views differ in length");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] = join(copy[i], low[i]);
  }
}

}  // namespace offstage::kernels::ref
