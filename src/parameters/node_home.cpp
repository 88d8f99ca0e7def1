#include "parameters/node_home.hpp"

#include <cstddef>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/watch.hpp"
#include "parameters/read_plan.hpp"

namespace offstage::parameters {

template <class T>
NodeHome<T>::NodeHome(state::ShardMap const& map, int rank, NodeMemory& memory,
                      device::Device& device, trace::Trace* trace)
    : map_{map},
      rank_{rank},
      memory_{memory},
      trace_{trace},
      device_writes_{device.host_visible()},
      here_(map.layers().size()),
      pinned_whole_{device.pin(memory.whole())},
      pinned_shard_{memory.shard().empty() ? nullptr : device.pin(memory.shard())} {}

template <class T>
void NodeHome<T>::begin() {
  here_.assign(here_.size(), false);
}

template <class T>
std::span<T const> NodeHome<T>::layer(int layer) {
  Waiting const waiting{"layer", layer};
  if (!here_[static_cast<std::size_t>(layer)]) {
    trace::Scope const scope{trace_, "parameters from ranks", "bring", layer};
    if (readiness_ != nullptr) {
      ShardRange const range = part_of(map_, layer, rank_);
      readiness_->wait(range.begin, range.end);
    }
    memory_.exchange(layer);
    here_[static_cast<std::size_t>(layer)] = true;
  }
  auto const bytes = memory_.layer(layer);
  return {reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
void NodeHome<T>::bring(int layer, Take const& take) {
  take(0, this->layer(layer));
}

template <class T>
std::span<T> NodeHome<T>::shard() const {
  auto const bytes = memory_.shard();
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
Target NodeHome<T>::target(state::Subgroup const& subgroup) {
  require(subgroup.begin + subgroup.size <= map_.shard_elements(rank_),
          "NodeHome: the subgroup is not of this shard");
  return {shard().subspan(static_cast<std::size_t>(subgroup.begin),
                          static_cast<std::size_t>(subgroup.size)),
          device_writes_};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, NodeHome)
OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, NodeParameters)

}  // namespace offstage::parameters
