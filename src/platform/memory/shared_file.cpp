#include "platform/memory/shared_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::memory {
namespace {

constexpr char const* directory = "/dev/shm";
constexpr Bytes at_once = 64 * MiB;  ///< pages of hundreds of GiB take minutes
constexpr int most_names = 100;

std::string path_of(std::string const& name) {
  return directory + name;
}

[[noreturn]] void refuse(Bytes whole, std::string const& what, std::string const& remedy,
                         int error) {
  struct statvfs there {};
  Bytes const size = statvfs(directory, &there) == 0
                         ? static_cast<Bytes>(there.f_blocks) * static_cast<Bytes>(there.f_frsize)
                         : 0;
  throw IoError{
      fmt::format(
          "{} has no room for {}, {} ({} bytes) that the ranks of this node share: {}; it "
          "may hold {} in all. Remove what others have left there, make it larger (mount -o "
          "remount,size=..., of a container --shm-size), or {}",
          directory, what, format_bytes(whole), whole, std::generic_category().message(error),
          format_bytes(size), remedy),
      error};
}

}  // namespace

Bytes system_page_bytes() {
  return static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

void SharedMapping::reset() noexcept {
  if (!bytes_.empty()) {
    munmap(bytes_.data(), bytes_.size());
    bytes_ = {};
  }
}

SharedFile SharedFile::create(std::string const& remedy) {
  auto const moment = std::chrono::steady_clock::now().time_since_epoch().count();
  SharedFile file;
  for (int i = 0; i < most_names; ++i) {
    file.name_ = fmt::format("/offstage-{}-{}", getpid(), moment + i);
    file.descriptor_ = shm_open(file.name_.c_str(), O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    if (file.descriptor_ >= 0) {
      file.named_ = true;
      return file;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  int const error = errno;
  throw IoError{fmt::format("cannot create memory that ranks share as {}: {}. Have {} mounted so "
                            "that you may write there, or {}",
                            path_of(file.name_), error_text(error, directory), directory, remedy),
                error};
}

SharedFile SharedFile::open(std::string const& name, std::string const& remedy) {
  SharedFile file;
  file.name_ = name;
  file.descriptor_ = shm_open(name.c_str(), O_RDWR, 0);
  if (file.descriptor_ < 0) {
    int const error = errno;
    throw IoError{
        fmt::format("cannot open {}, memory that the ranks of this node share: {}. Where each "
                    "rank's container has a {} of its own, let them share one, or {}",
                    path_of(name), std::generic_category().message(error), directory, remedy),
        error};
  }
  return file;
}

void SharedFile::remove_name() noexcept {
  if (std::exchange(named_, false)) {
    shm_unlink(name_.c_str());
  }
}

void SharedFile::require_room(Bytes whole, std::string const& what, std::string const& remedy) {
  if (room() < whole) {
    refuse(whole, what, remedy, ENOSPC);
  }
}

Bytes SharedFile::room() noexcept {
  struct statvfs there {};
  if (statvfs(directory, &there) != 0) {
    return 0;
  }
  // A file system without a limit says that it has no blocks.
  return there.f_blocks == 0
             ? std::numeric_limits<Bytes>::max()
             : static_cast<Bytes>(there.f_bavail) * static_cast<Bytes>(there.f_frsize);
}

void SharedFile::allocate(std::span<Slice const> parts, Bytes whole, std::string const& what,
                          std::string const& remedy) const {
  for (Slice const& part : parts) {
    for (Bytes done = 0; done < part.size; done += at_once) {
      int error = EINTR;
      while (error == EINTR) {
        error =
            posix_fallocate(descriptor_, part.offset + done, std::min(at_once, part.size - done));
      }
      if (error != 0) {
        refuse(whole, what, remedy, error);
      }
      made_progress();
    }
  }
}

SharedMapping SharedFile::map(std::span<Slice const> parts) const {
  Bytes size = 0;
  for (Slice const& part : parts) {
    require(part.offset % system_page_bytes() == 0 && part.size % system_page_bytes() == 0,
            "SharedFile: whole pages are mapped");
    size += part.size;
  }
  if (size == 0) {
    return {};
  }
  auto const no_addresses = [&] {
    return Error{ExitCode::other, "out of memory: cannot map " + format_bytes(size)};
  };
  void* const reserved = mmap(nullptr, static_cast<std::size_t>(size), PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    throw no_addresses();
  }
  SharedMapping mapping{{static_cast<std::byte*>(reserved), static_cast<std::size_t>(size)}};
  std::byte* at = mapping.bytes().data();
  for (Slice const& part : parts) {
    if (part.size > 0 &&
        mmap(at, static_cast<std::size_t>(part.size), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_POPULATE, descriptor_, part.offset) == MAP_FAILED) {
      throw no_addresses();
    }
    at += part.size;
    made_progress();
  }
  return mapping;
}

void SharedFile::close() noexcept {
  remove_name();
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

}  // namespace offstage::memory
