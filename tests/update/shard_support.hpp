#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/trip_queue.hpp"

namespace offstage::update {

inline constexpr kernels::AdamwStep first_step{0.01, 0.9, 0.95, 1e-8, 0.1, 0.5, 1};

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t stream) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = store<T>(normal(5, stream, i));
  }
  return values;
}

/// A shard cut into subgroups of one to three chunks, each with a decayed and an undecayed part.
struct Shard {
  explicit Shard(int count) {
    for (int index = 0; index < count; ++index) {
      state::Subgroup subgroup;
      subgroup.index = index;
      subgroup.begin = size;
      subgroup.size = chunk_elements * (1 + index % 3);
      std::int64_t const cut = 100 + 1000 * (index % 4);
      subgroup.decay_ranges = {{0, cut, true}, {cut, subgroup.size, false}};
      size += subgroup.size;
      subgroups.push_back(subgroup);
    }
  }
  /// 12 bytes an element hold its state; 4 or 2 its gradient.
  [[nodiscard]] std::vector<Bytes> extents(Bytes element_bytes = 12) const {
    std::vector<Bytes> sizes;
    for (auto const& subgroup : subgroups) {
      sizes.push_back(subgroup.size * element_bytes);
    }
    return sizes;
  }
  [[nodiscard]] std::vector<std::int64_t> ascending() const {
    std::vector<std::int64_t> order(subgroups.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  std::int64_t size = 0;
  std::vector<state::Subgroup> subgroups;
};

/// Every trip on the CPU.
inline std::vector<Trip> on_cpu(std::vector<std::int64_t> const& order) {
  std::vector<Trip> trips;
  for (std::int64_t const index : order) {
    trips.push_back({index, false});
  }
  return trips;
}

/// p random, m and v zero.
inline void initialize(Shard const& shard, tiers::Tiers& tiers) {
  auto const parameters = random_values<float>(shard.size, 1);
  for (auto const& subgroup : shard.subgroups) {
    tiers::Lease lease = tiers.create(subgroup.index);
    std::ranges::fill(lease.mutable_bytes(), std::byte{0});
    std::memcpy(lease.mutable_bytes().data(), parameters.data() + subgroup.begin,
                static_cast<std::size_t>(subgroup.size) * sizeof(float));
    lease.commit();
  }
}

inline std::vector<float> state_of(Shard const& shard, tiers::Tiers& tiers) {
  std::vector<float> all;
  for (auto const& subgroup : shard.subgroups) {
    tiers::Lease const lease = tiers.fetch(subgroup.index);
    auto const* const values = reinterpret_cast<float const*>(lease.bytes().data());
    all.insert(all.end(), values, values + 3 * subgroup.size);
  }
  return all;
}

}  // namespace offstage::update
