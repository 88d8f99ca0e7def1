#pragma once

#include "state/exchange.hpp"
#include "state/shard.hpp"
#include "update/gradients/final_gradients.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/lease.hpp"

namespace offstage::update {

/// A step's gradients on their way from the model to this rank's shard of their sums.
///
/// Threads:    one, the one that calls MPI; any may fetch.
/// Collective: add, norm.
template <class T>
class StepGradients : public state::GradientSink<T> {
 public:
  /// Sets the memory that holds gradients on the device; null, as at first: nothing is held. It
  /// outlives the calls. Its hold() is called between steps only.
  /// Errors: PreconditionError: the device is host_visible, or gradients are flushed.
  virtual void set_held(HeldGradients* held) = 0;
  /// Sets who is told, in a step's last round, of each subgroup whose gradient fetch can give from
  /// then on (squares of 0: it is summed on the device). By any thread. Null, as at first: nobody.
  /// It outlives the calls, and this object's threads: abandon() ends them.
  virtual void set_receiver(FinalGradients* receiver) noexcept = 0;
  /// A new step begins with the next round.
  virtual void begin_step() noexcept = 0;
  /// Before each round of backward, in which every layer comes once, the last first: ranks 0 ..
  /// active - 1 have a micro-batch in it. `last`: no round of this step follows, so norms are taken
  /// as the sums become final.
  /// Errors of add: IoError of the tiers, also of what was added and written in the background;
  /// from then on every call
  ///                throws it.
  virtual void begin_round(int active, bool last) = 0;
  /// In place of all rounds of a step of so many micro-batches: layers come in GradientOrder, each
  /// in every round, so that a step's sums are written once. end_round comes after all of it.
  virtual void begin_rounds_in_layers(int micro_batches) = 0;
  /// After each round: every subgroup's sums are where they belong.
  /// Errors: as add.
  virtual void end_round() = 0;
  /// Ends all threads, in the middle of a round perhaps, if the run has failed; lets go of the sums
  /// at hand, whose buffer a fetch may wait for. Nothing but the destructor follows, and fetches
  /// that are late.
  virtual void abandon() noexcept = 0;

  /// sqrt of the sum of squares of all ranks' accumulated gradients, before scaling: chunk sums
  /// added in a tree over (layer, chunk) (norm_tree.hpp), padding included as zeros. Not finite if
  /// any gradient is not. Collective. After the last round's adds, whatever is still to be written.
  [[nodiscard]] virtual double norm() const = 0;

  /// Leases a subgroup's gradient of the step, after the last round, or once its receiver has been
  /// told of it.
  /// Threads: any, one lease per subgroup at a time.
  [[nodiscard]] virtual GradientLease fetch(state::Subgroup const& subgroup) = 0;
  /// Before the update's fetches.
  virtual void begin_update() = 0;
};

}  // namespace offstage::update
