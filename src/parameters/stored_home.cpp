#include "parameters/stored_home.hpp"

#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"

namespace offstage::parameters {

template <class T>
StoredHome<T>::StoredHome(state::ShardMap const& map, int rank,
                          std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                          int ahead, bool device_writes)
    : map_{map},
      rank_{rank},
      subgroups_{subgroups},
      tiers_{tiers},
      device_writes_{device_writes},
      reader_{tiers, ahead, [this](tiers::Key key) { wait_until_ready(key); }} {}

template <class T>
void StoredHome<T>::set_readiness(state::Readiness* readiness) {
  std::scoped_lock const lock{mutex_};
  readiness_ = readiness;
}

template <class T>
void StoredHome<T>::wait_until_ready(tiers::Key key) {
  state::Readiness* readiness{};
  {
    std::scoped_lock const lock{mutex_};
    readiness = readiness_;
  }
  if (readiness != nullptr) {
    auto const& subgroup = subgroups_[static_cast<std::size_t>(key)];
    readiness->wait(subgroup.begin, subgroup.begin + subgroup.size);
  }
}

template <class T>
void StoredHome<T>::expect(std::span<int const> layers) {
  std::vector<ShardRange> ranges;
  ranges.reserve(layers.size());
  for (int const layer : layers) {
    ranges.push_back(part_of(map_, layer, rank_));
  }
  auto plan = plan_reads(ranges, subgroups_);
  std::vector<tiers::Key> keys;
  {
    std::scoped_lock const lock{mutex_};
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (ReadPiece const& piece : plan[i]) {
        if (piece.fetches) {
          keys.push_back(piece.key);
        }
      }
      parts_.push_back({layers[i], std::move(plan[i])});
    }
  }
  reader_.expect(keys);
}

template <class T>
void StoredHome<T>::bring(int layer, Take const& take) {
  Part part;
  {
    std::scoped_lock const lock{mutex_};
    require(!parts_.empty() && parts_.front().layer == layer,
            "StoredHome: another layer is expected");
    part = std::move(parts_.front());
    parts_.pop_front();
  }
  for (ReadPiece const& piece : part.pieces) {
    auto const bytes = reader_.front();
    std::span const extent{reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
    take(piece.in_range, extent.subspan(static_cast<std::size_t>(piece.in_extent),
                                        static_cast<std::size_t>(piece.elements)));
    if (piece.ends) {
      reader_.pop();
    }
  }
}

template <class T>
Target StoredHome<T>::target(state::Subgroup const& subgroup) {
  tiers::Lease lease = tiers_.create(subgroup.index);
  auto const bytes = lease.mutable_bytes();
  std::span const elements{reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  return {elements, device_writes_, std::move(lease)};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, StoredHome)

}  // namespace offstage::parameters
