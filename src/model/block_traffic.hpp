#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "model/fates.hpp"
#include "state/exchange.hpp"

namespace offstage::model {

/// Moves parts of activations from the slabs of a ring to an ActivationStore, and back. All members
/// enqueue on the model's stream or the store's, and return. The streams wait for each other; the
/// caller waits for neither.
class BlockTraffic {
 public:
  using SlabParts = std::array<std::span<std::byte>, part_count>;
  /// `slabs` are in the ring's order. `serial`: the model waits for each layer's copies. `ring` and
  /// `stream` must outlive this object.
  BlockTraffic(BlockRing const& ring, std::span<SlabParts const> slabs, bool serial,
               device::Stream& stream);
  void set_store(state::ActivationStore& store) { store_ = &store; }

  /// Begins a micro-batch. Nothing of the one before is needed any more.
  /// Errors: PreconditionError: parts are to leave, and there is no store.
  void begin();
  /// Call it before forward of a block's layer. The stream waits until the parts that its slab had
  /// before have left.
  void before_forward(int block, BlockLayer layer);
  /// Call it after forward of a block's layer. The layer's parts begin to leave.
  void after_forward(int block, BlockLayer layer);
  /// Call it before backward of a block's layer. The stream waits until its parts are back.
  void before_backward(int block, BlockLayer layer);
  /// Call it after backward of a block's layer. The next parts of the slab begin to come back.
  void after_backward(int block, BlockLayer layer);

 private:
  using Points = std::vector<std::shared_ptr<device::Event>>;
  /// The events of a layer's parts in a slab.
  [[nodiscard]] Points& moved(int slab, BlockLayer layer);
  /// Makes the stream wait for all of these events.
  void wait_for(Points& points);
  template <class Each>
  void for_each_leaving(int block, BlockLayer layer, Each const& each) const;

  BlockRing const& ring_;
  std::vector<SlabParts> slabs_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
  bool leaves_;  ///< whether any part leaves
  bool serial_;
  /// The ends of the copies from and to each slab, of either layer's parts.
  std::vector<std::array<Points, block_layer_count>> moved_;
};

/// The parts that leave in a forward, in type T.
template <class T>
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts_of(Dims const& dims,
                                                               BlockRing const& ring);

}  // namespace offstage::model
