#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "train/offload/storage_step.hpp"

namespace offstage::train {

/// The storage of all steps of a start, for the end table.
class StorageTotals {
 public:
  /// Adds a step's traffic. The places of the state are those of the last step.
  void add(StorageStep const& step);
  /// The table's lines: one per path (read, written, rates, busy time, lock wait, longest wait,
  /// state there at the end), one on the wear of its drives if their endurance is given, one that
  /// says which figures are emulated, one on host memory, and the effective I/O throughput per
  /// update. None without storage paths.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  [[nodiscard]] std::string line_of(PathStep const& path, Bytes state, std::size_t width) const;

  StorageStep sum_;
  std::int64_t steps_{};
  std::int64_t updates_{};  ///< updates that have an effective rate
  double effective_sum_{}, effective_least_{}, effective_most_{};
};

}  // namespace offstage::train
