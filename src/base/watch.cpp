#include "base/watch.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace offstage {
namespace {

// Deeper ones are counted, not shown.
constexpr std::size_t most_frames = 8;
// A thread whose record changes that often while it is read is running.
constexpr int most_tries = 100;

using Nanoseconds = std::int64_t;

Nanoseconds now() noexcept {
  auto const time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

Nanoseconds const process_start = now();

struct Frame {
  std::atomic<char const*> what{nullptr};
  std::atomic<std::int64_t> detail{0};
  std::atomic<Nanoseconds> since{0};
};

/// One thread's record. Written by its thread alone; a reader looks at `version` before and after
/// and tries again if it is odd or has changed. A store with release and a load with acquire keep
/// the fields between the two looks, without fences, which ThreadSanitizer does not know.
struct Slot {
  std::atomic<bool> taken{true};
  std::atomic<Nanoseconds> progress{0};
  std::atomic<std::uint64_t> version{0};
  std::array<std::atomic<char>, 16> name{};
  std::atomic<std::size_t> depth{0};
  std::array<Frame, most_frames> frames;
  Slot* next = nullptr;  ///< set before the slot is seen by others
};

// Slots are handed on when their thread ends, never freed: a reader needs no lock.
std::atomic<Slot*> all_slots{nullptr};

template <class Work>
void change(Slot& slot, Work const& work) noexcept {
  std::uint64_t const version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  work();
  slot.version.store(version + 2, std::memory_order_release);
}

void name_after_this_thread(Slot& slot) noexcept {
  std::array<char, std::tuple_size_v<decltype(Slot::name)>> name{};
  if (gettid() == getpid()) {
    std::strcpy(name.data(), "main");
  } else {
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }
  change(slot, [&] {
    for (std::size_t i = 0; i < name.size(); ++i) {
      slot.name[i].store(name[i], std::memory_order_release);
    }
  });
}

Slot* take_slot() noexcept {
  for (Slot* slot = all_slots.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    if (!slot->taken.exchange(true, std::memory_order_acquire)) {
      return slot;
    }
  }
  auto* const slot = new (std::nothrow) Slot;
  if (slot != nullptr) {
    slot->next = all_slots.load(std::memory_order_relaxed);
    while (!all_slots.compare_exchange_weak(slot->next, slot, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
  }
  return slot;
}

thread_local Slot* own = nullptr;
thread_local bool ended = false;
thread_local Nanoseconds spent_on_ranks = 0;
thread_local RankWaits* told_of_rank_waits = nullptr;

extern "C" void hand_on(void* slot) {
  ended = true;
  own = nullptr;
  static_cast<Slot*>(slot)->taken.store(false, std::memory_order_release);
}

/// Hands each thread's slot on when the thread ends. No thread_local object does: where there is no
/// memory to register its destructor, glibc ends the process.
struct Key {
  Key() noexcept : made{pthread_key_create(&value, hand_on) == 0} {}
  pthread_key_t value{};
  bool made;
};
Key const key;

/// Null if there is no memory for one, or the thread is about to end.
Slot* own_slot() noexcept {
  if (own == nullptr && !ended && key.made) {
    Slot* const slot = take_slot();
    if (slot != nullptr && pthread_setspecific(key.value, slot) != 0) {
      slot->taken.store(false, std::memory_order_release);
    } else if (slot != nullptr) {
      own = slot;
      name_after_this_thread(*own);
    }
  }
  return own;
}

void stamp(Slot& slot, Nanoseconds time) noexcept {
  slot.progress.store(time, std::memory_order_release);
}

/// Sets how deep the thread is, and the innermost frame that remains.
void leave_to(Slot& slot, std::size_t depth) noexcept {
  Nanoseconds const time = now();
  change(slot, [&] { slot.depth.store(depth, std::memory_order_release); });
  stamp(slot, time);
}

std::string text_of(char const* what, std::int64_t detail) {
  return detail < 0 ? std::string{what} : std::string{what} + ' ' + std::to_string(detail);
}

/// False if the record changed meanwhile.
bool read(Slot const& slot, ThreadState& state) {
  std::uint64_t const version = slot.version.load(std::memory_order_acquire);
  std::array<char, std::tuple_size_v<decltype(Slot::name)> + 1> name{};
  for (std::size_t i = 0; i < slot.name.size(); ++i) {
    name[i] = slot.name[i].load(std::memory_order_acquire);
  }
  std::size_t const depth =
      std::min(slot.depth.load(std::memory_order_acquire), slot.frames.size());
  Nanoseconds since = slot.progress.load(std::memory_order_acquire);
  std::string what;
  for (std::size_t i = depth; i-- > 0;) {
    Frame const& frame = slot.frames[i];
    char const* const literal = frame.what.load(std::memory_order_acquire);
    what += (what.empty() ? "" : " for ") + text_of(literal == nullptr ? "" : literal,
                                                    frame.detail.load(std::memory_order_acquire));
    if (i + 1 == depth) {
      since = frame.since.load(std::memory_order_acquire);
    }
  }
  state = {name.data(), what.empty() ? "running" : what,
           std::chrono::nanoseconds{std::max<Nanoseconds>(0, now() - since)}};
  return version % 2 == 0 && slot.version.load(std::memory_order_relaxed) == version;
}

}  // namespace

Waiting::Waiting(char const* what, std::int64_t detail) noexcept {
  Slot* const slot = own_slot();
  if (slot == nullptr) {
    return;
  }
  Nanoseconds const time = now();
  std::size_t const depth = slot->depth.load(std::memory_order_relaxed);
  change(*slot, [&] {
    if (depth < slot->frames.size()) {
      Frame& frame = slot->frames[depth];
      frame.what.store(what, std::memory_order_release);
      frame.detail.store(detail, std::memory_order_release);
      frame.since.store(time, std::memory_order_release);
    }
    slot->depth.store(depth + 1, std::memory_order_release);
  });
  stamp(*slot, time);
}

Waiting::~Waiting() {
  // Null or the same as in the constructor, unless memory came only in between.
  if (Slot* const slot = own; slot != nullptr) {
    if (std::size_t const depth = slot->depth.load(std::memory_order_relaxed); depth > 0) {
      leave_to(*slot, depth - 1);
    }
  }
}

WaitingForRanks::WaitingForRanks(char const* what, std::int64_t detail) noexcept
    : waiting_{what, detail}, since_{now()} {}

WaitingForRanks::~WaitingForRanks() {
  Nanoseconds const end = now();
  spent_on_ranks += end - since_;
  if (told_of_rank_waits == nullptr || own == nullptr) {
    return;
  }
  try {
    using Time = std::chrono::steady_clock::time_point;
    ThreadState state;
    static_cast<void>(read(*own, state));  // nobody else writes it
    told_of_rank_waits->waited(state.what, Time{std::chrono::nanoseconds{since_}},
                               Time{std::chrono::nanoseconds{end}});
  } catch (std::bad_alloc const&) {  // one that is not told of
  }
}

void tell_of_rank_waits(RankWaits* whom) noexcept {
  told_of_rank_waits = whom;
}

Seconds waited_for_ranks() noexcept {
  return std::chrono::nanoseconds{spent_on_ranks};
}

void made_progress() noexcept {
  if (Slot* const slot = own_slot(); slot != nullptr) {
    stamp(*slot, now());
  }
}

std::vector<ThreadState> thread_states() {
  std::vector<ThreadState> states;
  Slot const* slot = all_slots.load(std::memory_order_acquire);
  for (; slot != nullptr; slot = slot->next) {
    if (!slot->taken.load(std::memory_order_acquire)) {
      continue;
    }
    ThreadState state;
    bool consistent = false;
    for (int i = 0; i < most_tries && !consistent; ++i) {
      consistent = read(*slot, state);
    }
    if (!consistent) {
      state.what = "running";  // parts of two waits may stand there
    }
    states.push_back(std::move(state));
  }
  return states;
}

Seconds since_progress() noexcept {
  Nanoseconds last = process_start;
  Slot const* slot = all_slots.load(std::memory_order_acquire);
  for (; slot != nullptr; slot = slot->next) {
    last = std::max(last, slot->progress.load(std::memory_order_acquire));
  }
  return std::chrono::nanoseconds{std::max<Nanoseconds>(0, now() - last)};
}

}  // namespace offstage
