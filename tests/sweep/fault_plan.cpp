#include "fault_plan.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string_view>
#include <thread>

namespace faulty {
namespace {

std::string_view text_of(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}
long number_of(char const* name, long otherwise) {
  char const* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtol(value, nullptr, 10);
}

/// True if the list, separated by commas, names it.
bool names(std::string_view list, std::string_view kind) {
  while (!list.empty()) {
    std::size_t const end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == kind) {
      return true;
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

/// What the environment says, copied: a program may change its environment.
struct Plan {
  std::string const below{text_of("FAULT_PATH")};
  std::string const file{text_of("FAULT_FILE")};
  std::string const calls{text_of("FAULT_CALLS")};
  std::string const then{text_of("FAULT_THEN")};
  std::string const log{text_of("FAULT_LOG")};
  long const after = number_of("FAULT_AFTER", 0);
  long const times = number_of("FAULT_TIMES", std::numeric_limits<long>::max());
  bool const kills = text_of("FAULT_ERROR") == "KILL";
  bool const delays = text_of("FAULT_ERROR") == "DELAY";
  long const seconds = number_of("FAULT_SECONDS", 1);
  int const error = text_of("FAULT_ERROR") == "SHORT"
                        ? short_transfer
                        : static_cast<int>(number_of("FAULT_ERROR", EIO));
  /// As mpirun or srun gives it.
  long const rank = number_of("OMPI_COMM_WORLD_RANK", number_of("PMIX_RANK", 0));
  bool const active = !below.empty() && rank == number_of("FAULT_RANK", rank);
};

Plan const& plan() {
  static Plan const the_plan;
  return the_plan;
}

/// Directly: the preloaded calls must not meet themselves.
void note(std::string const& line) {
  std::string const& log = plan().log;
  if (log.empty()) {
    return;
  }
  long const file =
      syscall(SYS_openat, AT_FDCWD, log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  (void)!syscall(SYS_write, file, line.data(), line.size());
  syscall(SYS_close, file);
}

std::string target_of(int descriptor) {
  std::array<char, PATH_MAX> target{};
  std::string const link = "/proc/self/fd/" + std::to_string(descriptor);
  long const length = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target.data(), target.size());
  std::string path{target.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
  if (std::string_view const mark = " (deleted)"; path.ends_with(mark)) {
    path.resize(path.size() - mark.size());
  }
  return path;
}

std::string working_directory() {
  std::array<char, PATH_MAX> path{};
  return syscall(SYS_getcwd, path.data(), path.size()) > 0 ? path.data() : "";
}

bool is_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

/// This process's number, as a part of a name between dashes, is written PID: names stay the same
/// from run to run.
std::string without_process(std::string path) {
  static std::string const mine = std::string{"-"}.append(std::to_string(getpid())).append("-");
  if (auto const at = path.find(mine); at != std::string::npos) {
    path.replace(at, mine.size(), "-PID-");
  }
  return path;
}

}  // namespace

bool is_active() {
  return plan().active;
}

bool is_looked_at(std::string const& path) {
  return is_below(path, plan().below);
}

std::string path_of(Place const& place) {
  int const before = errno;
  std::string path;
  if (place.name == nullptr || *place.name == '\0') {  // AT_EMPTY_PATH
    path = target_of(place.descriptor);
  } else if (*place.name == '/') {
    path = place.name;
  } else {
    path = (place.descriptor == AT_FDCWD ? working_directory() : target_of(place.descriptor)) +
           "/" + place.name;
  }
  if (path.find("/.") != std::string::npos || path.find("//") != std::string::npos) {
    path = std::filesystem::path{path}.lexically_normal().string();
  }
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  errno = before;
  return path;
}

int fault_of(char const* kind, std::string const& path) {
  static std::mutex mutex;
  static long calls = 0;
  static bool begun = false;
  if (!is_active() || !is_below(path, plan().below)) {
    return 0;
  }
  int const before = errno;
  std::unique_lock lock{mutex};
  std::string const name = without_process(path);
  bool const counts = (plan().calls.empty() || names(plan().calls, kind)) &&
                      (plan().file.empty() || plan().file == name);
  bool fails = begun && names(plan().then, kind);
  if (counts) {
    long const number = calls++ - plan().after;
    fails = fails || (number >= 0 && number < plan().times);
  }
  begun = begun || fails;
  if (counts || fails) {
    note(std::string{kind} + " " + name + (fails ? " failed\n" : "\n"));
  }
  if (fails && plan().kills) {
    kill(getpid(), SIGKILL);
  }
  if (fails && plan().delays) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::seconds{plan().seconds});
    fails = false;
  }
  errno = before;
  return fails ? plan().error : 0;
}

}  // namespace faulty
