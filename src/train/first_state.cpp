#include "train/first_state.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace offstage::train {

void make_first_state(state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                      std::uint64_t seed, state::ParameterReader* first_weights,
                      tiers::Tiers& tiers, checkpoint::OnSubgroup const& on_subgroup) {
  for (state::Subgroup const& subgroup : subgroups) {
    auto lease = tiers.create(subgroup.index);
    auto const count = static_cast<std::size_t>(subgroup.size);
    auto const state = std::span{reinterpret_cast<float*>(lease.mutable_bytes().data()), 3 * count};
    auto const parameter = state.first(count);
    std::ranges::fill(state.subspan(count), 0.0F);  // m and v
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
