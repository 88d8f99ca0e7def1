#include "platform/aio/descriptor.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"

namespace offstage::aio {

Descriptor::Descriptor(std::string path, int flags, unsigned mode) : path_{std::move(path)} {
  do {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    throw IoError{(flags & O_CREAT) != 0 ? "cannot create" : "cannot open", path_, errno};
  }
}

Bytes Descriptor::size() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) {
    throw IoError{"cannot ask for the size of", path_, errno};
  }
  return status.st_size;
}

int Descriptor::reserve(Bytes size) const noexcept {
  int status = 0;
  do {
    status = fallocate(descriptor_, 0, 0, size);
  } while (status != 0 && errno == EINTR);
  // Some network file systems and sandboxes cannot reserve: then the length alone has to do.
  if (status != 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPERM)) {
    status = ftruncate(descriptor_, size);
  }
  return status == 0 ? 0 : errno;
}

void Descriptor::reset() noexcept {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  descriptor_ = -1;
}

}  // namespace offstage::aio
