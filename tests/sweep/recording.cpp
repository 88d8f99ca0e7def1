#include "recording.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace faulty {
namespace {

/// The file of the recording, open for as long as the process lives: its lock is this process's
/// against the others.
int recording_file() {
  static int const file = [] {
    char const* const name = std::getenv("FAULT_RECORD");
    return name == nullptr
               ? -1
               : static_cast<int>(syscall(SYS_openat, AT_FDCWD, name,
                                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  }();
  return file;
}

std::mutex& recording_mutex() {
  static std::mutex mutex;
  return mutex;
}

void lock_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  while (syscall(SYS_fcntl, recording_file(), F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
  }
}

}  // namespace

bool records(std::string const& path) {
  return is_active() && recording_file() >= 0 && is_looked_at(path);
}

std::uint64_t inode_of(Place const& place) {
  int const before = errno;
  struct stat status {};
  bool const by_name = place.name != nullptr && *place.name != '\0';
  long const result = syscall(SYS_newfstatat, place.descriptor, by_name ? place.name : "", &status,
                              by_name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH);
  errno = before;
  return result == 0 ? status.st_ino : 0;
}

Recording::Recording() {
  recording_mutex().lock();
  lock_file(F_WRLCK);
}

Recording::~Recording() {
  lock_file(F_UNLCK);
  recording_mutex().unlock();
}

void Recording::add(Change const& change) const {
  std::string head{change.kind};
  for (auto const number : {change.file, static_cast<std::uint64_t>(change.at), change.request,
                            static_cast<std::uint64_t>(change.bytes.size())}) {
    head += '\t' + std::to_string(number);
  }
  head += '\t' + change.path + '\t' + change.to + '\n';
  std::array<iovec, 2> const parts{
      {{head.data(), head.size()},
       {const_cast<std::byte*>(change.bytes.data()), change.bytes.size()}}};
  if (syscall(SYS_writev, recording_file(), parts.data(), parts.size()) !=
      static_cast<long>(head.size() + change.bytes.size())) {
    std::abort();  // a recording with a hole would prove nothing
  }
}

}  // namespace faulty
