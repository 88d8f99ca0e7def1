#include "parameters/extent_reader.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "limits.hpp"
#include "update/deadline.hpp"
#include "update/memory_tiers.hpp"

namespace offstage::parameters {
namespace {

using update::MemoryTiers;
using Keys = std::vector<tiers::Key>;

constexpr int extents = 6;

/// Extents of 8 bytes, all of them their key.
void fill(MemoryTiers& tiers) {
  for (tiers::Key key = 0; key < extents; ++key) {
    auto lease = tiers.create(key);
    std::ranges::fill(lease.mutable_bytes(), static_cast<std::byte>(key));
    lease.commit();
  }
  tiers.forget_events();
}

void no_wait(tiers::Key /*key*/) {}

TEST(ExtentReader, GivesExtentsInTheOrderInWhichTheyAreExpected) {
  update::Deadline const deadline{std::chrono::seconds{60}, "an extent reader"};
  for (int const ahead : {1, 2, 5}) {
    // A fetch takes the longer, the lower its key.
    MemoryTiers tiers{
        std::vector<Bytes>(extents, 8),
        {.buffers = ahead, .hook = [](MemoryTiers::Event event) {
           std::this_thread::sleep_for(std::chrono::milliseconds{extents - event.key});
         }}};
    fill(tiers);
    ExtentReader reader{tiers, ahead, no_wait};
    Keys const order{0, 1, 2, 1, 1, 5, 4, 3, 0};
    reader.expect(std::span{order}.first(3));
    reader.expect(std::span{order}.subspan(3));
    for (tiers::Key const key : order) {
      EXPECT_EQ(reader.front()[7], static_cast<std::byte>(key));
      EXPECT_LE(tiers.held(), ahead);
      reader.pop();
    }
    EXPECT_EQ(tiers.held(), 0);
  }
}

TEST(ExtentReader, WhoseThreadsCannotAllStartEndsThoseThatHave) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  update::Deadline const deadline{std::chrono::seconds{60}, "an extent reader"};
  MemoryTiers tiers{std::vector<Bytes>(extents, 8)};
  fill(tiers);
  AddressSpace const room{40 * MiB};
  EXPECT_THROW((ExtentReader{tiers, 100, no_wait}), IoError);
}

TEST(ExtentReader, ReadsAheadButNoFurtherThanItMay) {
  MemoryTiers tiers{std::vector<Bytes>(extents, 8), {.buffers = extents}};
  fill(tiers);
  ExtentReader reader{tiers, 3, no_wait};
  reader.expect(Keys{0, 1, 2, 3, 4, 5});
  while (tiers.held() < 3) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds{5});
  EXPECT_EQ(tiers.held(), 3);
  static_cast<void>(reader.front());
  reader.pop();
  while (tiers.held() < 3) {
    std::this_thread::yield();
  }
}

TEST(ExtentReader, WaitsBeforeEachFetchForWhatItIsToldTo) {
  MemoryTiers tiers{std::vector<Bytes>(extents, 8)};
  fill(tiers);
  std::atomic<bool> ready{false};
  ExtentReader reader{tiers, 2, [&](tiers::Key key) {
                        if (key == 1) {
                          ready.wait(false);
                        }
                      }};
  reader.expect(Keys{0, 1});
  std::this_thread::sleep_for(std::chrono::milliseconds{5});
  EXPECT_TRUE(tiers.keys_of(MemoryTiers::Call::fetch).size() <= 1);
  ready = true;
  ready.notify_all();
  EXPECT_EQ(reader.front()[0], std::byte{0});
}

TEST(ExtentReader, PassesOnTheErrorOfAFetchInItsPlace) {
  MemoryTiers tiers{std::vector<Bytes>(extents, 8), {.hook = [](MemoryTiers::Event event) {
                      if (event == MemoryTiers::Event{MemoryTiers::Call::fetch, 1}) {
                        throw IoError{"the disk is gone"};
                      }
                    }}};
  fill(tiers);
  ExtentReader reader{tiers, 2, no_wait};
  reader.expect(Keys{0, 1});
  EXPECT_EQ(reader.front()[0], std::byte{0});
  reader.pop();
  EXPECT_THROW((void)reader.front(), IoError);
  EXPECT_THROW((void)reader.front(), IoError);
  EXPECT_THROW(reader.pop(), PreconditionError);
}

TEST(ExtentReader, EndsWithWhatItHasReadAhead) {
  MemoryTiers tiers{std::vector<Bytes>(extents, 8)};
  fill(tiers);
  {
    ExtentReader reader{tiers, 2, no_wait};
    EXPECT_THROW((void)reader.front(), PreconditionError);
    reader.expect(Keys{3, 2, 1});
    static_cast<void>(reader.front());
    reader.stop();
    EXPECT_THROW((void)reader.front(), PreconditionError);
  }
  EXPECT_EQ(tiers.held(), 0);
  EXPECT_THROW((ExtentReader{tiers, 0, no_wait}), PreconditionError);
}

}  // namespace
}  // namespace offstage::parameters
