#include "state/shard.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::state {

ShardMap::ShardMap(std::vector<LayerLayout> layers, int ranks, Deal deal)
    : layers_{std::move(layers)}, ranks_{ranks}, deal_{deal} {
  require(ranks >= 1, "ShardMap: at least one rank");
  for (LayerLayout const& layer : layers_) {
    if (std::ranges::find(sizes_, layer.chunks()) == sizes_.end()) {
      sizes_.push_back(layer.chunks());
    }
  }
  std::vector<std::int64_t> before(sizes_.size());
  for (LayerLayout const& layer : layers_) {
    layers_before_.insert(layers_before_.end(), before.begin(), before.end());
    ++before[static_cast<std::size_t>(std::ranges::find(sizes_, layer.chunks()) - sizes_.begin())];
  }
  layers_before_.insert(layers_before_.end(), before.begin(), before.end());
}

std::int64_t ShardMap::layer_chunks(int layer) const {
  return layers_[static_cast<std::size_t>(layer)].chunks();
}

ChunkRange ShardMap::chunks(int layer, int rank) const {
  return deal(layer_chunks(layer), rank);
}

ChunkRange ShardMap::deal(std::int64_t total, int rank) const {
  auto const first_of = [&](std::int64_t r) {
    return deal_ == Deal::equal ? std::min(total, ceil_div(total, ranks_) * r)
                                : ceil_div(total * r, ranks_);
  };
  std::int64_t const first = first_of(rank);
  return {first, first_of(rank + 1) - first};
}

int ShardMap::owner(int layer, std::int64_t chunk) const {
  std::int64_t const total = layer_chunks(layer);
  require(chunk >= 0 && chunk < total, "ShardMap: a chunk that the layer does not have");
  return static_cast<int>(deal_ == Deal::equal ? chunk / ceil_div(total, ranks_)
                                               : chunk * ranks_ / total);
}

std::int64_t ShardMap::gathered_elements(int layer) const {
  return ceil_div(layer_chunks(layer), ranks_) * ranks_ * chunk_elements;
}

std::vector<mpi::Slice> ShardMap::slices(int layer, std::int64_t element_bytes) const {
  std::vector<mpi::Slice> slices;
  Bytes const chunk_bytes = chunk_elements * element_bytes;
  for (int rank = 0; rank < ranks_; ++rank) {
    ChunkRange const range = chunks(layer, rank);
    slices.push_back({range.first * chunk_bytes, range.count * chunk_bytes});
  }
  return slices;
}

std::int64_t ShardMap::shard_elements(int rank) const {
  return shard_offset(static_cast<int>(layers_.size()), rank);
}

std::int64_t ShardMap::shard_offset(int layer, int rank) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    count += layers_before_[static_cast<std::size_t>(layer) * sizes_.size() + i] *
             deal(sizes_[i], rank).count;
  }
  return count * chunk_elements;
}

std::int64_t ShardMap::largest_layer() const {
  std::int64_t largest = 0;
  for (LayerLayout const& layer : layers_) {
    largest = std::max(largest, layer.padded_elements());
  }
  return largest;
}

std::int64_t ShardMap::largest_gathered() const {
  std::int64_t largest = 0;
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    largest = std::max(largest, gathered_elements(layer));
  }
  return largest;
}

// A slot for large layers saves memory if it and two usual slots take less than two slots with room
// for any layer.
LayerSlotSizes ShardMap::layer_slot_sizes() const {
  LayerSlotSizes sizes;
  for (int layer = 1; layer + 1 < static_cast<int>(layers_.size()); ++layer) {
    sizes.usual = std::max(sizes.usual, gathered_elements(layer));
  }
  std::int64_t const largest = largest_gathered();
  sizes.large = largest;
  constexpr int fewest = 2;
  bool const saves = sizes.usual > 0 && sizes.elements(fewest) < fewest * largest;
  return saves ? sizes : LayerSlotSizes{.usual = largest};
}

namespace {

void append_piece(Subgroup& subgroup, LayerLayout const& layer, int index, ChunkRange chunks) {
  std::int64_t const begin = subgroup.size;
  std::int64_t const end = begin + chunks.count * chunk_elements;
  std::int64_t const decayed_here = std::clamp<std::int64_t>(
      layer.decayed_elements - chunks.first * chunk_elements, 0, end - begin);
  subgroup.pieces.push_back({index, chunks, begin, decayed_here});
  subgroup.size = end;
}

std::int64_t nearest_chunks(std::int64_t elements) {
  return elements / chunk_elements + (elements % chunk_elements >= chunk_elements / 2 ? 1 : 0);
}

}  // namespace

std::vector<Subgroup> subgroups_of(ShardMap const& map, int rank, std::int64_t subgroup_elements,
                                   std::int64_t resident) {
  require(resident >= 0, "subgroups_of: a negative number of elements cannot be resident");
  std::int64_t const limit = std::max<std::int64_t>(1, subgroup_elements / chunk_elements);
  std::int64_t const all = map.shard_elements(rank) / chunk_elements;
  std::int64_t const first_resident =
      all - nearest_chunks(std::min(resident, all * chunk_elements));
  std::vector<Subgroup> subgroups;
  std::int64_t room = 0;   // chunks for which the last subgroup still has room
  std::int64_t begin = 0;  // position in the shard, in chunks
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    ChunkRange left = map.chunks(layer, rank);
    while (left.count > 0) {
      if (room == 0) {
        Subgroup& next = subgroups.emplace_back();
        next.index = std::ssize(subgroups) - 1;
        next.begin = begin * chunk_elements;
        next.resident = begin >= first_resident;
        room = next.resident ? limit : std::min(limit, first_resident - begin);
      }
      std::int64_t const taken = std::min(room, left.count);
      append_piece(subgroups.back(), map.layers()[static_cast<std::size_t>(layer)], layer,
                   {left.first, taken});
      left = {left.first + taken, left.count - taken};
      room -= taken;
      begin += taken;
    }
  }
  return subgroups;
}

}  // namespace offstage::state
