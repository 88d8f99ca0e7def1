#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "update/gradients/arrival.hpp"
#include "update/gradients/ordered_thread.hpp"

namespace offstage::update {

/// Waits for gradients that come to host memory and has them added, in order of arrival, by a
/// thread of its own ("gradient sums") while the calling thread gives the device its next work.
///
/// Threads: as of OrderedThread. The thread's OpenMP teams are as large as those of the one that
/// makes it. Waiting: for streams, and for what the additions wait for. It gives memory back after
/// each gradient, whatever happens.
class SummingThread final : public OrderedThread<GradientArrival> {
 public:
  using Add = std::function<void(int layer, std::span<std::byte const> gradient)>;
  /// `fail` is called where an addition, or the way of a gradient to it, has failed: nothing more
  /// is added.
  SummingThread(Add add, std::function<void()> fail);
};

}  // namespace offstage::update
