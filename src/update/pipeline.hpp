#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "adamw.hpp"
#include "base/dtype.hpp"
#include "base/units.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::update {

/// The accumulated gradient of a shard, and the working copy that receives new parameters.
using GradientView =
    std::variant<std::span<float const>, std::span<bfloat16 const>, std::span<float16 const>>;
using WorkingCopyView = std::variant<std::span<float>, std::span<bfloat16>, std::span<float16>>;

struct UpdateStats {
  Seconds total{};    ///< wall time of run()
  Seconds compute{};  ///< of that, inside the AdamW kernel
  Bytes read_bytes{};
  Bytes write_bytes{};
};

/// Updates every subgroup of a shard once: lease, AdamW, commit. `workers` threads (one per
/// pipeline slot) each run that trip as one blocking function, so that fetch, update and flush of
/// different subgroups overlap; AdamW itself runs on the calling thread, whose OpenMP team the
/// model uses too.
///
/// Source:  MLP section 3.4, Algorithm 1 (fetch, update, flush), with one path.
/// Order:   run returns when every commit has returned. The bits do not depend on workers or order.
/// Errors:  the first error of any worker, after all of them have ended.
class UpdatePipeline {
 public:
  UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int workers);

  /// `step.weight_decay` applies inside the decayed ranges alone.
  /// Errors: PreconditionError if gradient and copy are of two different 16-bit types.
  UpdateStats run(kernels::AdamwStep const& step, GradientView gradient, WorkingCopyView copy);

 private:
  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  int workers_;
};

}  // namespace offstage::update
