#include "base/file_lock.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace offstage {

unsigned mode_of_lock(std::string const& path) {
  auto const directory = std::filesystem::absolute(path).parent_path();
  struct stat status {};
  bool const is_known = ::stat(directory.c_str(), &status) == 0;
  bool const is_of_group = is_known && (status.st_mode & S_IWGRP) != 0 &&
                           ((status.st_mode & S_ISGID) != 0 || status.st_gid == ::getegid());
  return is_of_group ? 0660 : 0600;
}

FileLock lock_file(int descriptor, std::string const& action, std::string const& path) {
  struct flock whole_file {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &whole_file) == 0) {
    return FileLock::held;
  }
  switch (errno) {
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return FileLock::missing;
    case EAGAIN:
    case EACCES:
      return FileLock::elsewhere;
    default:
      throw IoError{action, path, errno};
  }
}

std::string cause_of_local_locks(int descriptor, std::string const& root) {
  constexpr std::array<std::string_view, 6> local{
      "localflock", "localflocks", "local_lock=all", "local_lock=posix", "nolock", "nobrl"};
  struct stat here {};
  if (::fstat(descriptor, &here) != 0) {
    return {};
  }
  std::string const device =
      std::to_string(major(here.st_dev)) + ":" + std::to_string(minor(here.st_dev));
  // "36 35 98:0 /root /place rw,noatime shared:1 - nfs server:/export rw,vers=3,nolock"
  std::ifstream mounts{root + "/proc/self/mountinfo"};
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words{line};
    std::string id, parent, number;
    words >> id >> parent >> number;
    if (number != device) {
      continue;
    }
    if (line.find(" - beegfs ") != std::string::npos) {
      return "BeeGFS, unless its tuneUseGlobalFileLocks is on";
    }
    std::istringstream options{line.substr(line.rfind(' ') + 1)};
    for (std::string option; std::getline(options, option, ',');) {
      if (std::ranges::find(local, option) != local.end()) {
        return "the mount option " + option;
      }
    }
  }
  return {};
}

bool is_file_at(std::string const& path, int descriptor) {
  struct stat mine {};
  struct stat there {};
  return ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

}  // namespace offstage
