#include "platform/aio/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::aio {
namespace {

struct stat status_of(int descriptor, std::string const& path) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    throw IoError{"cannot ask for the size of", path, errno};
  }
  return status;
}

Bytes free_of(struct statvfs const& system) {
  return static_cast<Bytes>(system.f_bavail) * static_cast<Bytes>(system.f_frsize);
}

[[noreturn]] void throw_no_space(std::string const& path, Bytes needed, Bytes free) {
  throw IoError{"cannot allocate " + path + ": it needs " + format_bytes(needed) + ", but " +
                format_bytes(free) + " is free there"};
}

}  // namespace

File File::open(std::string const& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    throw IoError{(flags & O_CREAT) != 0 ? "cannot create" : "cannot open", path, errno};
  }
  // Set afterwards: where O_DIRECT is refused, open with O_CREAT would fail and leave the file.
  int const current = fcntl(descriptor, F_GETFL);
  bool const direct = current >= 0 && fcntl(descriptor, F_SETFL, current | O_DIRECT) == 0;
  return {descriptor, direct, path};
}

File File::create(std::string const& path) {
  return open(path, O_RDWR | O_CREAT | O_EXCL);
}
File File::open_read(std::string const& path) {
  return open(path, O_RDONLY);
}
File File::open_read_write(std::string const& path) {
  return open(path, O_RDWR);
}

Bytes File::size() const {
  return status_of(descriptor_, path_).st_size;
}

void File::allocate(Bytes size) const {
  require(size > 0, "File::allocate: size must be above 0");
  // Ask first: ext4 hands out all that is free before it says that the space does not suffice.
  struct statvfs system {};
  if (fstatvfs(descriptor_, &system) != 0) {
    throw IoError{"cannot ask for the free space of", path_, errno};
  }
  Bytes const held = status_of(descriptor_, path_).st_blocks * 512;
  if (size - held > free_of(system)) {
    throw_no_space(path_, size - held, free_of(system));
  }
  Waiting const waiting{"fallocate"};
  int status = 0;
  do {
    status = fallocate(descriptor_, 0, 0, size);
  } while (status != 0 && errno == EINTR);
  // Some network file systems cannot reserve: then the length alone has to do.
  if (status != 0 && errno == EOPNOTSUPP) {
    status = ftruncate(descriptor_, size);
  }
  if (status == 0) {
    return;
  }
  if (errno == ENOSPC) {
    throw_no_space(path_, size - held, free_of(system));
  }
  throw IoError{"cannot allocate " + format_bytes(size) + " in", path_, errno};
}

void File::sync() const {
  Waiting const waiting{"fdatasync"};
  if (fdatasync(descriptor_) != 0) {
    throw IoError{"cannot sync", path_, errno};
  }
}

void File::reset() noexcept {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  descriptor_ = -1;
}

void sync_directory(std::string const& path) {
  int const descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    throw IoError{"cannot open the directory", path, errno};
  }
  Waiting const waiting{"fsync of a directory"};
  int const error = fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) {
    throw IoError{"cannot sync the directory", path, error};
  }
}

Bytes free_bytes(std::string const& path) {
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) != 0) {
    throw IoError{"cannot ask for the free space of", path, errno};
  }
  return free_of(system);
}

}  // namespace offstage::aio
