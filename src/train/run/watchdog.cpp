#include "train/run/watchdog.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "platform/cpu/affinity.hpp"

namespace offstage::train {
namespace {

// Looks per limit. A hang is seen late by at most this part of the limit.
constexpr double looks = 8.0;
constexpr Seconds longest_pause{5.0};

/// Writes to standard error, unless a reader that has stopped reading would block the write.
void say(std::string_view text) {
  constexpr int patience_ms = 1000;
  while (!text.empty()) {
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, patience_ms) <= 0) {
      return;
    }
    // A pipe that is ready takes that much at once.
    auto const written =
        ::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written <= 0) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string report(std::optional<int> rank, Seconds stuck) {
  constexpr char const* prefix = "offstage: error: ";
  std::string const who = rank ? fmt::format("rank {}", *rank) : "a rank";
  std::string text = fmt::format(
      "{}{} on {}: no progress for {} (run.watchdog); the job is ended; if it was only slow, "
      "raise run.watchdog; the same command goes on from the last checkpoint\n",
      prefix, who, cpu::host_name(), format_duration(stuck));
  for (ThreadState const& state : thread_states()) {
    text +=
        fmt::format("{}{}: thread {} has been {} {}{}\n", prefix, who, state.thread,
                    format_duration(state.since), state.what == "running" ? "" : "in ", state.what);
  }
  return text;
}

}  // namespace

Watchdog::Watchdog(Seconds limit, std::optional<int> rank, std::function<void()> abort)
    : limit_{limit}, rank_{rank}, abort_{std::move(abort)} {
  if (limit_ > Seconds{}) {
    made_progress();  // time before this does not count
    thread_.emplace("watchdog", [this] { watch(); });
  }
}

Watchdog::~Watchdog() {
  {
    std::scoped_lock const lock{mutex_};
    ending_ = true;
  }
  ending_changed_.notify_all();
}

bool Watchdog::ends_within(Seconds time) {
  std::unique_lock lock{mutex_};
  return ending_changed_.wait_for(lock, time, [&] { return ending_; });
}

void Watchdog::watch() {
  Seconds const pause = std::min(limit_ / looks, longest_pause);
  Seconds stuck{};
  Stopwatch since_look;
  while (!ends_within(pause)) {
    Seconds const gap = since_look.lap();
    Seconds const idle = since_progress();
    // A gap much longer than the pause means that this process did not run either.
    stuck = idle < gap ? std::min(idle, 2 * pause) : stuck + std::min(gap, 2 * pause);
    if (stuck < limit_) {
      continue;
    }
    try {
      bark(stuck);
    } catch (std::exception const&) {
      // The memory is out; the job ends all the same.
    }
    if (!ends_within(pause)) {
      abort_();
    }
    return;
  }
}

void Watchdog::bark(Seconds stuck) const {
  try {
    say(report(rank_, stuck));
  } catch (std::bad_alloc const&) {
    say("offstage: error: no progress (run.watchdog), and no memory to say where; the job is "
        "ended\n");
  }
}

}  // namespace offstage::train
