#include "data/part_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/error.hpp"

namespace offstage::data {

void refuse_existing(std::string const& path, char const* what) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    throw UsageError{fmt::format("{} is there already; {}", path, what)};
  }
}

void sync_directory(std::string const& file) {
  auto folder = std::filesystem::path{file}.parent_path();
  int const descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  bool const done = descriptor >= 0 && fsync(descriptor) == 0;
  int const error = errno;
  if (descriptor >= 0) {
    close(descriptor);
  }
  if (!done && error != EINVAL) {
    throw IoError{"cannot write", folder.empty() ? "." : folder.string(), error};
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
  while (!bytes.empty()) {
    auto const count = pwrite(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw IoError{"cannot write", part_, errno};
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void PartFile::read_at(Bytes offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    auto const count = pread(file_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw IoError{"cannot read again", part_, count < 0 ? errno : EIO};
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void PartFile::sync() {
  flush();
  if (fsync(file_) != 0) {
    throw IoError{"cannot write", part_, errno};
  }
}

}  // namespace offstage::data
