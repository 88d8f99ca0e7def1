#include "platform/aio/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <optional>
#include <ranges>
#include <system_error>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/watch.hpp"

namespace offstage::aio {

namespace fs = std::filesystem;

namespace {

/// A file system without a limit, or that does not know, says that it has no blocks, or more than
/// can be counted in bytes.
Bytes free_of(struct statvfs const& system) {
  constexpr Bytes most = std::numeric_limits<Bytes>::max();
  Bytes free{};
  bool const is_beyond = __builtin_mul_overflow(system.f_bavail, system.f_frsize, &free);
  return system.f_blocks == 0 || is_beyond ? most : free;
}

[[noreturn]] void throw_no_space(std::string const& path, Bytes needed, std::optional<Bytes> free) {
  std::string why = "so much is not free there";
  if (free) {
    why = format_bytes(*free) + " is free there";
    if (*free >= needed) {
      why += " in all: a quota, or one storage target of several, is full";
    }
  }
  throw IoError{"cannot allocate " + path + ": it needs " + format_bytes(needed) + ", but " + why,
                ENOSPC};
}

/// Nothing where the file system does not tell, and for an open file whose name is gone, where the
/// file system (GlusterFS) then knows no volume of it.
std::optional<Bytes> free_beside(Descriptor const& file) {
  struct statvfs system {};
  if (fstatvfs(file.descriptor(), &system) == 0) {
    return system.f_blocks == 0 ? std::nullopt : std::optional{free_of(system)};
  }
  if (errno == ESTALE) {
    return std::nullopt;
  }
  throw IoError{"cannot ask for the free space of", file.path(), errno};
}

/// Removes those that are empty, the last one first.
void remove_empty(std::vector<std::string> const& directories) noexcept {
  for (std::string const& directory : directories | std::views::reverse) {
    rmdir(directory.c_str());
  }
}

/// Syncs a directory, unless it may be written but not read by this user.
void sync_if_allowed(std::string const& path) {
  try {
    sync_directory(path);
  } catch (IoError const& error) {
    if (error.error_number() != EACCES) {
      throw;
    }
  }
}

/// Creates what is missing of a path and adds it to `made`.
void make_missing(fs::path const& path, std::vector<std::string>& made) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return;
  }
  fs::path const parent = path.parent_path();
  if (parent != path) {
    make_missing(parent, made);
  }
  if (mkdir(path.c_str(), 0777) == 0) {
    made.push_back(path.string());
    sync_if_allowed(parent.string());
  } else if (errno != EEXIST || !fs::is_directory(path, error)) {
    throw IoError{"cannot create the directory", path.string(), errno == EEXIST ? ENOTDIR : errno};
  }
}

}  // namespace

File::File(std::string const& path, int flags) : Descriptor{path, flags, 0600} {
  // Set afterwards: where O_DIRECT is refused, open with O_CREAT would fail and leave the file.
  int const current = fcntl(descriptor(), F_GETFL);
  direct_ = current >= 0 && fcntl(descriptor(), F_SETFL, current | O_DIRECT) == 0;
}

bool File::leave_direct() const noexcept {
  int const current = fcntl(descriptor(), F_GETFL);
  bool const left = current >= 0 && fcntl(descriptor(), F_SETFL, current & ~O_DIRECT) == 0;
  if (left) {
    std::atomic_ref{direct_}.store(false, std::memory_order_relaxed);
  }
  return left;
}

File File::create(std::string const& path) {
  return {path, O_RDWR | O_CREAT | O_EXCL};
}
File File::open_read(std::string const& path) {
  // A pipe in its place must not block the open, a link must not lead elsewhere.
  return {path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW};
}
File File::open_read_write(std::string const& path) {
  return {path, O_RDWR};
}

void File::allocate(Bytes size) const {
  require(size > 0, "File::allocate: size must be above 0");
  // Ask first: ext4 hands out all that is free before it says that the space does not suffice.
  auto const free = free_beside(*this);
  struct stat status {};
  if (fstat(descriptor(), &status) != 0) {
    throw IoError{"cannot ask for the size of", path(), errno};
  }
  Bytes const held = status.st_blocks * 512;
  if (free && size - held > *free) {
    throw_no_space(path(), size - held, free);
  }
  Waiting const waiting{"fallocate"};
  int const error = reserve(size);
  if (error == ENOSPC) {
    throw_no_space(path(), size - held, free);
  }
  if (error != 0) {
    throw IoError{"cannot allocate " + format_bytes(size) + " in", path(), error};
  }
}

void File::sync() const {
  Waiting const waiting{"fdatasync"};
  if (TEMP_FAILURE_RETRY(fdatasync(descriptor())) != 0) {  // FUSE: a signal may interrupt it
    throw IoError{"cannot sync", path(), errno};
  }
}

void File::sync_for_good() const {
  try {
    sync();
  } catch (IoError const& error) {
    throw IoError{error.what()};
  }
}

void sync_directory(std::string const& path) {
  Descriptor const directory{path, O_RDONLY | O_DIRECTORY, 0};
  Waiting const waiting{"fsync of a directory"};
  // EINVAL: the file system (CIFS, some of FUSE) has no such call, as it has nothing to do there.
  if (TEMP_FAILURE_RETRY(fsync(directory.descriptor())) != 0 && errno != EINVAL) {
    throw IoError{"cannot sync the directory", path, errno};
  }
}

void sync_name(std::string const& path) {
  auto const directory = fs::path{path}.parent_path();
  sync_directory(directory.empty() ? "." : directory.string());
}

std::vector<std::string> make_directory(std::string const& path) {
  std::vector<std::string> made;
  try {
    make_missing(without_slash(fs::absolute(path)), made);
  } catch (IoError const&) {
    remove_empty(made);
    throw;
  }
  return made;
}

void MadeDirectories::remove() noexcept {
  remove_empty(made_);
}

Bytes free_bytes(std::string const& path) {
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) != 0) {
    throw IoError{"cannot ask for the free space of", path, errno};
  }
  return free_of(system);
}

}  // namespace offstage::aio
