#include "train/saves/signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "base/error.hpp"

namespace offstage::train {
namespace {

// A handler gets only the signal's number, so its data in common with the object must have static
// storage. A handler and a thread may both use lock-free atomics only.
std::atomic<bool> alive{false};
std::atomic<bool> ignored{false};
std::atomic<int> first{0};  // the number of the signal that came first; 0: none came
constexpr std::array numbers{SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGXCPU};
// Time at which each signal came first, in milliseconds of the monotonic clock; 0: it did not come.
std::array<std::atomic<std::uint64_t>, numbers.size()> came{};
std::atomic<std::uint64_t> continued{0};  // the same of the last SIGCONT
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint64_t same_signal_ms = 2000;

std::uint64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

/// Whether a signal that comes again asks for the end at once. Slurm repeats SIGTERM, the kernel
/// SIGXCPU each second, and more than one may hang up.
bool may_repeat(int number) noexcept {
  return number != SIGTERM && number != SIGXCPU && number != SIGHUP;
}

/// The handler. It is async-signal-safe, because it uses only lock-free atomics, clock_gettime and
/// _exit.
extern "C" void on_stop_signal(int number) {
  if (ignored.load()) {
    return;
  }
  std::uint64_t const now = now_ms();
  auto const which = static_cast<std::size_t>(std::ranges::find(numbers, number) - numbers.begin());
  std::uint64_t before = 0;
  if (came[which].compare_exchange_strong(before, now)) {
    int none = 0;
    first.compare_exchange_strong(none, number);
  } else if (may_repeat(number) && now > before + same_signal_ms) {
    ::_exit(static_cast<int>(ExitCode::other));
  }
}

extern "C" void on_continue(int /*number*/) {
  continued.store(now_ms());
}

}  // namespace

StopSignals::StopSignals() {
  require(!alive.exchange(true), "StopSignals: one object per process");
  first.store(0);
  for (auto& time : came) {
    time.store(0);
  }
  continued.store(0);
  ignored.store(false);
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int const number : numbers) {
    sigaddset(&action.sa_mask, number);
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ::sigaction(numbers[i], &action, &before_[i]);
    if (numbers[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) {
      ::sigaction(SIGHUP, &before_[i], nullptr);  // nohup: the run shall go on
    }
  }
  action.sa_handler = on_continue;
  ::sigaction(SIGCONT, &action, &before_continue_);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (ignored.load()) {
      // The work is safe and the process is about to end, so a late signal must not change its exit
      // code.
      std::signal(numbers[i], SIG_IGN);
    } else {
      ::sigaction(numbers[i], &before_[i], nullptr);
    }
  }
  ::sigaction(SIGCONT, &before_continue_, nullptr);
  alive.store(false);
}

int StopSignals::received() const noexcept {
  return first.load();
}

void StopSignals::ignore() noexcept {
  ignored.store(true);
}

std::optional<Seconds> StopSignals::since_continued() const noexcept {
  std::uint64_t const last = continued.load();
  if (last == 0) {
    return std::nullopt;
  }
  return std::chrono::duration<std::uint64_t, std::milli>{now_ms() - last};
}

}  // namespace offstage::train
