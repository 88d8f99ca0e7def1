#include "kernels/optimizer/gradient.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/optimizer/canonical.hpp"
#include "kernels/optimizer/gradient_types.hpp"

namespace offstage::kernels {

template <class A, class G>
void require_equal_lengths(Accumulate<A, G> const& call) {
  require(call.accumulator.size() == call.gradient.size(), "accumulate: views differ in length");
}

template <class G>
void require_one_sum_per_chunk(ChunkNorms<G> const& call) {
  constexpr auto chunk = static_cast<std::size_t>(chunk_elements);
  require(call.sums.size() == (call.x.size() + chunk - 1) / chunk,
          "chunk_norms: needs one sum per started chunk");
}

namespace ref {
namespace {

template <class G>
double sum_of_squares(std::span<G const> chunk) {
  std::array<double, 16> lanes{};
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    double const x = load(chunk[i]);
    lanes[i % lanes.size()] += x * x;
  }
  double sum = 0.0;
  for (double const lane : lanes) {
    sum += lane;
  }
  return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
}

}  // namespace

template <class A, class G>
void accumulate(Accumulate<A, G> const& call) {
  require_equal_lengths(call);
  for (std::size_t i = 0; i < call.gradient.size(); ++i) {
    float const g = load(call.gradient[i]);
    call.accumulator[i] = store_canonical<A>(call.first ? g : load(call.accumulator[i]) + g);
  }
}

template <class G>
void chunk_norms(ChunkNorms<G> const& call) {
  require_one_sum_per_chunk(call);
  constexpr auto chunk = static_cast<std::size_t>(chunk_elements);
  for (std::size_t c = 0; c < call.sums.size(); ++c) {
    auto const rest = call.x.subspan(c * chunk);
    call.sums[c] = sum_of_squares(rest.first(std::min(chunk, rest.size())));
  }
}

void convert(std::span<float const> in, std::span<bfloat16> out) {
  require(in.size() == out.size(), "convert: views differ in length");
  std::ranges::transform(in, out.begin(), to_bf16);
}

void convert(std::span<float const> in, std::span<float16> out) {
  require(in.size() == out.size(), "convert: views differ in length");
  std::ranges::transform(in, out.begin(), to_fp16);
}

}  // namespace ref

OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, require_equal_lengths)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, require_one_sum_per_chunk)
OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, ref::accumulate)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, ref::chunk_norms)

}  // namespace offstage::kernels
