#include "data/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.hpp"
#include "base/lfs_pointer.hpp"
#include "base/pauses.hpp"
#include "base/regular_file.hpp"
#include "base/watch.hpp"

namespace offstage::data {
namespace {

/// True if the path leads to nothing that this user can read, whenever it is asked.
bool is_unreadable(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EACCES:
    case EPERM:
    case ENXIO:
      return true;
    default:
      return false;
  }
}

/// Opening a pipe must not block: it is refused by name.
int open_to_read(std::string const& path) {
  int descriptor = -1;
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

void ByteSource::fail(std::string const& problem) const {
  throw DataError{fmt::format("{}: {}", name(), problem)};
}

InputFile::Descriptor::Descriptor(std::string const& path) : value_{open_to_read(path)} {}

InputFile::Descriptor::~Descriptor() {
  if (value_ >= 0) {
    close(value_);
  }
}

InputFile::InputFile(std::string const& path, std::string const& key)
    : path_{path}, key_{key}, file_{path} {
  struct stat status {};
  if (file_.get() < 0 || fstat(file_.get(), &status) != 0) {
    int const error = errno;
    std::string const why = "cannot open: " + error_text(error, path);
    if (is_unreadable(error)) {
      fail(why + "; name a readable file");
    }
    throw IoError{name() + ": " + why, error};
  }
  if (S_ISDIR(status.st_mode)) {
    fail(
        "not a regular file but a directory; name the files in it: a pattern such as '*.bin' "
        "stands for several");
  }
  if (!S_ISREG(status.st_mode)) {
    fail("not a regular file; name a file");
  }
  if (status.st_size == 0) {
    fail("the file is empty; name a file with something in it");
  }
  size_ = status.st_size;
  modified_ = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

std::string InputFile::name() const {
  return key_.empty() ? path_ : key_ + '=' + path_;
}

void InputFile::read(Bytes offset, std::span<std::byte> out) const {
  auto const size = static_cast<Bytes>(out.size());
  require(offset >= 0 && size <= size_ && offset <= size_ - size, "InputFile: read beyond the end");
  Waiting const waiting{"a read of a data file, offset", offset};
  try_patiently([&] { try_to_read(offset, out); });
}

void InputFile::try_to_read(Bytes offset, std::span<std::byte> out) const {
  auto const size = static_cast<Bytes>(out.size());
  Bytes const done = read_fully(file_.get(), out, offset);
  if (done < size && errno != 0) {
    throw IoError{fmt::format("{}: cannot read at byte {}: {}", name(), offset + done,
                              std::generic_category().message(errno))};
  }
  if (done < size) {
    fail(fmt::format(
        "the file had {} bytes when it was opened and now ends before byte {}; leave it as it "
        "is while a run reads it",
        size_, offset + done));
  }
}

std::string read_whole(InputFile const& file, Bytes most, std::string const& too_large) {
  if (file.size() > most) {
    file.fail(too_large);
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span{text}));
  if (is_lfs_pointer(text)) {
    file.fail(lfs_pointer_advice);
  }
  return text;
}

namespace {

bool looks(bool (*is)(std::string const&), std::string const& path, std::string const& key) {
  try {
    return is(path);
  } catch (IoError const& error) {
    auto const named = fmt::format("{}{}{}", key, key.empty() ? "" : "=", path);
    if (error.error_number() == EACCES) {
      throw DataError{fmt::format("{}: cannot look at it: {}; name a readable file", named,
                                  std::generic_category().message(EACCES))};
    }
    throw IoError{"cannot look at", named, error.error_number()};
  }
}

}  // namespace

bool input_is_there(std::string const& path, std::string const& key) {
  return looks(is_there, path, key);
}
bool input_is_file(std::string const& path, std::string const& key) {
  return looks(is_file, path, key);
}

}  // namespace offstage::data
