#include "kernels/optimizer/working_copy.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/host/simd_dispatch.hpp"
#include "kernels/optimizer/canonical.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer/rounding.hpp"

// Integers alone, which the compiler vectorises for every CPU as fast as memory is.
namespace offstage::kernels::host {
namespace {

void require_equal(std::size_t a, std::size_t b) {
  require(a == b, "working copy: views differ in length");
}

}  // namespace

void round_parameters(std::span<float const> parameters, std::span<float> copy) {
  require_equal(parameters.size(), copy.size());
  std::ranges::copy(parameters, copy.begin());
}

void round_parameters(std::span<float const> parameters, std::span<bfloat16> copy) {
  require_equal(parameters.size(), copy.size());
  for_each_piece(copy.size(), [&](std::size_t begin, std::size_t count) {
    float const* __restrict__ const from = parameters.data() + begin;
    bfloat16* __restrict__ const to = copy.data() + begin;
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = upper_half(canonical(from[i]));
    }
  });
}

void round_parameters(std::span<float const> parameters, std::span<float16> copy) {
  convert(parameters, copy);
}

void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy) {
  require_equal(parameters.size(), low.size());
  require_equal(parameters.size(), copy.size());
  for_each_piece(low.size(), [&](std::size_t begin, std::size_t count) {
    float const* __restrict__ const from = parameters.data() + begin;
    std::uint16_t* __restrict__ const lower = low.data() + begin;
    bfloat16* __restrict__ const upper = copy.data() + begin;
    for (std::size_t i = 0; i < count; ++i) {
      float const p = canonical(from[i]);
      lower[i] = lower_half(p);
      upper[i] = upper_half(p);
    }
  });
}

void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters) {
  require_equal(parameters.size(), copy.size());
  require_equal(parameters.size(), low.size());
  for_each_piece(copy.size(), [&](std::size_t begin, std::size_t count) {
    bfloat16 const* __restrict__ const upper = copy.data() + begin;
    std::uint16_t const* __restrict__ const lower = low.data() + begin;
    float* __restrict__ const to = parameters.data() + begin;
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = join(upper[i], lower[i]);
    }
  });
}

}  // namespace offstage::kernels::host
