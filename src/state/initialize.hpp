#pragma once

#include <cstdint>
#include <span>

#include "state/shard.hpp"

namespace offstage::state {

/// Fills chunks of a layer with the model's initial parameters, padding with zeros. An element
/// depends on the seed, the tensor's index and its place in the tensor alone, never on ranks or
/// chunks.
/// Shapes: `out` has chunks.count * chunk_elements elements.
/// Threads: OpenMP.
void initialize(LayerLayout const& layer, std::uint64_t seed, ChunkRange chunks,
                std::span<float> out);

}  // namespace offstage::state
