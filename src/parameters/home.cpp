#include "parameters/home.hpp"

#include <algorithm>
#include <cmath>

namespace offstage::parameters {
namespace {

constexpr Bytes least_slots = 2;
constexpr Bytes most_slots = 4;
constexpr std::int64_t least_extents = 2;
constexpr std::int64_t most_extents = 8;

}  // namespace

int layer_slots(DepthDemand const& demand) {
  Bytes const fit = (demand.free - demand.large) / std::max<Bytes>(1, demand.layer);
  return static_cast<int>(std::clamp(fit, least_slots, most_slots));
}

int host_extents(DepthDemand const& demand) {
  double const ratio =
      demand.link > 0.0 && demand.storage > 0.0 ? demand.link / demand.storage : 1.0;
  auto const by_ratio =
      static_cast<std::int64_t>(std::ceil(std::min(ratio, static_cast<double>(most_extents))));
  std::int64_t const read = std::max(demand.paths, by_ratio);
  return static_cast<int>(std::clamp(1 + read, least_extents, most_extents));
}

}  // namespace offstage::parameters
