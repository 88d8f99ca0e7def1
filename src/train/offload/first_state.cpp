#include "train/offload/first_state.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

namespace offstage::train {
namespace {

// Chunks that are split at a time: 4 MiB of weights.
constexpr std::int64_t batch_chunks = 256;

/// Gives the first weights of these chunks of a layer.
using Weights = std::function<void(int layer, state::ChunkRange chunks, std::span<float> out)>;

void make_whole(state::Subgroup const& subgroup, std::span<float> parameter,
                Weights const& weights) {
  for (state::Piece const& piece : subgroup.pieces) {
    weights(piece.layer, piece.chunks,
            parameter.subspan(static_cast<std::size_t>(piece.offset),
                              static_cast<std::size_t>(piece.chunks.count * chunk_elements)));
  }
}

void make_split(state::Subgroup const& subgroup, std::span<std::byte> state, Weights const& weights,
                checkpoint::SplitParameters const& split) {
  std::vector<float> batch;
  for (state::Piece const& piece : subgroup.pieces) {
    for (std::int64_t done = 0; done < piece.chunks.count; done += batch_chunks) {
      std::int64_t const count = std::min(batch_chunks, piece.chunks.count - done);
      batch.resize(static_cast<std::size_t>(count * chunk_elements));
      weights(piece.layer, {piece.chunks.first + done, count}, batch);
      split.split(subgroup, state, piece.offset + done * chunk_elements, batch);
    }
  }
}

}  // namespace

void make_first_state(state::ShardMap const& map, std::vector<state::Subgroup> const& subgroups,
                      StateLayout const& layout, std::uint64_t seed,
                      state::ParameterReader* first_weights, tiers::Tiers& tiers,
                      checkpoint::OnSubgroup const& on_subgroup,
                      checkpoint::SplitParameters const* split) {
  auto const weights = [&](int layer, state::ChunkRange chunks, std::span<float> out) {
    if (first_weights != nullptr) {
      first_weights->read(layer, chunks, out);
    } else {
      state::initialize(map.layers()[static_cast<std::size_t>(layer)], seed, chunks, out);
    }
  };
  for (state::Subgroup const& subgroup : subgroups) {
    auto lease = tiers.create(subgroup.index);
    std::span<std::byte> const state = lease.mutable_bytes();
    // Moments of any type, and their scales.
    std::ranges::fill(state.subspan(static_cast<std::size_t>(layout.plane_bytes(0, subgroup.size))),
                      std::byte{});
    if (split != nullptr) {
      make_split(subgroup, state, weights, *split);
    } else {
      std::span const parameter{reinterpret_cast<float*>(state.data()),
                                static_cast<std::size_t>(subgroup.size)};
      make_whole(subgroup, parameter, weights);
      on_subgroup(subgroup, parameter);
    }
    lease.commit();
  }
}

}  // namespace offstage::train
