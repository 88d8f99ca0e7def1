#include "data/part_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/regular_file.hpp"

namespace offstage::data {

void refuse_existing(std::string const& path, char const* what) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    throw UsageError{fmt::format("{} is there already; {}", path, what)};
  }
}

std::string part_of(std::string const& path) {
  return path + ".part";
}

PartFile::PartFile(std::string path, std::optional<Bytes> begun)
    : path_{std::move(path)}, part_{part_of(path_)} {
  refuse_existing(path_, "it is never overwritten; remove it or use another prefix");
  bool const is_there = begun.value_or(0) > 0;
  int const flags = is_there ? 0 : (begun ? O_CREAT : O_CREAT | O_EXCL);
  file_ = open(part_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0666);
  if (file_ < 0 && errno == EEXIST) {
    refuse_existing(part_, "no pack says that it left it; remove it or use another prefix");
  }
  if (file_ < 0) {
    throw IoError{is_there ? "cannot go on with" : "cannot create", part_, errno};
  }
  kept_ = is_there;
  try {
    buffer_.reserve(static_cast<std::size_t>(MiB));
    cut(begun.value_or(0));
  } catch (...) {
    close(file_);
    throw;
  }
}

PartFile::~PartFile() {
  close(file_);
  if (!kept_) {
    unlink(part_.c_str());
  }
}

void PartFile::cut(Bytes size) {
  struct stat status {};
  if (fstat(file_, &status) != 0) {
    throw IoError{"cannot look at", part_, errno};
  }
  if (status.st_size < size) {
    throw DataError{fmt::format(
        "{} has {} bytes, but a pack wrote {} to it; remove the .part files to begin anew", part_,
        status.st_size, size)};
  }
  if (status.st_size > size && ftruncate(file_, size) != 0) {
    throw IoError{"cannot cut", part_, errno};
  }
  size_ = size;
}

void PartFile::append(std::span<std::byte const> bytes) {
  if (buffer_.size() + bytes.size() > buffer_.capacity()) {
    flush();
  }
  if (bytes.size() > buffer_.capacity()) {
    write_at(size_, bytes);
    size_ += static_cast<Bytes>(bytes.size());
    return;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void PartFile::flush() {
  write_at(size_, buffer_);
  size_ += static_cast<Bytes>(buffer_.size());
  buffer_.clear();
}

void PartFile::write_at(Bytes offset, std::span<std::byte const> bytes) {
  if (write_fully(file_, bytes, offset) < std::ssize(bytes)) {
    throw IoError{"cannot write", part_, errno};
  }
}

void PartFile::read_at(Bytes offset, std::span<std::byte> out) const {
  if (read_fully(file_, out, offset) < std::ssize(out)) {
    throw IoError{"cannot read again", part_, errno == 0 ? EIO : errno};
  }
}

void PartFile::sync() {
  flush();
  if (TEMP_FAILURE_RETRY(fsync(file_)) != 0) {
    throw IoError{"cannot write", part_, errno};
  }
}

}  // namespace offstage::data
