#pragma once

#include <string>

#include "base/units.hpp"
#include "tiers/kept_files.hpp"

namespace offstage::checkpoint {

/// The one dataset of an extent file: FP32, one-dimensional; p, m and v follow each other from its
/// start.
constexpr char const* extent_dataset = "/extent";
/// Where the tiers' slots have their names, inside a directory of checkpoints.
constexpr char const* slots_name = "slots";

/// What tiers need to write slots that are HDF5 files with `extent_dataset`: see README.md.
/// `slot_bytes`: of the largest extent. Makes the directory for their names, durably, and a file in it
/// for a moment.
/// Errors: IoError.
[[nodiscard]] tiers::KeptFileShape shape_of_slots(std::string const& checkpoints, int rank,
                                                  Bytes slot_bytes);

/// Removes the names of slots that a killed run left, and their directory if it is empty; frees what no
/// checkpoint has. Whoever calls this holds the lock of `checkpoints` and has no slots. Errors: IoError.
void remove_old_slots(std::string const& checkpoints);

}  // namespace offstage::checkpoint
