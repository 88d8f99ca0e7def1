#pragma once

#include <span>
#include <string>
#include <vector>

namespace offstage::train {

/// Where one rank runs, for the header.
struct PlaceLine {
  std::string node;   ///< its name
  std::string place;  ///< on the node: GPU, NUMA domain, cores, threads
};

/// Names that differ in a number at their end as one: "node[1-3,7]"; others apart, by commas. In
/// the order of names; digits keep their leading zeros.
[[nodiscard]] std::string join_names(std::vector<std::string> names);

/// A line for each rank of a node that is unlike all others, and one for each group of nodes whose
/// ranks have the same places: "node[1-64]: 4 ranks each (0-255): GPU ...; GPU ...". `ranks` in
/// rank order. Pure.
[[nodiscard]] std::vector<std::string> describe_places(std::span<PlaceLine const> ranks);

}  // namespace offstage::train
