#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.hpp"
#include "plan/split.hpp"

namespace offstage::probe {

/// Figures that a rank measures, in the order of the table.
enum class Figure {
  to_device,
  to_host,
  to_device_both,
  to_host_both,
  to_device_pageable,
  to_host_pageable,
  cpu_update,
  device_update,
  host_memory,
  product,
  block_forward,
  block_backward,
  accumulation,
  rank_link,
};
constexpr std::size_t figure_count = 14;

/// Figures of one rank, indexed by Figure: bytes, elements or operations per second; 0: not
/// measured.
using Figures = std::array<double, figure_count>;

/// For the table: "host to device, pinned". For a config: "host-to-device", or empty.
[[nodiscard]] std::string_view name_of(Figure figure);
[[nodiscard]] std::string_view key_of(Figure figure);
/// "25.1 GB/s", "1.93 G/s", "392 GFLOP/s": three significant figures.
[[nodiscard]] std::string format(Figure figure, double value);

/// Figures of all ranks, by rank: each rank alone on its node, and then all together.
struct Measured {
  std::vector<Figures> alone;
  std::vector<Figures> together;  ///< empty if there is one rank
  std::vector<std::string> hosts;
};

/// Lines of a table: figure, median alone, median together; the least beside where ranks differ by
/// more than a twentieth.
[[nodiscard]] std::vector<std::string> table(Measured const& measured);

/// One line for every rank and figure under 0.8 of the ranks' median: figure, rank, host, by how
/// much.
[[nodiscard]] std::vector<std::string> outliers(Measured const& measured);

/// A storage path and what was measured there, by node.
struct ProbedPath {
  std::string text;  ///< as tiers.path is written
  std::vector<plan::PathRate> rates;
  std::vector<std::string> hosts;
};
[[nodiscard]] std::vector<std::string> table(std::span<ProbedPath const> paths);
[[nodiscard]] std::vector<std::string> outliers(std::span<ProbedPath const> paths);

/// Lines of a config beside the figures.
struct Occasion {
  std::string version, date, device;
  std::string emulation;  ///< device.emulate; empty: none
  bool on_host{};         ///< the device is the emulated one
  int nodes = 1;
  int threads{};  ///< per rank
};

/// A config file that train and plan accept: [platform] with the medians of all ranks together,
/// [device] of an emulated one, and [tiers] with read= and write= of each path. Paths are made
/// absolute.
[[nodiscard]] std::string platform_config(Measured const& measured,
                                          std::span<ProbedPath const> paths,
                                          Occasion const& occasion);

}  // namespace offstage::probe
