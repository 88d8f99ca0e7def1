#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/smoothed.hpp"

namespace offstage::train {

/// The point from which a start goes on with a run's metrics.
struct MetricsPoint {
  std::int64_t step = 0;  ///< the last step that stays; 0: none
  /// Loss of that step, where the checkpoint tells it.
  std::optional<double> loss{};
  bool is_named = false;  ///< the user named the checkpoint, or none (checkpoint.resume)
};

/// Creates a run's metrics.jsonl, or keeps its records up to the point and cuts the rest, with a
/// torn last line. Starts up to that step stay, also if it is 0. Returns the running mean of the
/// losses that stay.
///
/// The old file stays beside it as passed-over-metrics.jsonl (.2, .3, ... if that is taken), which
/// is logged,
///   - if steps are cut and the point is named;
///   - if a save of level 2 is cut, as this start then goes on from other checkpoints than that one
///     left;
///   - if the step has another loss there, or no record, and a file that was set aside before has
///     that loss: a start without any save wrote it. That file takes its place; without one, none.
/// A kill at any time leaves the old or the new file. Errors: IoError naming run.dir and the path.
[[nodiscard]] Smoothed bring_metrics_to(std::string const& path, MetricsPoint const& point);

}  // namespace offstage::train
