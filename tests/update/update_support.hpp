#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "memory_tiers.hpp"
#include "shard_support.hpp"
#include "update/update.hpp"

namespace offstage::update {

/// A gradient of the shard, from a tier of its own as the update gets it.
template <class G>
class Gradients {
 public:
  Gradients(Shard const& shard, tiers::Tiers& tiers) : shard_{shard}, tiers_{tiers} {}

  void set(std::vector<G> const& values) {
    for (auto const& subgroup : shard_.subgroups) {
      tiers::Lease lease = tiers_.create(subgroup.index);
      std::memcpy(lease.mutable_bytes().data(), values.data() + subgroup.begin,
                  lease.bytes().size());
      lease.commit();
    }
  }
  [[nodiscard]] GradientSource source() {
    return [this](state::Subgroup const& subgroup) {
      tiers::Lease lease = tiers_.fetch(subgroup.index);
      kernels::GradientView const view = std::span{reinterpret_cast<G const*>(lease.bytes().data()),
                                                   static_cast<std::size_t>(subgroup.size)};
      return GradientLease{std::move(lease), view};
    };
  }

 private:
  Shard const& shard_;
  tiers::Tiers& tiers_;
};

/// State and working copy after a few steps. Bits, so that equal means equal.
template <class W>
struct Result {
  std::vector<float> state;
  std::vector<W> copy;
  bool operator==(Result const& other) const {
    return copy == other.copy && same_bits(state, other.state);
  }
};

/// What the reference kernel makes of so many steps, one piece after the other.
template <class G, class W>
Result<W> train_by_reference(Shard const& shard, int steps,
                             kernels::OptimizerStep step = first_step) {
  MemoryTiers tiers{shard.extents()};
  initialize(shard, tiers);
  std::vector<W> copy(static_cast<std::size_t>(shard.size));
  for (int t = 1; t <= steps; ++t) {
    auto const gradient = random_values<G>(shard.size, static_cast<std::uint64_t>(10 + t));
    step.step = t;
    for (auto const& subgroup : shard.subgroups) {
      tiers::Lease lease = tiers.fetch(subgroup.index);
      for (state::Piece const& piece : subgroup.pieces) {
        kernels::OptimizerPart part;
        for (std::size_t i = 0; i < shard.layout.size(); ++i) {
          part.planes.at(i) = lease.mutable_bytes().data() +
                              shard.layout.plane_offset(i, subgroup.size) +
                              shard.layout.plane_bytes(i, piece.offset);
        }
        auto const n = static_cast<std::size_t>(piece.chunks.count * chunk_elements);
        auto const begin = static_cast<std::size_t>(subgroup.begin + piece.offset);
        part.gradient = std::span{gradient}.subspan(begin, n);
        part.working_copy = std::span{copy}.subspan(begin, n);
        part.elements = piece.chunks.count * chunk_elements;
        part.decayed = piece.decayed;
        part.layer = static_cast<std::uint64_t>(piece.layer);
        part.first = static_cast<std::uint64_t>(piece.chunks.first * chunk_elements);
        kernels::ref::optimize(shard.layout, part, step);
      }
      lease.commit();
    }
  }
  return {state_of(shard, tiers), copy};
}

/// Makes a whole update and returns its figures.
inline UpdateStats make_update(Update& update, std::vector<Trip> trips,
                               kernels::OptimizerStep const& step) {
  update.plan(std::move(trips));
  auto const at_once = update.run(step);
  auto const later = update.finish();
  return at_once.cpu_elements + at_once.device_elements > 0 ? at_once : later;
}

template <class G, class W>
struct Types {
  using Gradient = G;
  using Copy = W;
};
using AllTypes =
    ::testing::Types<Types<float, float>, Types<float, bfloat16>, Types<bfloat16, float>,
                     Types<bfloat16, bfloat16>, Types<float, float16>, Types<float16, float>,
                     Types<float16, float16>, Types<float16, bfloat16>>;

}  // namespace offstage::update
