#include "tiers/throttle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tiers/processes.hpp"

namespace offstage::tiers {
namespace {

using namespace std::chrono_literals;
using aio::Direction;
using Clock = Throttle::Clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr Clock::time_point start{std::chrono::hours{1}};
// A path idle for long is as good as busy until here.
constexpr Clock::time_point busy = start - Throttle::credit;

/// 100 kB take 1 ms to read, 2 ms to write.
constexpr Emulation slow{100e6, 50e6, Seconds{0.0}, Duplex::half};
constexpr Bytes part = 100'000;

double milliseconds(Clock::duration time) {
  return Milliseconds{time}.count();
}

TEST(Throttle, BooksEachTransferBehindThoseBefore) {
  ThrottleState state{};
  Throttle throttle{slow, state};
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 1ms);
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 2ms);
  EXPECT_EQ(throttle.book(Direction::write, part, start), busy + 4ms);
  EXPECT_EQ(throttle.book(Direction::read, 10 * part, start + 1ms), busy + 14ms);
}

TEST(Throttle, FullDuplexBooksEachDirectionByItself) {
  ThrottleState state{};
  Emulation emulation = slow;
  emulation.duplex = Duplex::full;
  Throttle throttle{emulation, state};
  EXPECT_EQ(throttle.book(Direction::read, 10 * part, start), busy + 10ms);
  EXPECT_EQ(throttle.book(Direction::write, 10 * part, start), busy + 20ms);
  EXPECT_EQ(throttle.book(Direction::read, 10 * part, start), busy + 20ms);
}

TEST(Throttle, EachTransferTakesTheLatencyMore) {
  ThrottleState state{};
  Emulation emulation = slow;
  emulation.latency = 3ms;
  Throttle throttle{emulation, state};
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 4ms);
  EXPECT_EQ(throttle.book(Direction::write, part, start), busy + 9ms);
  EXPECT_EQ(throttle.book(Direction::write, 0, start), busy + 12ms);
}

TEST(Throttle, ARateOfZeroDoesNotLimit) {
  ThrottleState state{};
  Throttle throttle{{0.0, 50e6, Seconds{0.0}, Duplex::half}, state};
  EXPECT_EQ(throttle.book(Direction::read, Bytes{1} << 60, start), busy);
  EXPECT_EQ(throttle.book(Direction::write, part, start), busy + 2ms);
}

TEST(Throttle, LateReturnsWithinTheCreditDoNotLowerTheRate) {
  ThrottleState state{};
  Throttle throttle{slow, state};
  Clock::time_point end = throttle.book(Direction::read, 100 * part, start);
  for (int i = 1; i < 50; ++i) {
    end = throttle.book(Direction::read, 100 * part, end + 4ms);
  }
  EXPECT_DOUBLE_EQ(milliseconds(end - busy), 50 * 100.0);
}

TEST(Throttle, IdleTimeIsCreditedUpToItsLimitOnly) {
  ThrottleState state{};
  Throttle throttle{slow, state};
  Clock::time_point const end = throttle.book(Direction::read, 100 * part, start);
  EXPECT_EQ(throttle.book(Direction::read, 100 * part, end + 1s),
            end + 1s - Throttle::credit + 100ms);
  EXPECT_EQ(Throttle::credit, 5ms);
}

TEST(Throttle, ProcessesTogetherGetTheEmulatedRate) {
  Shared<ThrottleState> state;
  {
    Processes processes;
    for (int p = 0; p < 4; ++p) {
      processes.start([&] {
        Throttle throttle{slow, *state};
        for (int i = 0; i < 1000; ++i) {
          (void)throttle.book(i % 2 == 0 ? Direction::read : Direction::write, part, start);
        }
      });
    }
  }
  Throttle throttle{slow, *state};
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 6001ms);
}

TEST(Throttle, SumsOfImmenseTransfersDoNotOverflow) {
  ThrottleState state{};
  Throttle throttle{{1e3, 1e3, Seconds{0.0}, Duplex::half}, state};
  Clock::time_point last = start;
  for (int i = 0; i < 10; ++i) {
    Clock::time_point const end = throttle.book(Direction::read, Bytes{1} << 62, start);
    EXPECT_GT(end, last);
    last = end;
  }
}

TEST(Throttle, ATransferIsNoFasterThanItsStream) {
  ThrottleState state{};
  Emulation emulation = slow;
  emulation.stream_rate = 25e6;  // 100 kB take 4 ms
  Throttle throttle{emulation, state};
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 4ms);
  EXPECT_EQ(throttle.book(Direction::read, part, start), busy + 4ms) << "two move twice as much";
  EXPECT_EQ(throttle.book(Direction::read, 10 * part, start), busy + 40ms);
  EXPECT_EQ(throttle.book(Direction::write, 20 * part, start), busy + 80ms);
  EXPECT_EQ(throttle.book(Direction::write, part, start), busy + 54ms) << "the path's own rate";
}

TEST(Throttle, SharedByProcessesHasAShareOfItsRateLeft) {
  ThrottleState state{};
  Emulation emulation = slow;
  emulation.sharing = 0.25;
  Throttle mine{emulation, state};
  Throttle others{emulation, state};
  EXPECT_EQ(mine.book(Direction::read, part, start), busy + 1ms);
  EXPECT_EQ(mine.book(Direction::read, part, start), busy + 2ms) << "threads of a process";
  EXPECT_EQ(others.book(Direction::read, part, start), busy + 6ms);
  mine.end();
  mine.end();
  EXPECT_EQ(others.book(Direction::write, part, start), busy + 8ms);
  EXPECT_EQ(mine.book(Direction::write, part, start), busy + 16ms);
  mine.end();
  others.end();
  others.end();
  EXPECT_EQ(mine.book(Direction::read, part, start), busy + 17ms);
}

}  // namespace
}  // namespace offstage::tiers
