#include "train/signals.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "base/error.hpp"

namespace offstage::train {
namespace {

// A handler gets nothing but the signal's number, so what it shares with the object must have
// static storage. Lock-free atomics are all that both a handler and a thread may touch.
std::atomic<bool> alive{false};
std::atomic<bool> ignored{false};
// Milliseconds of the monotonic clock when the first signal came, above its number in the lowest
// byte; 0: none came. One word, so that handlers on two threads cannot see one half without the
// other.
std::atomic<std::uint64_t> first{0};
static_assert(std::atomic<bool>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint64_t same_signal_ms = 2000;

std::uint64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

int number_of(std::uint64_t stamp) noexcept {
  return static_cast<int>(stamp & 0xFF);
}

/// Async-signal-safe: lock-free atomics, clock_gettime and _exit alone.
extern "C" void on_stop_signal(int number) {
  if (ignored.load()) {
    return;
  }
  std::uint64_t const now = now_ms();
  std::uint64_t before = 0;
  if (first.compare_exchange_strong(before, (now << 8) | static_cast<std::uint64_t>(number))) {
    return;
  }
  if (number_of(before) == number && now <= (before >> 8) + same_signal_ms) {
    return;
  }
  ::_exit(static_cast<int>(ExitCode::other));
}

}  // namespace

StopSignals::StopSignals() {
  require(!alive.exchange(true), "StopSignals: one object per process");
  first.store(0);
  ignored.store(false);
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGUSR1);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGINT);
  ::sigaction(SIGUSR1, &action, &before_usr1_);
  ::sigaction(SIGTERM, &action, &before_term_);
  ::sigaction(SIGINT, &action, &before_int_);
}

StopSignals::~StopSignals() {
  if (ignored.load()) {
    // The work is safe and the process is about to end: a late signal must not change its exit code.
    std::signal(SIGUSR1, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
  } else {
    ::sigaction(SIGUSR1, &before_usr1_, nullptr);
    ::sigaction(SIGTERM, &before_term_, nullptr);
    ::sigaction(SIGINT, &before_int_, nullptr);
  }
  alive.store(false);
}

int StopSignals::received() const noexcept {
  return number_of(first.load());
}

void StopSignals::ignore() noexcept {
  ignored.store(true);
}

}  // namespace offstage::train
