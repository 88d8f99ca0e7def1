#include "train/files/run_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/file_lock.hpp"
#include "base/log.hpp"
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

/// Writes the holder's line. It only informs, so that a failure to write it is no error.
void write_holder(int descriptor) {
  std::string const text = this_process() + '\n';
  if (::ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] auto const written = ::pwrite(descriptor, text.data(), text.size(), 0);
  }
}

}  // namespace

RunLock::RunLock(std::string const& directory, std::string const& key)
    : path_{fmt::format("{}/{}", directory, file_name)} {
  // Another run may remove the file at any moment before it is locked; this one then starts over.
  constexpr int attempts = 1000;
  try {
    for (int i = 0; i < attempts; ++i) {
      if (open(directory, key) && lock(directory, key)) {
        return;
      }
      close();
    }
  } catch (...) {
    close();
    throw;
  }
  throw IoError{fmt::format("{}={}: cannot lock {}: others keep removing it; use another directory",
                            key, directory, path_)};
}

RunLock::~RunLock() {
  close();
}

void RunLock::remove() noexcept {
  if (created_) {
    ::unlink(path_.c_str());
  }
}

/// Returns false if the file was removed in between.
bool RunLock::open(std::string const& directory, std::string const& key) {
  auto const action = fmt::format("{}={}: cannot open the lock file", key, directory);
  // Whoever may read it may lock it.
  constexpr unsigned user_and_group = 0660;
  descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, user_and_group);
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
bool RunLock::lock(std::string const& directory, std::string const& key) {
  auto const action = fmt::format("{}={}: cannot lock", key, directory);
  auto const begin = std::chrono::steady_clock::now();
  auto locked = lock_file(descriptor_, action, path_);
  bool said = false;
  while (locked == FileLock::elsewhere &&
         std::chrono::steady_clock::now() - begin < patience_with(holder_of(descriptor_))) {
    Waiting const waiting{"the end of a killed process that held the directory"};
    if (!std::exchange(said, true)) {
      log::info("{}={}: waits for a killed process to end: {}", key, directory,
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
      write_holder(descriptor_);
      if (auto const cause = cause_of_local_locks(descriptor_); !cause.empty()) {
        log::warning(
            "{}={}: locks of its file system hold on one node alone ({}); make "
            "sure that no run on another node uses it",
            key, directory, cause);
      }
      break;
    case FileLock::missing:
      log::warning("{}={}: its file system has no locks ({}); make sure that no other run uses it",
                   key, directory, std::generic_category().message(errno));
      break;
    case FileLock::elsewhere:
      throw LockedError{
          fmt::format("{}={} is in use by {} (lock file {}); wait for it or use another", key,
                      directory, holder_of(descriptor_), path_)};
  }
  return true;
}

void RunLock::close() noexcept {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

}  // namespace offstage::train
