#include "tiers/node_lock.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/watch.hpp"

namespace offstage::tiers {
namespace {

// A few microseconds: a holder that only leaves is not worth a sleep, a transfer is.
constexpr int spins = 200;

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t),
              "the kernel sees a word");

void spin_once() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Without FUTEX_PRIVATE_FLAG the kernel tells the word by its page, not by this process's address.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr,
          0);
}
void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

}  // namespace

NodeLock::NodeLock(NodeLockState& state, int capacity) noexcept
    : state_{&state}, capacity_{capacity} {}

// Sequential consistency, here and below: either the one that leaves sees the new ticket and wakes,
// or the one that comes sees the departure and does not sleep. Differences are signed: later
// tickets may have come and gone before this one looks.
void NodeLock::lock() noexcept {
  std::uint32_t const ticket = state_->next_ticket.fetch_add(1);
  auto const is_below = [ticket](std::uint32_t count, std::int32_t most) {
    return static_cast<std::int32_t>(ticket - count) < most;
  };
  for (int i = 0; i < spins; ++i) {
    if (is_below(state_->released.load(), capacity_) &&
        is_below(state_->left.load(), 2 * capacity_)) {
      return;
    }
    spin_once();
  }
  Waiting const waiting{"the storage path, which another process or path holds"};
  for (;;) {
    std::uint32_t const released = state_->released.load();
    std::uint32_t const left = state_->left.load();
    if (!is_below(released, capacity_)) {
      sleep_while(state_->released, released);
    } else if (!is_below(left, 2 * capacity_)) {
      sleep_while(state_->left, left);
    } else {
      return;
    }
  }
}

// All waiters are woken: the next may wait with another capacity, and few processes share a node.
void NodeLock::hand_on() noexcept {
  std::uint32_t const released = state_->released.fetch_add(1) + 1;
  if (state_->next_ticket.load() != released) {
    wake_all(state_->released);
  }
}

void NodeLock::leave() noexcept {
  std::uint32_t const left = state_->left.fetch_add(1) + 1;
  if (state_->next_ticket.load() != left) {
    wake_all(state_->left);
  }
}

bool NodeLock::is_waited_for() const noexcept {
  return static_cast<std::int32_t>(state_->next_ticket.load() - state_->released.load()) >
         capacity_;
}

}  // namespace offstage::tiers
