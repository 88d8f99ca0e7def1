#include "huggingface/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/lfs_pointer.hpp"
#include "base/regular_file.hpp"
#include "base/watch.hpp"

namespace offstage::huggingface {

File File::open_read(std::string const& path) {
  if (access(path.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw DataError{path + ": there is no such file"};
  }
  // A pipe in its place must not block the open.
  File file{path, O_RDONLY | O_NONBLOCK};
  struct stat status {};
  if (fstat(file.descriptor(), &status) != 0) {
    throw IoError{"cannot look at", path, errno};
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError{path + ": is no regular file"};
  }
  return file;
}

File File::open_write(std::string const& path) {
  return {path, O_WRONLY | O_NOFOLLOW};
}

File File::create(std::string const& path) {
  return {path, O_WRONLY | O_CREAT | O_EXCL};
}

void File::read_at(Bytes offset, std::span<std::byte> out) const {
  Waiting const waiting{"a read of a model's file, offset", offset};
  Bytes const done = read_fully(descriptor(), out, offset);
  if (Bytes const rest = std::ssize(out) - done; rest > 0) {
    if (errno != 0) {
      throw IoError{fmt::format("cannot read {} bytes at {} of", rest, offset + done), path(),
                    errno};
    }
    throw DataError{fmt::format("{}: ends at {}, {} bytes too early; it was cut meanwhile", path(),
                                offset + done, rest)};
  }
}

void File::write_at(Bytes offset, std::span<std::byte const> bytes) const {
  Bytes const done = write_fully(descriptor(), bytes, offset);
  if (Bytes const rest = std::ssize(bytes) - done; rest > 0) {
    throw IoError{fmt::format("cannot write {} bytes at {} of", rest, offset + done), path(),
                  errno};
  }
}

void File::allocate(Bytes size) const {
  if (int const error = reserve(size); error != 0) {
    throw IoError{"cannot allocate " + format_bytes(size) + " in", path(), error};
  }
}

void File::sync() const {
  if (TEMP_FAILURE_RETRY(fsync(descriptor())) != 0) {
    throw IoError{"cannot sync", path(), errno};
  }
}

std::optional<std::string> first_name(std::string const& directory,
                                      bool (*is_such)(std::string const&)) {
  std::optional<std::string> first;
  std::error_code error;
  for (std::filesystem::directory_iterator entry{directory, error}, end; !error && entry != end;
       entry.increment(error)) {
    std::string const name = entry->path().filename();
    if (is_such(name) && (!first || name < *first)) {
      first = name;
    }
  }
  return first;
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
  if (is_lfs_pointer(text)) {
    throw DataError{fmt::format("{}: {}", path, lfs_pointer_advice)};
  }
  return text;
}

}  // namespace offstage::huggingface
