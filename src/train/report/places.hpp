#pragma once

#include <span>
#include <string>
#include <vector>

namespace offstage::train {

/// The place of one rank, for the header.
struct PlaceLine {
  std::string node;   ///< the node's name
  std::string place;  ///< place on the node: GPU, NUMA domain, cores, threads
};

/// Names as one text. Names that differ in a number at their end are joined: "node[1-3,7]"; others
/// are separated by commas. They are in the order of names; digits keep their leading zeros.
[[nodiscard]] std::string join_names(std::vector<std::string> names);

/// Lines on the places of all ranks: one for each rank of a node that is unlike all others, and one
/// for each group of nodes whose ranks have the same places, "node[1-64]: 4 ranks each (0-255): GPU
/// ...; GPU ...". `ranks` are in rank order. Pure.
[[nodiscard]] std::vector<std::string> describe_places(std::span<PlaceLine const> ranks);

}  // namespace offstage::train
