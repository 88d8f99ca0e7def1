#pragma once

#include <cstdint>
#include <vector>

#include "base/chunk.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/model_shape.hpp"

namespace offstage::state {

struct ChunkRange {
  std::int64_t first{};
  std::int64_t count{};
};

/// Elements of slots for whole layers. A model's first and last layer may be much larger than those
/// of its blocks. They then have one slot together, in which each waits for the other, and the
/// slots for the others are no larger than a block's larger layer.
struct LayerSlotSizes {
  std::int64_t usual{};  ///< elements of each slot for usual layers
  std::int64_t large{};  ///< elements of the slot for larger layers; 0: there are no larger layers
  /// `elements`: ShardMap::gathered_elements of a layer.
  [[nodiscard]] bool is_large(std::int64_t elements) const { return elements > usual; }
  /// Elements of `usual_slots` slots and the large one together. Without usual slots there is no
  /// large one.
  [[nodiscard]] std::int64_t elements(int usual_slots) const {
    return usual_slots > 0 ? usual_slots * usual + large : 0;
  }
};

/// The way in which a layer's C chunks are dealt to R ranks.
enum class Deal {
  equal,   ///< chunk c to rank c / ceil(C / R), so that one all-gather of equal parts is enough
  spread,  ///< chunk c to the rank r with C r / R <= c < C (r + 1) / R: older checkpoints
};

/// With Deal::equal no rank has more of any layer, and none a larger shard.
constexpr int fullest_rank = 0;

/// Tells which chunk of which layer belongs to which rank, for any number of ranks. A rank may own
/// no chunk of a layer. A rank's shard is its chunks of all layers, in layer order, without
/// padding.
class ShardMap {
 public:
  ShardMap(std::vector<LayerLayout> layers, int ranks, Deal deal = Deal::equal);

  [[nodiscard]] std::vector<LayerLayout> const& layers() const noexcept { return layers_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] ChunkRange chunks(int layer, int rank) const;
  /// The rank that a chunk of a layer belongs to.
  [[nodiscard]] int owner(int layer, std::int64_t chunk) const;
  /// Elements of a layer that is gathered in equal parts, one for each rank. Its chunks come first;
  /// the last parts are filled up with padding. For one rank it is as long as the padded layer.
  [[nodiscard]] std::int64_t gathered_elements(int layer) const;
  /// The place of each rank's part of a padded layer, in bytes, for elements of this size.
  [[nodiscard]] std::vector<mpi::Slice> slices(int layer, std::int64_t element_bytes) const;
  /// Elements of a rank's shard; a multiple of chunk_elements.
  [[nodiscard]] std::int64_t shard_elements(int rank) const;
  /// The begin of the layer's part in the rank's shard, in elements.
  [[nodiscard]] std::int64_t shard_offset(int layer, int rank) const;
  /// Elements of the largest padded layer.
  [[nodiscard]] std::int64_t largest_layer() const;
  /// Elements of the largest layer that is gathered.
  [[nodiscard]] std::int64_t largest_gathered() const;
  /// The slots of device memory in which whole layers are gathered.
  [[nodiscard]] LayerSlotSizes layer_slot_sizes() const;

 private:
  [[nodiscard]] std::int64_t layer_chunks(int layer) const;
  /// The rank's chunks of a layer of `total` chunks.
  [[nodiscard]] ChunkRange deal(std::int64_t total, int rank) const;

  std::vector<LayerLayout> layers_;
  int ranks_;
  Deal deal_;
  // Most layers of a model are alike, so a shard is added up by sizes: a plan asks for the offsets
  // of thousands of layers on each of thousands of ranks.
  std::vector<std::int64_t> sizes_;          ///< the numbers of chunks that layers have
  std::vector<std::int64_t> layers_before_;  ///< [layers + 1, sizes]: layers of a size before one
};

/// A run of one layer's chunks inside a subgroup.
struct Piece {
  int layer{};
  ChunkRange chunks;
  std::int64_t offset{};  ///< offset of its first element in the subgroup
  /// Number of its first elements to which weight decay applies; manifests do not have it.
  std::int64_t decayed{};
};

/// A contiguous range of a shard, whole chunks, updated as one piece.
struct Subgroup {
  std::int64_t index{};       ///< counts from 0 within the rank
  std::int64_t begin{};       ///< in elements of the shard
  std::int64_t size{};        ///< elements N, a multiple of chunk_elements
  bool resident = false;      ///< its state lives in device memory (update.device-resident)
  std::vector<Piece> pieces;  ///< pieces that cover [0, size) in order
};

/// Cuts a rank's shard into subgroups of `subgroup_elements`, rounded down to whole chunks and at
/// least one. The last `resident` elements of the shard (all of it if that is more), rounded to the
/// nearest chunk, are cut in the same way but apart, so that the resident part does not depend on
/// the subgroup size. Empty if the rank owns nothing.
[[nodiscard]] std::vector<Subgroup> subgroups_of(ShardMap const& map, int rank,
                                                 std::int64_t subgroup_elements,
                                                 std::int64_t resident = 0);

}  // namespace offstage::state
