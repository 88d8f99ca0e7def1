#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "platform/h5/file.hpp"
#include "tiers/kept_files.hpp"

namespace offstage::checkpoint {

/// The one dataset of an extent file up to format 3: FP32, one-dimensional. p, m and v follow each
/// other from its start.
constexpr char const* extent_dataset = "/extent";
/// The directory inside a directory of checkpoints in which the tiers' slots have their names.
constexpr char const* slots_name = "slots";

/// Reserves the planes of an extent of N elements, each a dataset below `place`, one right after
/// the other. Returns the offset of the first one; none if HDF5 has put its bookkeeping between
/// them, as it had no other room for it. Errors: IoError.
[[nodiscard]] std::optional<Bytes> reserve_planes(h5::File& file, std::string const& place,
                                                  StateLayout const& layout, std::int64_t elements);

/// Checks that the planes lie at `offset` as reserve_planes puts them.
/// Errors: DataError naming `path` if they do not.
void require_planes(h5::File const& file, std::string const& path, std::string const& place,
                    StateLayout const& layout, std::int64_t elements, Bytes offset);

/// The bytes in front of the extent in a file that holds one extent of N elements. HDF5 makes them,
/// with a dataset for each plane. They are equally many for all N. `scratch` names a file that
/// exists for a moment.
/// Errors: IoError.
[[nodiscard]] std::vector<std::byte> extent_head(std::string const& scratch,
                                                 StateLayout const& layout, std::int64_t elements);

/// Returns whether files of `from` can have a second name (a hard link) in `to`, which has to be on
/// the same file system. Tries it with a file called `name`, which is in both for a moment.
/// Errors: IoError if no file can be made in `from`.
[[nodiscard]] bool may_link(std::string const& from, std::string const& to,
                            std::string const& name);

/// The shape by which tiers write slots that are HDF5 files with an extent of at most N elements:
/// see README.md. Makes the directory for their names, durably, and a file in it for a moment.
/// Errors: IoError.
[[nodiscard]] tiers::KeptFileShape shape_of_slots(std::string const& checkpoints, int rank,
                                                  StateLayout const& layout, std::int64_t elements);

/// Removes the names of slots that a killed run left, and their directory if it is empty. Space
/// that no checkpoint uses becomes free. The caller holds the lock of `checkpoints` and has no
/// slots. Errors: IoError.
void remove_old_slots(std::string const& checkpoints);

}  // namespace offstage::checkpoint
