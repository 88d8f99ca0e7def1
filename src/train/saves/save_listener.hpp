#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "checkpoint/save_stats.hpp"

namespace offstage::train {

/// Receives reports of finished saves. The calls come on every rank, with this rank's figures.
class SaveListener {
 public:
  virtual ~SaveListener() = default;
  /// A checkpoint of `step` has become complete. `level`: 1 or 2. `now` is Cadence::now(), here and
  /// below. SaveStats::waited is set.
  virtual void saved(std::int64_t step, checkpoint::SaveStats const& stats, int level,
                     Seconds now) = 0;
  /// A checkpoint of level 1 has been copied to level 3.
  virtual void copied(checkpoint::CopyStats const& stats, Seconds now) = 0;

 protected:
  SaveListener() = default;
  SaveListener(SaveListener const&) = default;
  SaveListener& operator=(SaveListener const&) = default;
};

}  // namespace offstage::train
