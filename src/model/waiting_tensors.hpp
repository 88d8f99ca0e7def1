#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "plan/waiting_slabs.hpp"
#include "state/exchange.hpp"

namespace offstage::model {

/// Tensors of one size that wait between layers, each known by a number. The last ones, or all,
/// have device memory of their own. A few slabs serve the others in turn, and an ActivationStore
/// has what is in none.
///
/// Waiting: the calling thread does not; the stream waits until a slab may be written or a tensor
/// is there.
class WaitingTensors {
 public:
  using Memory = std::span<std::byte>;
  /// If each tensor of the group has a slab, nothing leaves the device.
  /// `moved` is the tensor's part of a slab in bytes. It leaves in pieces of `piece` bytes, fewer
  /// in the last one. The store knows each as part 0 of its block.
  /// `stream`, the model's, must outlive this object.
  WaitingTensors(std::vector<Memory> const& slabs, plan::WaitingGroup const& group, Bytes moved,
                 Bytes piece, device::Stream& stream);
  void set_store(state::ActivationStore& store) { store_ = &store; }
  [[nodiscard]] bool leave() const { return choice_.leave(); }

  /// Begins a step: no tensor is there, and no slab is in use.
  void begin();
  /// Returns memory for the tensor, which the stream may overwrite.
  [[nodiscard]] Memory make(int tensor);
  /// Brings the tensor to a slab, unless it is in one. The slab is the tensor's until keep, drop or
  /// give.
  void bring(int tensor);
  /// Returns a brought tensor, to be read.
  [[nodiscard]] Memory use(int tensor);
  /// Returns a brought tensor, to be changed.
  [[nodiscard]] Memory change(int tensor);
  /// Says that the tensor was made or changed, and waits.
  void keep(int tensor);
  /// Says that the tensor was used.
  void drop(int tensor);
  /// Says that the tensor is never used again. Others read its slab until the event `done`; null:
  /// nobody does.
  void give(int tensor, std::shared_ptr<device::Event> done);

 private:
  using Events = std::vector<std::shared_ptr<device::Event>>;
  struct Slab {
    Memory memory;
    Events left;     ///< events until which others read it
    Events arrived;  ///< events at which all of the tensor is there
  };
  [[nodiscard]] Slab& at(int slab) { return slabs_[static_cast<std::size_t>(slab)]; }
  /// The slab of a tensor that is there.
  [[nodiscard]] Slab& of(int tensor);
  /// Calls move(block, memory) for each piece of the tensor. Returns the events that it returns.
  template <class Move>
  [[nodiscard]] Events move_pieces(int tensor, Slab const& slab, Move const& move) const;
  void wait_for(Events& events);

  std::vector<Slab> slabs_;
  plan::WaitingGroup group_;
  plan::WaitingSlabs choice_;  ///< tells which slab a tensor has
  Bytes moved_;
  Bytes piece_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
};

}  // namespace offstage::model
