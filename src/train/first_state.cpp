#include "train/first_state.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace offstage::train {

void make_first_state(state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                      StateLayout const& layout, std::uint64_t seed,
                      state::ParameterReader* first_weights, tiers::Tiers& tiers,
                      checkpoint::OnSubgroup const& on_subgroup) {
  for (state::Subgroup const& subgroup : subgroups) {
    auto lease = tiers.create(subgroup.index);
    auto const count = static_cast<std::size_t>(subgroup.size);
    std::span<std::byte> const state = lease.mutable_bytes();
    std::span const parameter{reinterpret_cast<float*>(state.data()), count};
    // Moments, in whatever type, and their scales.
    std::ranges::fill(state.subspan(static_cast<std::size_t>(layout.plane_bytes(0, subgroup.size))),
                      std::byte{});
    for (state::Piece const& piece : subgroup.pieces) {
      auto const out =
          parameter.subspan(static_cast<std::size_t>(piece.offset),
                            static_cast<std::size_t>(piece.chunks.count * chunk_elements));
      if (first_weights != nullptr) {
        first_weights->read(piece.layer, piece.chunks, out);
      } else {
        state::initialize(map.layers()[static_cast<std::size_t>(piece.layer)], seed, piece.chunks,
                          out);
      }
    }
    on_subgroup(subgroup, parameter);
    lease.commit();
  }
}

}  // namespace offstage::train
