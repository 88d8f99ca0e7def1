#include "train/files/run_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/file_lock.hpp"
#include "base/log.hpp"
#include "base/pauses.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/users.hpp"
#include "base/watch.hpp"
#include "platform/cpu/affinity.hpp"

namespace offstage::train {
namespace {

/// Words before the number of the process in the line of a holder of this host.
std::string words_before_process() {
  return fmt::format("host {}, process ", cpu::host_name());
}

std::string this_process() {
  char const* const job = std::getenv("SLURM_JOB_ID");
  return fmt::format("{}{} of {}{}, since {:%Y-%m-%d %H:%M:%S %z}", words_before_process(),
                     ::getpid(), words_for_user(::geteuid()),
                     job != nullptr ? fmt::format(", job {}", printable_name(job)) : "",
                     fmt::localtime(std::time(nullptr)));
}

/// The first line that the holder wrote, which may be anything; or words that say that nobody
/// knows.
std::string holder_of(int descriptor) {
  std::array<char, 512> text{};
  auto const size = ::pread(descriptor, text.data(), text.size(), 0);
  std::string const whole{text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
  auto const line = whole.substr(0, whole.find('\n'));
  return line.empty() ? "another run" : printable_name(line);
}

/// Time to wait for a holder. A process of this host that was killed has no command line any more,
/// and its lock until storage has answered what it had asked; mpirun may return before. One that is
/// gone has just ended.
std::chrono::seconds patience_with(std::string_view holder) {
  std::string const before = words_before_process();
  std::int64_t process{};
  if (!holder.starts_with(before) ||
      std::from_chars(holder.data() + before.size(), holder.data() + holder.size(), process).ec !=
          std::errc{}) {
    return std::chrono::seconds{0};
  }
  std::ifstream words{fmt::format("/proc/{}/cmdline", process)};
  if (!words) {
    return std::chrono::seconds{1};
  }
  return std::chrono::seconds{words.peek() == std::ifstream::traits_type::eof() ? 60 : 0};
}

/// Whether anybody can tell what has this name, and be it nothing.
bool can_look_at(std::string const& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 || errno == ENOENT;
}

/// The directory in which a directory lies, whose name may end in a slash.
std::filesystem::path parent_of(std::string const& directory) {
  auto const path = std::filesystem::absolute(directory);
  return path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
}

/// Opens a directory, upon which NFS asks the server whether its names have changed.
void look_anew_at(std::filesystem::path const& directory) {
  int const descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::close(descriptor);
  }
}

/// Writes the holder's line, so that other nodes see it. It only informs, so that a failure is no
/// error. Returns the line, if it is there.
std::string write_holder(int descriptor) {
  std::string line = this_process();
  std::string const text = line + '\n';
  bool const is_there =
      ::ftruncate(descriptor, 0) == 0 &&
      write_fully(descriptor, std::as_bytes(std::span{text}), 0) == std::ssize(text) &&
      TEMP_FAILURE_RETRY(::fsync(descriptor)) == 0;
  return is_there ? std::move(line) : std::string{};
}

}  // namespace

RunLock::RunLock(std::string const& directory, std::string const& key)
    : directory_{directory}, key_{key}, path_{fmt::format("{}/{}", directory, file_name)} {
  take();
  directory_descriptor_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void RunLock::take() {
  // Another run may remove the file at any moment before it is locked; this one then starts over.
  constexpr int attempts = 1000;
  try {
    for (int i = 0; i < attempts; ++i) {
      if (open() && lock()) {
        struct stat mine {};
        if (::fstat(descriptor_, &mine) == 0) {
          file_ = {mine.st_dev, mine.st_ino};
        }
        return;
      }
      close();
    }
  } catch (...) {
    close();
    throw;
  }
  throw IoError{fmt::format("{}={}: cannot lock {}: others keep removing it; use another directory",
                            key_, directory_, path_)};
}

RunLock::~RunLock() {
  close();
  if (directory_descriptor_ >= 0) {
    ::close(directory_descriptor_);
  }
}

void RunLock::look_again() {
  constexpr std::chrono::seconds patience{5};
  if (is_there()) {
    ask_again();
    return;
  }
  Waiting const waiting{"a directory of the run that is not where it was"};
  auto const end = std::chrono::steady_clock::now() + patience;
  while (has_moved()) {
    if (std::chrono::steady_clock::now() >= end) {
      throw UsageError{
          fmt::format("{}={} was moved or removed since the start; the run writes nothing more "
                      "there: name where it is now, and it goes on from its newest checkpoint",
                      key_, directory_)};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  if (is_there() || !can_look_at(path_)) {
    ask_again();
    return;
  }
  if (!std::exchange(is_missed_, true)) {
    log::warning(
        "{}={}: somebody removed its lock file, which keeps other runs out; it is made "
        "again",
        key_, directory_);
  }
  try {
    close();
    take();
    is_missed_ = false;
  } catch (IoError const&) {
    // The next look tries again.
  }
}

/// The holder may lock its own file again. A file server (NFS, Lustre) gives the locks of a node to
/// others if it has not heard of the node for long, and the node may come back. A client that
/// Lustre has evicted fails once, and hears then who has the lock.
void RunLock::ask_again() const {
  auto const action = fmt::format("{}={}: cannot lock", key_, directory_);
  try {
    auto const locked = try_patiently([&] { return lock_file(descriptor_, action, path_); });
    if (locked == FileLock::elsewhere) {
      throw in_use();
    }
  } catch (IoError const&) {
    // The next look tries again.
  }
}

LockedError RunLock::in_use() const {
  return LockedError{
      fmt::format("{}={} is in use by {} (lock file {}, which must stay); wait for it or use "
                  "another",
                  key_, directory_, holder_of(descriptor_), path_)};
}

bool RunLock::is_there() const {
  struct stat there {};
  return descriptor_ >= 0 && ::lstat(path_.c_str(), &there) == 0 &&
         std::pair{there.st_dev, there.st_ino} == file_;
}

bool RunLock::has_moved() const {
  look_anew_at(parent_of(directory_));
  struct stat there {};
  if (::stat(directory_.c_str(), &there) != 0) {
    return errno == ENOENT || errno == ENOTDIR;
  }
  struct stat mine {};
  return directory_descriptor_ >= 0 && (::fstat(directory_descriptor_, &mine) != 0 ||
                                        mine.st_dev != there.st_dev || mine.st_ino != there.st_ino);
}

void RunLock::require_line(std::string const& line, std::string const& directory,
                           std::string const& key, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds longest_pause{1000};
  std::string const path = fmt::format("{}/{}", directory, file_name);
  Waiting const waiting{"the lock file of a directory of all nodes"};
  auto const end = std::chrono::steady_clock::now() + patience;
  for (std::chrono::milliseconds pause{20};; pause = std::min(2 * pause, longest_pause)) {
    look_anew_at(parent_of(directory));
    look_anew_at(directory);
    std::ifstream file{path};
    std::string there;
    if (std::getline(file, there) && there == line) {
      return;
    }
    if (std::chrono::steady_clock::now() >= end) {
      throw IoError{fmt::format(
          "{}={} is not the directory that the first rank's node has there (its lock file is not "
          "to be seen here); name one on storage that all nodes share",
          key, directory)};
    }
    std::this_thread::sleep_for(pause);
  }
}

void RunLock::remove() noexcept {
  if (created_) {
    ::unlink(path_.c_str());
  }
}

/// Returns false if the file was removed in between.
bool RunLock::open() {
  auto const action = fmt::format("{}={}: cannot open the lock file", key_, directory_);
  descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode_of_lock(path_));
  created_ = descriptor_ >= 0;
  if (!created_ && errno == EEXIST) {
    descriptor_ = open_regular(action, path_, O_RDWR);
    return descriptor_ >= 0;
  }
  if (!created_) {
    throw IoError{action, path_, errno};
  }
  return true;
}

/// Returns false if the file is no longer the one that the next run would open.
bool RunLock::lock() {
  auto const action = fmt::format("{}={}: cannot lock", key_, directory_);
  auto const begin = std::chrono::steady_clock::now();
  auto locked = lock_file(descriptor_, action, path_);
  bool said = false;
  while (locked == FileLock::elsewhere &&
         std::chrono::steady_clock::now() - begin < patience_with(holder_of(descriptor_))) {
    Waiting const waiting{"the end of a killed process that held the directory"};
    if (!std::exchange(said, true)) {
      log::info("{}={}: waits for a killed process to end: {}", key_, directory_,
                holder_of(descriptor_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    locked = lock_file(descriptor_, action, path_);
  }
  switch (locked) {
    case FileLock::held:
      if (!is_file_at(path_, descriptor_)) {
        return false;
      }
      line_ = write_holder(descriptor_);
      if (auto const cause = cause_of_local_locks(descriptor_); !cause.empty()) {
        log::warning(
            "{}={}: locks of its file system hold on one node alone ({}); make "
            "sure that no run on another node uses it",
            key_, directory_, cause);
      }
      break;
    case FileLock::missing:
      log::warning("{}={}: its file system has no locks ({}); make sure that no other run uses it",
                   key_, directory_, std::generic_category().message(errno));
      line_ = write_holder(descriptor_);
      break;
    case FileLock::elsewhere:
      throw in_use();
  }
  return true;
}

void RunLock::close() noexcept {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

}  // namespace offstage::train
