#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace offstage::tiers {

/// Traffic of this process through one path in one direction, without transfers that let others
/// pass.
struct DirectionTraffic {
  Bytes bytes{};
  std::int64_t transfers{};  ///< pieces of at most path_turn_bytes / PathSettings::threads each
  Seconds seconds{};         ///< inside transfers until the next may begin, but those that failed
  Seconds waited{};          ///< before them, for threads of this process and for other processes
  Seconds longest_wait{};
  Seconds longest_transfer{};
};
struct PathTraffic {
  DirectionTraffic read;
  DirectionTraffic write;
};

/// Traffic through the tiers since the start, of this process.
struct Traffic {
  /// In the order of the configuration. That of all tiers that share these paths.
  std::vector<PathTraffic> paths;
  std::int64_t hits{};      ///< fetches that found their extent in host memory
  std::int64_t misses{};    ///< fetches that read
  Bytes fetched_bytes{};    ///< bytes of extents, hits included
  Seconds fetch_seconds{};  ///< inside fetch, summed over threads, waiting included
  Seconds flush_seconds{};  ///< inside commit, likewise

  [[nodiscard]] Bytes read_bytes() const;
  [[nodiscard]] Bytes write_bytes() const;
};

/// Where the current versions are (MLP Figure 10), in bytes of extents. Versions before those on
/// trial are not counted.
struct Residence {
  Bytes device{};  ///< in device memory (DeviceTiers)
  Bytes host{};
  std::vector<Bytes> paths;
};

}  // namespace offstage::tiers
