#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/regular_file.hpp"
#include "tensorboard/event.hpp"

namespace offstage::tensorboard {

/// One start's events, in a file of their own beside those of earlier starts:
/// DIRECTORY/events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER, whose names TensorBoard reads in
/// order. SECONDS is the time, or more where an earlier start's name would come behind it.
class EventFile {
 public:
  /// Opens the run's file. Events of earlier starts for steps from `step` on do not count any more.
  /// Errors: IoError naming run.tensorboard and the path.
  EventFile(std::string const& directory, std::string const& host, std::int64_t step);

  /// In the file when this returns, but not durable. If it cannot be written, the file ends here,
  /// which a warning says once; throws no IoError.
  void write(std::int64_t step, std::span<Scalar const> scalars);

 private:
  std::optional<OutputFile> file_;  ///< none: writing has failed
};

}  // namespace offstage::tensorboard
