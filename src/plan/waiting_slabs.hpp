#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace offstage::plan {

/// Tensors of a vertical schedule that wait on the device although the others leave it.
struct StayingTensors {
  int tensors = 0;      ///< the last ones: gradients first, then inputs from the last block down
  bool tables = false;  ///< a tied head's tables, all of them

  [[nodiscard]] bool operator==(StayingTensors const&) const = default;
};

/// Tensors of one size that wait between the layers of a vertical schedule, numbered from 0.
struct WaitingGroup {
  int tensors = 0;
  int slabs = 0;        ///< slabs of device memory
  int staying = 0;      ///< the last tensors, with slabs of their own where others leave
  int pieces = 1;       ///< in which a tensor leaves
  int first_block = 0;  ///< the block of tensor 0's first piece for an ActivationStore

  /// Returns the block of the tensor's first piece; the next pieces have the next blocks.
  [[nodiscard]] int block_of(int tensor) const noexcept { return first_block + tensor * pieces; }
};

/// Deals slabs of device memory to the tensors of a group.
/// If there is a slab for each, a tensor has the one of its own number. Else the last slabs are
/// those of the last tensors, and the others have the first slabs in turn: every layer takes the
/// tensors in the same order, so that of slabs which all have in turn none would be found again.
///
/// It knows nothing of bytes, and waits for nothing.
/// Threads: one at a time.
/// Errors: PreconditionError: no such tensor, or all slabs are in use.
class WaitingSlabs {
 public:
  static constexpr int none = -1;
  explicit WaitingSlabs(WaitingGroup const& group);
  [[nodiscard]] int slabs() const noexcept { return static_cast<int>(slabs_.size()); }
  /// Returns whether there are more tensors than slabs.
  [[nodiscard]] bool leave() const noexcept { return slabs_.size() < slab_of_.size(); }
  /// Returns whether the tensor has slabs in turn with others.
  [[nodiscard]] bool leaves(int tensor) const noexcept { return leave() && tensor < first_own_; }

  /// Begins with no tensor there and no slab in use.
  void begin();
  /// The tensor's slab, or none.
  [[nodiscard]] int find(int tensor) const;
  /// Takes a slab for a tensor that is in none: its own, or else one with a forgotten tensor, or
  /// the one released longest ago. It is in use from now on.
  [[nodiscard]] int take(int tensor);
  /// Takes a slab for a tensor that is written anew; it may be in a slab already.
  [[nodiscard]] int make(int tensor);
  void hold(int slab) { at(slab).in_use = true; }
  void release(int slab);
  /// Releases the slab and forgets its tensor.
  void forget(int slab);

 private:
  struct Slab {
    int tensor = none;
    bool in_use = false;
    std::int64_t released = 0;  ///< number of its last release
  };
  [[nodiscard]] Slab& at(int slab) { return slabs_[static_cast<std::size_t>(slab)]; }
  /// The slab's tensor is in none any more.
  void empty(int slab);

  std::vector<Slab> slabs_;
  std::vector<int> slab_of_;  ///< by tensor
  int in_turn_;               ///< slabs that tensors have in turn
  int first_own_;             ///< first tensor with a slab of its own
  std::int64_t releases_ = 0;
};

}  // namespace offstage::plan
