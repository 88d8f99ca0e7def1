#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace offstage::model {

struct Dims;

/// Of what backward needs of a block's forward; BlockActivations has the tensors.
enum class Part : std::uint8_t {
  input,      ///< x
  qkv,        ///< qkv, which is heads where queries and keys have no norms
  attention,  ///< attn_out and its log_sum_exp; attn_product and its norm where norms come after
  mid,        ///< mid
  up,         ///< up; mlp_product and its norm where norms come after
  pointwise,  ///< attn_in, heads, mlp_in, hidden and norms' statistics: no product makes them
  count
};
constexpr std::size_t part_count = static_cast<std::size_t>(Part::count);
constexpr std::array<Part, part_count> all_parts{Part::input, Part::qkv, Part::attention,
                                                 Part::mid,   Part::up,  Part::pointwise};

/// A block's layer.
enum class BlockLayer : std::uint8_t { attention, mlp };
constexpr std::size_t block_layer_count = 2;
/// The layer whose forward makes a part that can leave, or takes it as its input.
[[nodiscard]] constexpr BlockLayer layer_of(Part part) {
  return part == Part::mid || part == Part::up ? BlockLayer::mlp : BlockLayer::attention;
}

/// What becomes of a part between forward and backward. It changes times and memory, never bits.
enum class Fate : std::uint8_t {
  keep,       ///< it stays on the device
  recompute,  ///< backward computes it again, of what is there; not the input
  leave       ///< a state::ActivationStore has it meanwhile; not what is pointwise
};

/// Of the parts of one block.
class BlockFates {
 public:
  /// All stay.
  constexpr BlockFates() = default;
  constexpr BlockFates(Fate input, Fate products, Fate pointwise)
      : fates_{input, products, products, products, products, pointwise} {}
  [[nodiscard]] constexpr Fate& operator[](Part part) {
    return fates_[static_cast<std::size_t>(part)];
  }
  [[nodiscard]] constexpr Fate operator[](Part part) const {
    return fates_[static_cast<std::size_t>(part)];
  }
  friend constexpr bool operator==(BlockFates const&, BlockFates const&) = default;

 private:
  std::array<Fate, part_count> fates_{};
};

constexpr BlockFates kept_block{};
constexpr BlockFates recomputed_block{Fate::keep, Fate::recompute, Fate::recompute};
constexpr BlockFates leaving_block{Fate::leave, Fate::leave, Fate::recompute};

/// Whether backward of the MLP makes what attention adds again, so that it needs attention's
/// parameters, too.
[[nodiscard]] constexpr bool mlp_needs_attention(BlockFates const& fates) {
  return fates[Part::mid] == Fate::recompute;
}

/// Bytes that a part takes, in type T; what leaves is as large.
template <class T>
[[nodiscard]] Bytes part_bytes(Dims const& dims, Part part);
/// Floating-point operations of the products that make a part; of the input and what is pointwise 0.
[[nodiscard]] double part_flops(Dims const& dims, Part part);

/// Which blocks share memory. Those of which a part does not stay form a ring: for a part that leaves there are n copies of its
/// memory, which they take in turn, ascending; for one that is only computed again there is one, for all of them. What
/// leaves a copy makes room for the block that has it next; what the last block of a copy has made is still there when
/// backward comes, whatever its fate is, unless it is pointwise.
class BlockRing {
 public:
  /// Of so many blocks, whose fates these are (empty: all stay), with at most `slabs` copies of a part.
  /// Errors: PreconditionError: other sizes, no slab, or a fate that a part cannot have.
  BlockRing(int blocks, std::vector<BlockFates> const& fates, int slabs);

  static constexpr int none = -1;
  [[nodiscard]] int blocks() const { return static_cast<int>(fates_.size()); }
  /// Of the part that has most.
  [[nodiscard]] int slabs() const { return slabs_; }
  /// The block's place in the ring, from 0 to slabs() - 1; none where all its parts stay.
  [[nodiscard]] int slab(int block) const { return places_[index(block)].slab; }
  /// The block that has the same place before, or none.
  [[nodiscard]] int before(int block) const { return places_[index(block)].before; }
  /// Copies of a part's memory that blocks share; 0 where it always stays.
  [[nodiscard]] int copies(Part part) const { return copies_[static_cast<std::size_t>(part)]; }
  /// The copy that the block's part lies in, or none: it has memory of its own.
  [[nodiscard]] int copy(int block, Part part) const;
  /// The fates that come true: what is the last of its copy is kept there, but what is pointwise.
  [[nodiscard]] BlockFates fates(int block) const;
  [[nodiscard]] bool any_leaves() const;

 private:
  [[nodiscard]] static std::size_t index(int block) { return static_cast<std::size_t>(block); }

  struct Place {
    int slab = none;
    int before = none;
    bool last_of_slab = false, last = false;
  };
  std::vector<BlockFates> fates_;
  std::vector<Place> places_;
  std::array<int, part_count> copies_{};
  int slabs_{};
};

}  // namespace offstage::model
