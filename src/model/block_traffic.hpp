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
  /// `slabs` as the ring counts them. All but these spans outlive it.
  BlockTraffic(BlockRing const& ring, std::span<SlabParts const> slabs, device::Stream& stream);
  void set_store(state::ActivationStore& store) { store_ = &store; }

  /// A micro-batch begins, and nothing of the one before is wanted.
  /// Errors: PreconditionError: something is to leave, and there is no store.
  void begin();
  /// Before a block's forward: what its slab held has left.
  void before_forward(int block);
  /// After it: its parts leave.
  void after_forward(int block);
  /// Before a block's backward: what of it has left is back.
  void before_backward(int block);
  /// After it: what comes next into its slab is on its way.
  void after_backward(int block);

 private:
  using Points = std::vector<std::shared_ptr<device::Event>>;
  /// The stream goes on behind all of them.
  void wait_for(Points& points);
  template <class Each>
  void for_each_leaving(int block, Each const& each) const;

  BlockRing const& ring_;
  std::vector<SlabParts> slabs_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
  bool leaves_;                ///< anything
  std::vector<Points> moved_;  ///< of each slab: until when it is copied from, or to
};

/// What leaves in a forward, type T.
template <class T>
[[nodiscard]] std::vector<state::LeavingPart> leaving_parts(Dims const& dims,
                                                            BlockRing const& ring);

}  // namespace offstage::model
