#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "normal_values.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/trip_queue.hpp"

namespace offstage::update {

inline constexpr kernels::OptimizerStep first_step{.learning_rate = 0.01,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.95,
                                                   .epsilon = 1e-8,
                                                   .weight_decay = 0.1,
                                                   .gradient_scale = 0.5,
                                                   .step = 1,
                                                   .seed = 11};

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t stream) {
  return normal_values<T>(5, stream, count);
}

/// An optimizer, and the planes of its state.
struct Optimizer {
  kernels::OptimizerStep step;
  StateLayout layout;

  [[nodiscard]] std::string text() const {
    std::string text{kernels::name_of(step.optimizer)};
    for (Plane const& plane : layout.planes()) {
      text.append(" ").append(name_of(plane.type));
    }
    return text;
  }
};

/// Every optimizer with every kind of moments that it has.
inline std::vector<Optimizer> all_optimizers() {
  using kernels::Moments;
  using enum kernels::Optimizer;
  std::vector<Optimizer> all;
  auto const add = [&](kernels::Optimizer optimizer, double momentum) {
    for (Moments const moments : {Moments::fp32, Moments::bf16, Moments::int8}) {
      if (optimizer == sgd && momentum == 0.0 && moments != Moments::fp32) {
        continue;
      }
      kernels::OptimizerStep step = first_step;
      step.optimizer = optimizer;
      step.momentum = momentum;
      all.push_back({step, kernels::state_layout(optimizer, moments, momentum > 0.0)});
    }
  };
  for (kernels::Optimizer const optimizer : {adamw, adam, adagrad, rmsprop, sgd, lion}) {
    add(optimizer, 0.0);
  }
  add(rmsprop, 0.9);
  add(sgd, 0.9);
  return all;
}

/// A shard cut into subgroups of one to three chunks, of one or two layers, each with a decayed and
/// an undecayed part.
struct Shard {
  explicit Shard(int count, StateLayout of_state = adamw_layout()) : layout{std::move(of_state)} {
    for (int index = 0; index < count; ++index) {
      state::Subgroup subgroup;
      subgroup.index = index;
      subgroup.begin = size;
      subgroup.size = chunk_elements * (1 + index % 3);
      std::int64_t const cut = 100 + 1000 * (index % 4);
      subgroup.pieces = {{2 * index, {index, 1}, 0, cut}};
      if (subgroup.size > chunk_elements) {
        subgroup.pieces.push_back({2 * index + 1, {0, index % 3}, chunk_elements, 50 * index});
      }
      size += subgroup.size;
      subgroups.push_back(subgroup);
    }
  }
  /// Of the state.
  [[nodiscard]] std::vector<Bytes> extents() const {
    std::vector<Bytes> sizes;
    for (auto const& subgroup : subgroups) {
      sizes.push_back(layout.bytes(subgroup.size));
    }
    return sizes;
  }
  /// Of gradients: 4 or 2 bytes an element.
  [[nodiscard]] std::vector<Bytes> extents(Bytes element_bytes) const {
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

  StateLayout layout;
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

/// Random parameters, all else zero.
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

/// Its bits: of AdamW's in FP32, its numbers.
inline std::vector<float> state_of(Shard const& shard, tiers::Tiers& tiers) {
  std::vector<float> all;
  for (auto const& subgroup : shard.subgroups) {
    tiers::Lease const lease = tiers.fetch(subgroup.index);
    auto const* const values = reinterpret_cast<float const*>(lease.bytes().data());
    all.insert(all.end(), values, values + lease.bytes().size() / sizeof(float));
  }
  return all;
}

/// Codes of 8 bits are no numbers in FP32.
inline bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace offstage::update
