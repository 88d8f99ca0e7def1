#pragma once

#include <optional>

#include "kernels/optimizer/optimizer.hpp"
#include "tiers/tiers.hpp"
#include "update/gradients/final_gradients.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/ordered_thread.hpp"

namespace offstage::update {

/// Ends the leases of accumulated gradients in a thread of its own ("gradients"), in order of
/// arrival. Gradients that have to leave host memory are written, and gradients that the device
/// will need are brought there, while backward goes on.
///
/// Waiting: the thread needs nothing that its callers hold. A lease that arrives has its buffer
///          already. The buffers of `flushed` are the thread's own while gradients accumulate, or
///          belong to trips of an update under backward, which need nothing of this thread. So a
///          caller that waits for a buffer and holds no lease gets one: one buffer is enough for
///          progress. No more leases wait here than the tier has buffers and cached extents.
/// Threads: one calls the members.
/// Errors:  the first error is kept, and rethrow and drain throw it from then on. Leases that come
///          after it end without commit.
class GradientFlusher {
 public:
  /// `flushed`: where flush writes to; null: it is not called.
  explicit GradientFlusher(tiers::Tiers* flushed);

  /// Sets who is told of final gradients, by this thread; null, as at first: nobody. It outlives
  /// the thread. Called while no lease is left here.
  void set_receiver(FinalGradients* receiver) noexcept { receiver_ = receiver; }
  /// Has the lease committed. In the last round its gradient is final: `squares` is the sum of its
  /// squares.
  void commit(tiers::Lease lease, std::optional<double> squares);
  /// Has the gradient written to `flushed` as FP32. Its own lease ends without commit: nobody reads
  /// it again. `view`: of the lease's bytes.
  void flush(tiers::Lease lease, kernels::GradientView view, double squares);
  /// Has the gradient brought to its place in device memory. Its own lease ends without commit.
  /// `view`: of its bytes.
  void bring(tiers::Lease lease, kernels::GradientView view, HeldGradients& held, double squares);
  /// Blocks until no lease is left here.
  /// Errors: what the thread met: IoError of the tiers.
  void drain() { thread_.drain(); }
  /// Throws what drain would throw now.
  void rethrow() const { thread_.rethrow(); }
  /// Waits for the lease in hand, if any; leases that wait end without commit. Only the destructor
  /// follows.
  void stop() noexcept { thread_.stop(); }

 private:
  struct Item {
    tiers::Lease lease;
    kernels::GradientView view;  ///< to be flushed or brought
    HeldGradients* held{};       ///< to be brought there
    bool flush = false;
    std::optional<double> squares{};  ///< none: it is not final
  };
  void handle(Item item);
  void end(Item item);

  tiers::Tiers* flushed_;
  FinalGradients* receiver_{};
  OrderedThread<Item> thread_;  ///< last: it uses all of the above
};

}  // namespace offstage::update
