#include "base/file_lock.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/error.hpp"

namespace offstage {

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

bool is_file_at(std::string const& path, int descriptor) {
  struct stat mine {};
  struct stat there {};
  return ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

}  // namespace offstage
