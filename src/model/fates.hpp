#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace offstage::model {

struct Dims;

/// A part of the tensors of a block's forward that backward needs; BlockActivations has the
/// tensors.
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

/// The fate of a part between forward and backward. It changes times and memory, never bits.
enum class Fate : std::uint8_t {
  keep,       ///< it stays on the device
  recompute,  ///< backward computes it again from other parts; impossible for the input
  leave       ///< a state::ActivationStore has it meanwhile; impossible for the pointwise part
};

/// The fates of one block's parts.
class BlockFates {
 public:
  /// All parts stay.
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

/// Returns whether backward of the MLP makes attention's addition again, so that it needs
/// attention's parameters, too.
[[nodiscard]] constexpr bool mlp_needs_attention(BlockFates const& fates) {
  return fates[Part::mid] == Fate::recompute;
}

/// Bytes of a part in type T, on the device and in a store.
template <class T>
[[nodiscard]] Bytes part_bytes(Dims const& dims, Part part);
/// Floating-point operations of the products that make a part; 0 for the input and the pointwise
/// part.
[[nodiscard]] double part_flops(Dims const& dims, Part part);

/// Tells which blocks share memory. Blocks with a part that does not stay form a ring. A part that
/// leaves has n copies of its memory, which these blocks take in turn, ascending. A part that is
/// only computed again has one copy for all of them. A part that leaves a copy makes room for the
/// next block of that copy. The part that a copy's last block has made is still there when backward
/// comes, whatever its fate is, unless it is pointwise.
class BlockRing {
 public:
  /// A ring for so many blocks with these fates (empty: all parts stay), with at most `slabs`
  /// copies of a part.
  /// Errors: PreconditionError: other sizes, no slab, or a fate that a part cannot have.
  BlockRing(int blocks, std::vector<BlockFates> const& fates, int slabs);

  static constexpr int none = -1;
  [[nodiscard]] int blocks() const { return static_cast<int>(fates_.size()); }
  /// Copies of the part that has most.
  [[nodiscard]] int slabs() const { return slabs_; }
  /// The block's place in the ring, from 0 to slabs() - 1; none where all its parts stay.
  [[nodiscard]] int slab(int block) const { return places_[index(block)].slab; }
  /// The block before it with the same place, or none.
  [[nodiscard]] int before(int block) const { return places_[index(block)].before; }
  /// Copies of a part's memory that blocks share; 0 if it stays in all blocks.
  [[nodiscard]] int copies(Part part) const { return copies_[static_cast<std::size_t>(part)]; }
  /// The copy in which the block's part lies; none: the part has memory of its own.
  [[nodiscard]] int copy(int block, Part part) const;
  /// The fates that a block's parts really have: the last part of a copy is kept there, unless it
  /// is pointwise.
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
