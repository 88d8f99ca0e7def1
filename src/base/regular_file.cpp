#include "base/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/users.hpp"

namespace offstage {
namespace {

IoError link_in_the_way(std::string const& action, std::string const& path) {
  return IoError{action + ' ' + path +
                 ": it is a symbolic link, which is never followed here; remove it, or use a "
                 "directory that nobody else writes to"};
}

IoError no_regular_file(std::string const& action, std::string const& path) {
  return IoError{action + ' ' + path +
                 ": it is no regular file; remove it, or use a directory that nobody else writes "
                 "to"};
}

/// Looks after the refusal, so what it finds explains it but decides nothing.
IoError refusal(std::string const& action, std::string const& path, int error_number) {
  if (error_number == ENOENT) {
    auto const directory = std::filesystem::path{path}.parent_path().string();
    return IoError{action + ' ' + path + ": there is no directory " + directory +
                   "; make it first"};
  }
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) {
    auto const owner = error_number == EACCES ? foreign_words(path) : "";
    return owner.empty() ? IoError{action, path, error_number}
                         : IoError{action + ' ' + path + ": " +
                                       std::generic_category().message(error_number) + owner +
                                       ", who may change its permissions (a group sets umask 002)",
                                   error_number};
  }
  return S_ISLNK(status.st_mode) ? link_in_the_way(action, path) : no_regular_file(action, path);
}

std::filesystem::file_status status_of(std::string const& path) {
  std::error_code error;
  auto const status = std::filesystem::status(path, error);
  if (error == std::errc::filename_too_long) {  // no file can be called so
    return std::filesystem::file_status{std::filesystem::file_type::not_found};
  }
  if (!std::filesystem::status_known(status)) {
    throw IoError{"cannot look at", path, error.value()};
  }
  return status;
}

/// Calls move(done) until `size` bytes have moved or it fails. Where it moves none, errno becomes
/// `at_none`. Returns the bytes that have moved.
template <class Move>
Bytes move_all(std::size_t size, int at_none, Move const& move) noexcept {
  std::size_t done = 0;
  while (done < size) {
    ssize_t const count = move(done);
    if (count == 0) {
      errno = at_none;
      break;
    }
    if (count < 0 && errno != EINTR) {
      break;
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return static_cast<Bytes>(done);
}

}  // namespace

int open_regular(std::string const& action, std::string const& path, int flags, unsigned mode) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ENOENT && (flags & O_CREAT) == 0) {
      return -1;
    }
    throw refusal(action, path, errno);
  }
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw no_regular_file(action, path);
  }
  return descriptor;
}

bool is_there(std::string const& path) {
  return std::filesystem::exists(status_of(path));
}

bool is_file(std::string const& path) {
  return std::filesystem::is_regular_file(status_of(path));
}

bool is_directory(std::string const& path) {
  return std::filesystem::is_directory(status_of(path));
}

bool is_empty_file(std::string const& path) noexcept {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0;
}

bool is_visible(std::string const& path) {
  try {
    return is_there(path);
  } catch (IoError const& error) {
    if (error.error_number() != EACCES) {
      throw;
    }
    return false;
  }
}

bool lead_to_one(std::string const& a, std::string const& b) {
  std::error_code error;
  bool const same = std::filesystem::equivalent(a, b, error);
  if (error) {
    throw IoError{"cannot compare " + a + " with", b, error.value()};
  }
  return same;
}

bool is_link(std::string const& path) noexcept {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

void refuse_link(std::string const& action, std::string const& path) {
  if (is_link(path)) {
    throw link_in_the_way(action, path);
  }
}

void rename_file(std::string const& action, std::string const& from, std::string const& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw IoError{action, to, errno};
  }
}

bool link_file(std::string const& from, std::string const& to) noexcept {
  if (::link(from.c_str(), to.c_str()) != 0) {
    return false;
  }
  struct stat one {};
  struct stat other {};
  if (::lstat(from.c_str(), &one) == 0 && ::lstat(to.c_str(), &other) == 0 &&
      one.st_dev == other.st_dev && one.st_ino == other.st_ino) {
    return true;
  }
  ::unlink(to.c_str());
  errno = EOPNOTSUPP;
  return false;
}

Bytes read_fully(int descriptor, std::span<std::byte> out, Bytes offset) noexcept {
  return move_all(out.size(), 0, [&](std::size_t done) {
    return ::pread(descriptor, out.data() + done, out.size() - done,
                   offset + static_cast<Bytes>(done));
  });
}

Bytes write_fully(int descriptor, std::span<std::byte const> bytes, Bytes offset) noexcept {
  return move_all(bytes.size(), EIO, [&](std::size_t done) {
    return ::pwrite(descriptor, bytes.data() + done, bytes.size() - done,
                    offset + static_cast<Bytes>(done));
  });
}

Bytes write_fully(int descriptor, std::string_view text) noexcept {
  return move_all(text.size(), EIO, [&](std::size_t done) {
    return ::write(descriptor, text.data() + done, text.size() - done);
  });
}

OutputFile::OutputFile(std::string context, std::string path, int flags)
    : context_{std::move(context)},
      path_{std::move(path)},
      descriptor_{open_regular(context_ + ": cannot open", path_, O_WRONLY | O_CREAT | flags)} {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

std::string OutputFile::own_name() const {
  return "/proc/self/fd/" + std::to_string(descriptor_);
}

void OutputFile::write(std::string_view text) {
  if (write_fully(descriptor_, text) < std::ssize(text)) {
    fail("write");
  }
}

Bytes OutputFile::size() const {
  struct stat found {};
  if (::fstat(descriptor_, &found) != 0) {
    fail("look at");
  }
  return found.st_size;
}

void OutputFile::shorten(Bytes size) {
  if (::ftruncate(descriptor_, size) != 0) {
    fail("shorten");
  }
}

void OutputFile::sync() {
  if (TEMP_FAILURE_RETRY(::fsync(descriptor_)) != 0) {
    fail("sync");
  }
}

void OutputFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    fail("write");
  }
}

void OutputFile::fail(char const* action) const {
  throw IoError{context_ + ": cannot " + action, path_, errno};
}

namespace {

/// `path`, at which a file or nothing is. The file may be another user's: it is replaced, not
/// written.
std::string checked(std::string const& context, std::string path) {
  std::string const action = context + ": cannot replace";
  refuse_link(action, path);
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw no_regular_file(action, path);
  }
  return path;
}

}  // namespace

WholeFile::WholeFile(std::string const& context, std::string path)
    : context_{context},
      path_{checked(context, std::move(path))},
      draft_{context, path_ + "." + std::to_string(::getpid()) + ".tmp", O_TRUNC} {}

WholeFile::~WholeFile() {
  if (!is_whole_) {
    ::unlink(draft_.path().c_str());
  }
}

void WholeFile::commit(std::string_view text) {
  draft_.write(text);
  draft_.close();
  rename_file(context_ + ": cannot replace", draft_.path(), path_);
  is_whole_ = true;
}

}  // namespace offstage
