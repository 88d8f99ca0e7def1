#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace offstage::plan {

/// Which of a few slabs of device memory each tensor has, of those that wait between the layers of
/// a vertical schedule. With a slab for each, a tensor has the one of its own number.
///
/// Knows nothing of bytes, and waits for nothing. Threads: one at a time.
/// Errors: PreconditionError: no such tensor, or all slabs are in use.
class WaitingSlabs {
 public:
  static constexpr int none = -1;
  /// Tensors are numbered from 0 to `tensors` - 1.
  WaitingSlabs(int slabs, int tensors);
  [[nodiscard]] int slabs() const noexcept { return static_cast<int>(slabs_.size()); }
  /// Whether there are more tensors than slabs.
  [[nodiscard]] bool leave() const noexcept { return slabs() < tensors_; }

  /// No tensor is there, no slab in use.
  void begin();
  /// The tensor's slab, or none.
  [[nodiscard]] int find(int tensor) const;
  /// A slab for a tensor that is nowhere: whose content is there in vain, or longest. It is in use
  /// from now on.
  [[nodiscard]] int take(int tensor);
  /// The same for one that is written anew, wherever it was.
  [[nodiscard]] int make(int tensor);
  void hold(int slab) { at(slab).in_use = true; }
  void release(int slab);
  /// Nobody wants what is there, and the slab is released.
  void forget(int slab);

 private:
  struct Slab {
    int tensor = none;
    bool in_use = false;
    std::int64_t released = 0;  ///< when, in an order of their own
  };
  [[nodiscard]] Slab& at(int slab) { return slabs_[static_cast<std::size_t>(slab)]; }

  std::vector<Slab> slabs_;
  int tensors_;
  std::int64_t releases_ = 0;
};

}  // namespace offstage::plan
