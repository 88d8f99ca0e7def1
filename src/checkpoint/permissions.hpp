#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace offstage::checkpoint {

/// Facts that decide who may read a file.
struct Permissions {
  mode_t mode{};
  gid_t group{};
  std::string list{};  ///< POSIX access list, as its extended attribute has it; empty: none
};

/// None, with errno, if the file cannot be looked at.
[[nodiscard]] std::optional<Permissions> permissions_of(std::string const& path);

/// Gives them to a file. Returns false, with errno, if the system refuses a part; the rest is
/// given.
[[nodiscard]] bool give_permissions(Permissions const& wanted, std::string const& path);

}  // namespace offstage::checkpoint
