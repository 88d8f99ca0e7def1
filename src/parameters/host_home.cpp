#include "parameters/host_home.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "parameters/read_plan.hpp"

namespace offstage::parameters {

template <class T>
HostHome<T>::HostHome(state::ShardMap const& map, int rank, device::Device& device)
    : map_{map},
      rank_{rank},
      device_writes_{device.host_visible()},
      shard_{map.shard_elements(rank) * static_cast<Bytes>(sizeof(T))},
      pinned_{shard_.size() > 0 ? device.pin(shard_.bytes()) : nullptr} {}

template <class T>
std::span<T const> HostHome<T>::part(int layer) {
  ShardRange const range = part_of(map_, layer, rank_);
  if (readiness_ != nullptr) {
    readiness_->wait(range.begin, range.end);
  }
  return shard_.as<T>().subspan(static_cast<std::size_t>(range.begin),
                                static_cast<std::size_t>(range.end - range.begin));
}

template <class T>
void HostHome<T>::bring(int layer, Take const& take) {
  auto const all = part(layer);
  if (!all.empty()) {
    take(0, all);
  }
}

template <class T>
Target HostHome<T>::target(state::Subgroup const& subgroup) {
  require(subgroup.begin + subgroup.size <= map_.shard_elements(rank_),
          "HostHome: the subgroup is not of this shard");
  return {shard_.as<T>().subspan(static_cast<std::size_t>(subgroup.begin),
                                 static_cast<std::size_t>(subgroup.size)),
          device_writes_};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, HostHome)

}  // namespace offstage::parameters
