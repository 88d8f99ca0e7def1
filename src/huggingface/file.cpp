#include "huggingface/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::huggingface {
namespace {

int open_descriptor(std::string const& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

struct stat status_of(int descriptor, std::string const& path) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    throw IoError{"cannot ask for the size of", path, errno};
  }
  return status;
}

}  // namespace

File File::open_read(std::string const& path) {
  // A pipe in its place must not block the open.
  int const descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw DataError{path + ": there is no such file"};
    }
    throw IoError{"cannot open", path, errno};
  }
  File file{descriptor, path};
  if (!S_ISREG(status_of(descriptor, path).st_mode)) {
    throw DataError{path + ": is no regular file"};
  }
  return file;
}

File File::open_write(std::string const& path) {
  int const descriptor = open_descriptor(path, O_WRONLY);
  if (descriptor < 0) {
    throw IoError{"cannot open", path, errno};
  }
  return {descriptor, path};
}

File File::create(std::string const& path) {
  int const descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (descriptor < 0) {
    throw IoError{"cannot create", path, errno};
  }
  return {descriptor, path};
}

Bytes File::size() const {
  return status_of(descriptor_, path_).st_size;
}

void File::read_at(Bytes offset, std::span<std::byte> out) const {
  Waiting const waiting{"a read of a model's file, offset", offset};
  while (!out.empty()) {
    ssize_t const moved = pread(descriptor_, out.data(), out.size(), offset);
    if (moved < 0 && errno == EINTR) {
      continue;
    }
    if (moved < 0) {
      throw IoError{fmt::format("cannot read {} bytes at {} of", out.size(), offset), path_, errno};
    }
    if (moved == 0) {
      throw DataError{fmt::format("{}: ends at {}, {} bytes too early; it was cut meanwhile", path_,
                                  offset, out.size())};
    }
    offset += moved;
    out = out.subspan(static_cast<std::size_t>(moved));
  }
}

void File::write_at(Bytes offset, std::span<std::byte const> bytes) const {
  while (!bytes.empty()) {
    ssize_t const moved = pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (moved < 0 && errno == EINTR) {
      continue;
    }
    if (moved <= 0) {
      throw IoError{fmt::format("cannot write {} bytes at {} of", bytes.size(), offset), path_,
                    moved < 0 ? errno : EIO};
    }
    offset += moved;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
}

void File::allocate(Bytes size) const {
  int status = 0;
  do {
    status = fallocate(descriptor_, 0, 0, size);
  } while (status != 0 && errno == EINTR);
  // Some network file systems cannot reserve: then the length alone has to do.
  if (status != 0 && errno == EOPNOTSUPP) {
    status = ftruncate(descriptor_, size);
  }
  if (status != 0) {
    throw IoError{"cannot allocate " + format_bytes(size) + " in", path_, errno};
  }
}

void File::sync() const {
  if (fsync(descriptor_) != 0) {
    throw IoError{"cannot sync", path_, errno};
  }
}

void File::reset() noexcept {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  descriptor_ = -1;
}

std::string read_text(std::string const& path, Bytes limit) {
  File const file = File::open_read(path);
  Bytes const size = file.size();
  if (size > limit) {
    throw DataError{fmt::format("{}: its size of {} is beyond the limit of {}", path,
                                format_bytes(size), format_bytes(limit))};
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read_at(0, std::as_writable_bytes(std::span{text}));
  return text;
}

}  // namespace offstage::huggingface
