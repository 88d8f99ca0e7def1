#include "train/run_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"

namespace offstage::train {
namespace {

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("host {}, process {}, since {:%Y-%m-%d %H:%M:%S %z}", host.data(), ::getpid(),
                     fmt::localtime(std::time(nullptr)));
}

/// What the holder wrote: its first line, or that nobody knows.
std::string holder_of(int descriptor) {
  std::array<char, 512> text{};
  auto const size = ::pread(descriptor, text.data(), text.size(), 0);
  std::string const whole{text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
  auto const line = whole.substr(0, whole.find('\n'));
  return line.empty() ? "another run" : line;
}

/// Informs only, so a failure to write it is no error.
void write_holder(int descriptor) {
  std::string const text = this_process() + '\n';
  if (::ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] auto const written = ::pwrite(descriptor, text.data(), text.size(), 0);
  }
}

bool has_no_locks(int error_number) {
  return error_number == ENOLCK || error_number == ENOSYS || error_number == EOPNOTSUPP;
}

}  // namespace

RunLock::RunLock(std::string const& directory, std::string const& key) {
  std::string const path = directory + "/lock";
  descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw IoError{fmt::format("{}={}: cannot open the lock file", key, directory), path, errno};
  }
  struct flock whole_file {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (::fcntl(descriptor_, F_OFD_SETLK, &whole_file) == 0) {
    write_holder(descriptor_);
    return;
  }
  int const error_number = errno;
  if (has_no_locks(error_number)) {
    log::warning("{}={}: its file system has no locks ({}); make sure that no other run uses it",
                 key, directory, std::generic_category().message(error_number));
    return;
  }
  std::string const holder = holder_of(descriptor_);
  ::close(descriptor_);
  if (error_number == EAGAIN || error_number == EACCES) {
    throw LockedError{
        fmt::format("{}={} is in use by {} (lock file {}); wait for it or use another", key,
                    directory, holder, path)};
  }
  throw IoError{fmt::format("{}={}: cannot lock", key, directory), path, error_number};
}

RunLock::~RunLock() {
  ::close(descriptor_);
}

}  // namespace offstage::train
