#include "tiers/node_lock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

#include "base/thread.hpp"
#include "base/watch.hpp"
#include "tiers/processes.hpp"

namespace offstage::tiers {
namespace {

struct Inside {
  NodeLockState state;
  std::int64_t count;  // no atomic: the lock has to do
  std::atomic<int> now;
  std::atomic<int> most;

  void enter() {
    int const inside = ++now;
    int known = most;
    while (known < inside && !most.compare_exchange_weak(known, inside)) {
    }
  }
};

/// `rounds` times in each of four processes: in, one more, out.
void add_in_four_processes(Inside& inside, int rounds) {
  Processes processes;
  for (int p = 0; p < 4; ++p) {
    processes.start([&] {
      NodeLock lock{inside.state, 1};
      for (int i = 0; i < rounds; ++i) {
        std::scoped_lock const held{lock};
        inside.enter();
        inside.count = inside.count + 1;
        --inside.now;
      }
    });
  }
}

TEST(NodeLock, LetsOneProcessInAtATime) {
  Shared<Inside> inside;
  add_in_four_processes(*inside, 2000);
  EXPECT_EQ(inside->count, 8000);
  EXPECT_EQ(inside->most, 1);
  EXPECT_EQ(inside->state.next_ticket, 8000U);
  EXPECT_EQ(inside->state.released, 8000U);
}

TEST(NodeLock, ThreadsOfOneProcessExcludeEachOtherToo) {
  NodeLockState state{};
  std::int64_t count = 0;
  {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("adder", [&] {
        NodeLock lock{state, 1};
        for (int i = 0; i < 2000; ++i) {
          std::scoped_lock const held{lock};
          count = count + 1;
        }
      });
    }
  }
  EXPECT_EQ(count, 8000);
}

TEST(NodeLock, GoesOnWhenTicketsWrap) {
  Shared<Inside> inside;
  inside->state.next_ticket = static_cast<std::uint32_t>(-200);
  inside->state.released = static_cast<std::uint32_t>(-200);
  inside->state.left = static_cast<std::uint32_t>(-200);
  add_in_four_processes(*inside, 100);
  EXPECT_EQ(inside->count, 400);
  EXPECT_EQ(inside->most, 1);
  EXPECT_EQ(inside->state.released, 200U);
}

TEST(NodeLock, WakesWhoSleepsEveryTime) {
  // Each comes back at once, so the two take turns; some turns are long enough to sleep.
  Shared<Inside> inside;
  {
    Processes processes;
    for (int p = 0; p < 2; ++p) {
      processes.start([&] {
        NodeLock lock{inside->state, 1};
        for (int i = 0; i < 5000; ++i) {
          std::scoped_lock const held{lock};
          inside->count = inside->count + 1;
          if (i % 4 == p) {
            usleep(1);
          }
        }
      });
    }
  }
  EXPECT_EQ(inside->count, 10000);
}

struct Order {
  NodeLockState state;
  std::array<int, 8> entered;
  std::size_t count;

