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

/// Takes what leaves the slabs of a ring to an ActivationStore, and back. All members enqueue on the model's stream or the
/// store's and return; the one waits for the other, the caller for neither.
class BlockTraffic {
 public:
  using SlabParts = std::array<std::span<std::byte>, part_count>;
  /// `slabs` as the ring counts them; `serial`: the model waits for each layer's copies. `ring` and `stream` outlive it.
  BlockTraffic(BlockRing const& ring, std::span<SlabParts const> slabs, bool serial,
               device::Stream& stream);
  void set_store(state::ActivationStore& store) { store_ = &store; }

  /// A micro-batch begins, and nothing of the one before is wanted.
  /// Errors: PreconditionError: something is to leave, and there is no store.
  void begin();
  /// Before forward of a block's layer: the parts that its slab held before have left.
  void before_forward(int block, BlockLayer layer);
  /// After it: the layer's parts leave.
  void after_forward(int block, BlockLayer layer);
  /// Before backward of a block's layer: its parts are back.
  void before_backward(int block, BlockLayer layer);
  /// After it: the parts that come next into the slab are on their way.
  void after_backward(int block, BlockLayer layer);

 private:
  using Points = std::vector<std::shared_ptr<device::Event>>;
  /// The points of a layer's parts in a slab.
  [[nodiscard]] Points& moved(int slab, BlockLayer layer);
  /// The stream goes on behind all of them.
  void wait_for(Points& points);
  template <class Each>
  void for_each_leaving(int block, BlockLayer layer, Each const& each) const;

  BlockRing const& ring_;
  std::vector<SlabParts> slabs_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
  bool leaves_;  ///< anything
  bool serial_;
  /// The ends of the copies from and to each slab, of either layer's parts.
  std::vector<std::array<Points, block_layer_count>> moved_;
};

/// What leaves in a forward, type T.
template <class T>
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts_of(Dims const& dims,
                                                               BlockRing const& ring);

}  // namespace offstage::model
