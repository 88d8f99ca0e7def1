#pragma once

#include <string>

#include "platform/aio/file.hpp"

namespace offstage::tiers {

/// Inside its directory, for the moment that it has a name.
constexpr char const* spill_file_name = "extents";

/// A file of `size` bytes that no directory names: made in `directory`/`name` (0600 in 0700),
/// unlinked together with that directory, and only then allocated. Nothing is left behind, however
/// the process ends. An empty directory that a killed process left is taken over.
/// Errors: IoError with the key tiers.path, the path and the remedy: the directory is missing, is none,
///         is not writable or has no space; `directory`/`name` exists and is not empty.
[[nodiscard]] aio::File make_spill_file(std::string const& directory, std::string const& name,
                                        Bytes size);

}  // namespace offstage::tiers
