#include "checkpoint/permissions.hpp"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace offstage::checkpoint {
namespace {

constexpr char const* access_list = "system.posix_acl_access";

}  // namespace

std::optional<Permissions> permissions_of(std::string const& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  constexpr mode_t of_mode = 07777;
  Permissions found{.mode = status.st_mode & of_mode, .group = status.st_gid};
  std::array<char, 4096> text{};
  if (auto const size = ::getxattr(path.c_str(), access_list, text.data(), text.size()); size > 0) {
    found.list.assign(text.data(), static_cast<std::size_t>(size));
  }
  return found;
}

bool give_permissions(Permissions const& wanted, std::string const& path) {
  auto const has = permissions_of(path);
  if (!has) {
    return false;
  }
  if (wanted.mode == has->mode && wanted.group == has->group && wanted.list == has->list) {
    return true;
  }
  constexpr auto same_owner = static_cast<uid_t>(-1);
  bool good = wanted.group == has->group || ::chown(path.c_str(), same_owner, wanted.group) == 0;
  int const refused = errno;
  if (wanted.list.empty() && !has->list.empty()) {
    good = ::removexattr(path.c_str(), access_list) == 0 && good;
  }
  // After the group, whose change may take bits of it, and before the list, which it would change.
  // Where the group is another one it gets no right to write.
  mode_t const mode = good ? wanted.mode : wanted.mode & ~static_cast<mode_t>(S_IWGRP);
  bool const is_set = ::chmod(path.c_str(), mode) == 0;
  bool const is_listed =
      wanted.list.empty() ||
      ::setxattr(path.c_str(), access_list, wanted.list.data(), wanted.list.size(), 0) == 0;
  if (!good) {
    errno = refused;
  }
  return good && is_set && is_listed;
}

}  // namespace offstage::checkpoint