  void enter(int process) { entered[count++] = process; }
};

TEST(NodeLock, ServesInOrderOfArrivalWhileOneComesBackAtOnce) {
  Shared<Order> order;
  NodeLock lock{order->state, 1};
  lock.lock();
  Processes processes;
  for (int p = 1; p <= 3; ++p) {
    processes.start([&order, p] {
      NodeLock own{order->state, 1};
      own.lock();
      order->enter(p);
      own.unlock();
      if (p == 1) {  // the greedy one
        own.lock();
        order->enter(p);
        own.unlock();
      }
    });
    wait_until([&] { return order->state.next_ticket == static_cast<std::uint32_t>(p + 1); });
  }
  lock.unlock();
  processes.join();
  EXPECT_EQ(order->entered, (std::array{1, 2, 3, 1, 0, 0, 0, 0}));
}

TEST(NodeLock, LetsAsManyInAsItsCapacity) {
  Shared<Inside> inside;
  NodeLock lock{inside->state, 2};
  lock.lock();
  lock.lock();  // returns: there are two places
  Processes processes;
  for (int p = 0; p < 3; ++p) {
    processes.start([&] {
      NodeLock own{inside->state, 2};
      for (int i = 0; i < 500; ++i) {
        std::scoped_lock const held{own};
        inside->enter();
        --inside->now;
      }
    });
  }
  wait_until([&] { return inside->state.next_ticket == 5; });
  EXPECT_EQ(inside->most, 0);
  lock.unlock();
  lock.unlock();
  processes.join();
  EXPECT_LE(inside->most, 2);
  EXPECT_EQ(inside->state.released, 1502U);
}

TEST(NodeLock, LetsAThreadInThatLaterOnesHaveOvertaken) {
  // Tickets 5 and 6 were admitted, and 6 has come and gone before 5 looks.
  NodeLockState state{5, 6, 6};
  NodeLock lock{state, 2};
  lock.lock();
  lock.unlock();
  EXPECT_EQ(state.released, 7U);
}

TEST(NodeLock, HandedOnLetsTheNextInWhileTheLastRequestsGoOn) {
  NodeLockState state{};
  NodeLock lock{state, 1};
  EXPECT_FALSE(lock.is_waited_for());
  lock.lock();
  EXPECT_FALSE(lock.is_waited_for());
  std::atomic<int> inside = 0;
  NamedThread second{"second", [&] {
                       lock.lock();
                       ++inside;
                     }};
  wait_until([&] { return lock.is_waited_for(); });
  EXPECT_EQ(inside, 0);
  lock.hand_on();
  second.join();
  EXPECT_EQ(inside, 1);
  // Two have not left: a third waits also once the second has handed on.
  NamedThread third{"third", [&] {
                      lock.lock();
                      ++inside;
                      lock.unlock();
                    }};
  wait_until([&] { return lock.is_waited_for(); });
  lock.hand_on();
  usleep(2000);
  EXPECT_EQ(inside, 1);
  lock.leave();
  third.join();
  EXPECT_EQ(inside, 2);
  lock.leave();
  EXPECT_EQ(state.released, 3U);
  EXPECT_EQ(state.left, 3U);
}

TEST(NodeLock, HandedOnNeverHasMoreThanOneInsideAndOneThatEnds) {
  Shared<Inside> inside;
  Processes processes;
  for (int p = 0; p < 4; ++p) {
    processes.start([&] {
      NodeLock lock{inside->state, 1};
      for (int i = 0; i < 1000; ++i) {
        lock.lock();
        inside->enter();
        lock.hand_on();
        --inside->now;
        lock.leave();
      }
    });
  }
  processes.join();
  EXPECT_LE(inside->most, 2);
  EXPECT_EQ(inside->state.left, 4000U);
}

TEST(NodeLock, WaitersOfSmallerCapacityAreWokenToo) {
  NodeLockState state{};
  NodeLock wide{state, 2};
  NodeLock narrow{state, 1};
  for (int i = 0; i < 100; ++i) {
    wide.lock();
    NamedThread waiter{"waiter", [&] { std::scoped_lock const held{narrow}; }};
    wait_until([&] { return state.next_ticket == static_cast<std::uint32_t>(2 * i + 2); });
    usleep(i % 3 == 0 ? 200 : 0);
    wide.unlock();
  }
  EXPECT_EQ(state.released, 200U);
}

TEST(NodeLock, SaysWhereWaitersAreWhenAHolderHasDied) {
  Shared<NodeLockState> state;
  Processes processes;
  processes.start([&] { NodeLock{*state, 1}.lock(); });
  processes.join();
  NodeLock lock{*state, 1};
  NamedThread waiter{"orphan", [&] { std::scoped_lock const held{lock}; }};
  wait_until([&] {
    auto const states = thread_states();
    return std::ranges::any_of(states, [](ThreadState const& s) {
      return s.thread == "orphan" &&
             s.what == "the storage path, which another process or path holds";
    });
  });
  EXPECT_EQ(state->released, 0U);
  lock.unlock();  // on behalf of the dead one, so that this test ends
}

}  // namespace
}  // namespace offstage::tiers
