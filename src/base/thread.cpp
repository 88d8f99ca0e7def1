#include "base/thread.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <latch>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/at_end.hpp"
#include "base/cgroup.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage {
namespace {

rlim_t limit_of(decltype(RLIMIT_NPROC) resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

/// A limit of the stack above which a thread may find no memory for its own, which is as large.
constexpr auto large_stack = static_cast<rlim_t>(GiB);

/// The limits that the system's answer, EAGAIN for all of them, does not tell apart.
std::string remedy() {
  rlim_t const tasks = limit_of(RLIMIT_NPROC);
  std::string text = "raise ulimit -u (RLIMIT_NPROC is " +
                     (tasks == RLIM_INFINITY ? "unlimited" : std::to_string(tasks)) + ')';
  std::optional<std::int64_t> pids;
  for (Cgroup const& group : cgroups_of("pids")) {
    if (auto const most = number_in(group.folder + "pids.max")) {
      pids = std::min(*most, pids.value_or(*most));
    }
  }
  text += " or the job's pids limit";
  text += pids ? " (pids.max is " + std::to_string(*pids) + ')' : "";
  std::string const takes = "), of which each thread's stack takes a part";
  if (rlim_t const space = limit_of(RLIMIT_AS); space != RLIM_INFINITY) {
    text += ", or ulimit -v (RLIMIT_AS is " + format_bytes(static_cast<Bytes>(space)) + takes;
  }
  if (rlim_t const data = limit_of(RLIMIT_DATA); data != RLIM_INFINITY) {
    text += ", or ulimit -d (RLIMIT_DATA is " + format_bytes(static_cast<Bytes>(data)) + takes;
  }
  if (rlim_t const stack = limit_of(RLIMIT_STACK); stack != RLIM_INFINITY && stack > large_stack) {
    text += "; or lower ulimit -s (RLIMIT_STACK is " + format_bytes(static_cast<Bytes>(stack)) +
            ", which each thread's stack takes)";
  }
  return text;
}

std::recursive_mutex starts;

std::thread start(std::string const& name, std::function<void()> body) {
  std::scoped_lock const lock{starts};
  try {
    return std::thread{[label = name.substr(0, 15), work = std::move(body)] {
      pthread_setname_np(pthread_self(), label.c_str());
      work();
    }};
  } catch (std::system_error const& error) {
    // The number says that this is no damage of what the thread was to read.
    throw IoError{
        "cannot start the thread \"" + name + "\": " + error.code().message() + "; " + remedy(),
        error.code().value()};
  }
}

}  // namespace

NamedThread::NamedThread(std::string const& name, std::function<void()> body)
    : thread_{start(name, std::move(body))} {}

void NamedThread::join() noexcept {
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::unique_lock<std::recursive_mutex> hold_starts() {
  return std::unique_lock{starts};
}

void require_threads(int count, std::string const& name) {
  std::latch over{1};
  std::vector<NamedThread> threads;
  AtEnd const let_go{[&over] { over.count_down(); }};  // before the threads are joined
  for (int i = 0; i < count; ++i) {
    threads.emplace_back(name, [&over] { over.wait(); });
  }
}

}  // namespace offstage
