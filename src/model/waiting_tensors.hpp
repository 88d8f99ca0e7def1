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

/// Tensors of one size that wait between layers, each known by a number. Either each has device
/// memory of its own, or a few slabs serve all of them in turn and an ActivationStore has the rest.
///
/// Waiting: the calling thread does not; the stream waits until a slab may be written or a tensor
/// is there.
class WaitingTensors {
 public:
  using Memory = std::span<std::byte>;
  /// Numbers run from 0 to `count` - 1. With a slab for each nothing leaves the device. `moved`:
  /// the bytes of a slab that the tensor has. The store knows tensor k as part 0 of block
  /// `first_block` + k. `stream`, the model's, outlives this.
  WaitingTensors(std::vector<Memory> slabs, Bytes moved, int count, int first_block,
                 device::Stream& stream);
  void set_store(state::ActivationStore& store) { store_ = &store; }
  [[nodiscard]] bool leave() const { return choice_.leave(); }

  /// A step begins: no tensor is there, no slab in use.
  void begin();
  /// Memory for the tensor, which the stream may overwrite.
  [[nodiscard]] Memory make(int tensor);
  /// Tensor is on its way to a slab, unless it is there. Then that slab is the tensor's until keep,
  /// drop or give.
  void bring(int tensor);
  /// Brought tensor, to be read.
  [[nodiscard]] Memory use(int tensor);
  /// Brought tensor, to be changed.
  [[nodiscard]] Memory change(int tensor);
  /// Tensor was made or changed, and waits.
  void keep(int tensor);
  /// Tensor was used.
  void drop(int tensor);
  /// Tensor is never used again, and others read its slab until the point `done`; null: nobody
  /// does.
  void give(int tensor, std::shared_ptr<device::Event> done);

 private:
  struct Slab {
    Memory memory;
    std::shared_ptr<device::Event> left;     ///< until then others read it; null: nobody does
    std::shared_ptr<device::Event> arrived;  ///< then the tensor is there; null: it is
  };
  [[nodiscard]] Slab& at(int slab) { return slabs_[static_cast<std::size_t>(slab)]; }
  /// Slab of a tensor that is there.
  [[nodiscard]] Slab& of(int tensor);
  [[nodiscard]] Memory moved(Slab const& slab) const;
  void wait_until_left(Slab& slab);

  std::vector<Slab> slabs_;
  plan::WaitingSlabs choice_;  ///< which of them a tensor has
  Bytes moved_;
  int first_block_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
};

}  // namespace offstage::model
