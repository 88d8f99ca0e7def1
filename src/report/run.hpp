#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage::report {

/// A figure that a run did not record.
constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// One step of metrics.jsonl; seconds, and `unknown` where a key is missing or null.
struct Step {
  std::int64_t number{};
  double loss = unknown, norm = unknown, rate = unknown, tokens = unknown;
  double seconds = unknown, forward = unknown, backward = unknown, update = unknown;
  double predicted = unknown, tflops = unknown, mfu = unknown;
  double loss_scale = 1.0;
  bool skipped{};  ///< the update was
  double at{};     ///< the step's end, seconds since the run's first start
};

struct Validation {
  std::int64_t step{};
  double loss = unknown;
  /// Losses of the first sources, if there are several: "wiki.bin 2.0134, code.bin 2.3345"; else
  /// empty.
  std::string sources{};
  bool counts = true;  ///< false: never the best, as it is behind a skipped step
};

/// A checkpoint that has become complete.
struct Save {
  std::int64_t step{};
  int level{};
  double seconds{}, stood_still{};
  double at{};  ///< seconds since the run's first start
};

/// Totals of the steps on one storage path, all ranks together, with what was between steps.
/// Seconds of transfers that went on at a time are added, so that busy_seconds may exceed
/// counted_seconds.
struct PathTotals {
  std::string directory;
  bool emulated{};
  double read_bytes{}, write_bytes{};
  double read_seconds{}, write_seconds{};  ///< inside transfers
  double busy_seconds{}, counted_seconds{};
  /// Rates of a node, GB/s, as the last start knew them.
  double can_read = unknown, can_write = unknown;
  double sharing_transfers = 1.0;  ///< how many share one of these at a time
};

/// Memory keys of a start or an end, bytes.
struct Memory {
  double host_limit = unknown, host_planned = unknown, host_libraries = unknown;
  double host_peak = unknown;
  double device_limit = unknown, device_planned = unknown, device_peak = unknown;
};

/// A key that a start changed, with its values before and from then on.
struct Change {
  std::string key, then, now;
};

/// A start and what followed until the next one.
struct Start {
  std::int64_t step{};  ///< done before
  double at{};          ///< seconds since the run's first start
  std::string time;     ///< UTC, as recorded
  std::int64_t ranks{};
  std::vector<std::string> nodes;
  std::string job;
  std::string from;  ///< the checkpoint that was named; empty: none
  std::vector<Change> changes;
  std::string end;          ///< "done", why it stopped, or "failed: WHY"; empty: no end is recorded
  std::vector<Step> steps;  ///< in order
  double last_at{};         ///< latest time of all that is recorded
};

/// Seconds of a step, as predicted.
struct Forecast {
  bool given{};
  std::int64_t after{};  ///< step after which it was made
  std::size_t start{};   ///< its start's place in Run::starts
  double step = unknown, forward = unknown, backward = unknown, update = unknown;
};

/// Lines of metrics.jsonl that are no records.
struct BadLines {
  std::int64_t count{};
  std::int64_t first{};  ///< line number, from 1
};

/// Contents of a run's run.dir.
struct Run {
  std::string directory;
  std::string name;
  double parameters = unknown;
  std::vector<Start> starts;
  std::vector<Validation> validations;
  std::size_t first_comparable{};  ///< index into validations; those before are of other data
  std::vector<Save> saves;
  std::vector<PathTotals> paths;
  std::vector<Forecast> forecasts;  ///< in order
  Memory memory;                    ///< memory of the last start, or of the last end if that has it
  std::vector<std::string> advice;  ///< advice of the last end
  std::string header;               ///< header.txt; empty: there is none
  /// Values of effective.cfg by key, which the caller fills in; empty: they are not known.
  std::map<std::string, std::string> settings;
  BadLines bad_lines;  ///< lines that were left out

  [[nodiscard]] std::int64_t steps() const;
  [[nodiscard]] Step const* last() const;
};

/// Reads run.dir/metrics.jsonl and header.txt. Records that older versions of Offstage wrote lack
/// some figures, which are unknown then; steps without elapsed_seconds follow one another. A last
/// line without its end, which a run is writing or a kill has torn, is left out. Other lines that
/// are no records are left out and counted.
/// Memory: some 100 bytes per step.
/// Errors: DataError naming the directory if there is no metrics.jsonl, and naming the first line
///         if there are lines and none is a record; IoError if it cannot be read.
[[nodiscard]] Run read_run(std::string const& directory);

/// Up to 1 MiB of a file in a run's directory; empty: there is no regular file that can be read.
[[nodiscard]] std::string text_beside(std::string const& directory, char const* name);

/// Runs whose directories have the same last part are named by more of them.
void tell_apart(std::vector<Run>& runs);

}  // namespace offstage::report
