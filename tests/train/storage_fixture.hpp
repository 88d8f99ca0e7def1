#pragma once

#include <cstdint>
#include <vector>

#include "tiers/path_settings.hpp"
#include "train/offload/storage_step.hpp"

namespace offstage::train {

inline tiers::DirectionTraffic direction(Bytes bytes, double seconds, double waited,
                                         double longest) {
  return {.bytes = bytes,
          .transfers = bytes / 10,
          .seconds = Seconds{seconds},
          .waited = Seconds{waited},
          .longest_wait = Seconds{longest}};
}

/// A half-duplex path, and an emulated one that is full duplex and lets two processes in.
inline std::vector<tiers::PathSettings> make_two_paths() {
  std::vector<tiers::PathSettings> paths(2);
  paths[0].directory = "/nvme";
  paths[1].directory = "/pfs";
  paths[1].duplex = tiers::Duplex::full;
  paths[1].processes = 2;
  paths[1].emulation = tiers::Emulation{.read_rate = 1e9};
  return paths;
}
inline std::vector<tiers::PathSettings> const two_paths = make_two_paths();

inline tiers::Traffic counters(std::int64_t factor) {
  auto const times = static_cast<double>(factor);
  return {.paths = {{direction(1000 * factor, 2.0 * times, 0.5 * times, 0.25),
                     direction(500 * factor, 1.0 * times, 0.25 * times, 0.125)},
                    {direction(100 * factor, 2.0 * times, 0.0, 0.0), {}}},
          .hits = 2 * factor,
          .misses = 3 * factor,
          .fetched_bytes = 2000 * factor,
          .fetch_seconds = Seconds{5.0 * times},
          .flush_seconds = Seconds{3.0 * times}};
}

inline StorageStep one_step() {
  return difference(counters(1), counters(2),
                    {.paths = two_paths,
                     .residence = {.host = 100, .paths = {200, 700}},
                     .workers = 4,
                     .nodes = 1,
                     .seconds = Seconds{4.0}});
}

}  // namespace offstage::train
