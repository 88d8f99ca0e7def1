#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "adamw.hpp"
#include "base/units.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/gradient_accumulator.hpp"
#include "update/views.hpp"

namespace offstage::update {

struct UpdateStats {
  Seconds total{};    ///< wall time of run()
  Seconds compute{};  ///< of that, inside the AdamW kernel
};

/// Gives a subgroup's gradient to the thread that updates it.
using GradientSource = std::function<GradientLease(state::Subgroup const&)>;

/// Updates every subgroup of a shard once: lease, AdamW, commit. `workers` threads (one per
/// pipeline slot) each run that trip as one blocking function, so that fetch, update and flush of
/// different subgroups overlap, on all storage paths; AdamW itself runs on the calling thread, whose
/// OpenMP team the model uses too. A 16-bit gradient is converted inside the kernel.
///
/// Source:  MLP section 3.4, Algorithm 1 (fetch, update, flush).
/// Order:   subgroups are fetched in `order`, each its gradient first; run returns when every commit has
///          returned. The bits do not depend on workers or order.
/// Waiting: a worker holds one lease of the state and one of a gradient at most. One buffer of each is
///          enough; more workers than buffers of the state read gradients ahead.
/// Trace:   rows "slot N" (each trip's fetch, update, which includes the wait for the kernel, and flush)
///          and "update" (the kernel).
/// Errors:  the first error of any worker, after all of them have ended.
class UpdatePipeline {
 public:
  UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int workers,
                 trace::Trace* trace = nullptr);

  /// `order`: every index of the subgroups once. `step.weight_decay` applies inside the decayed ranges
  /// alone.
  /// A pass of the tiers begins with it.
  /// Errors: PreconditionError if gradient and copy are of two different 16-bit types, or one of them
  ///         has not the elements; the subgroup's state stays as it is.
  UpdateStats run(kernels::AdamwStep const& step, std::span<std::int64_t const> order,
                  GradientSource const& gradient, WorkingCopyView copy);

 private:
  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  int workers_;
  trace::Trace* trace_;
};

}  // namespace offstage::update
