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

/// Up to format 3, the one dataset of an extent file: FP32, one-dimensional; p, m and v follow each other from its
/// start.
constexpr char const* extent_dataset = "/extent";
/// Where the tiers' slots have their names, inside a directory of checkpoints.
constexpr char const* slots_name = "slots";

/// Reserves the planes of an extent of N elements, each a dataset below `place`, one right after the other. Returns
/// where they begin; none if HDF5 has put something between them, for want of room for its bookkeeping. Errors: IoError.
[[nodiscard]] std::optional<Bytes> reserve_planes(h5::File& file, std::string const& place,
                                                  StateLayout const& layout, std::int64_t elements);

/// Errors: DataError naming `path` if the planes do not stand there as reserve_planes puts them.
void require_planes(h5::File const& file, std::string const& path, std::string const& place,
                    StateLayout const& layout, std::int64_t elements, Bytes offset);

/// What a file that holds one extent of N elements has before it, as HDF5 makes it: with a dataset for each plane.
/// Equally long for all N. `scratch`: a name for a file that is there for a moment.
/// Errors: IoError.
[[nodiscard]] std::vector<std::byte> extent_head(std::string const& scratch,
                                                 StateLayout const& layout, std::int64_t elements);

/// Whether files of `from` may have names in `to`: hard links, on one file system. Tries it with a file called `name`, in
/// both for a moment. Errors: IoError if none can be made in `from`.
[[nodiscard]] bool may_link(std::string const& from, std::string const& to,
                            std::string const& name);

/// What tiers need to write slots that are HDF5 files with an extent of N elements, or fewer: see README.md. Makes the
/// directory for their names, durably, and a file in it for a moment.
/// Errors: IoError.
[[nodiscard]] tiers::KeptFileShape shape_of_slots(std::string const& checkpoints, int rank,
                                                  StateLayout const& layout, std::int64_t elements);

/// Removes the names of slots that a killed run left, and their directory if it is empty; frees what no
/// checkpoint has. Whoever calls this holds the lock of `checkpoints` and has no slots. Errors: IoError.
void remove_old_slots(std::string const& checkpoints);

}  // namespace offstage::checkpoint
