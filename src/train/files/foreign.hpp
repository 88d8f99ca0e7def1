#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/error.hpp"

namespace offstage::train {

/// The owner of a directory, in words, if that is another user than `me` and root. Such a user
/// could have put links or checkpoints there. None if `me` only has another name on its file
/// system, as root has on an NFS that squashes it: files that this process makes there have the
/// same owner. Symbolic links are followed. Errors: IoError if the directory cannot be looked at.
[[nodiscard]] std::optional<std::string> foreign_owner(std::string const& directory, uid_t me);

/// The error for `what`, as in "run.dir=/scratch/a", which belongs to `owner` (foreign_owner).
[[nodiscard]] IoError not_yours(std::string const& what, std::string const& owner);

}  // namespace offstage::train
