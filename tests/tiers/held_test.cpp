// Versions that a save holds while the run goes on.
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "platform/memory/huge_buffer.hpp"
#include "tiers/virtual_trials.hpp"

namespace offstage::tiers {
namespace {

constexpr Bytes piece_bytes = checksum_block_bytes;

class Held : public VirtualTrials {
 protected:
  void fill_and_hold(Key n, std::int64_t cached, std::int64_t spare_slots = 0) {
    settings.holds = true;
    fill(n, cached, spare_slots, spare_slots);
    tiers->hold();
  }
  /// True if the held version has this value in every byte.
  [[nodiscard]] bool held(Key key, int value) const {
    memory::HugeBuffer const memory{piece_bytes};
    Bytes next = 0;
    bool good = true;
    tiers->read_held(key, memory.bytes(),
                     [&](auto bytes, Bytes offset) {
                       good = good && all(bytes, value) && offset == next;
                       next = offset + std::ssize(bytes);
                     },
                     {});
    return good && next == 8 * KiB;
  }
  [[nodiscard]] std::vector<Key> held_keys(Key n) const {
    std::vector<Key> keys;
    for (Key const key : ascending(n)) {
      if (tiers->is_held(key)) {
        keys.push_back(key);
      }
    }
    return keys;
  }
};

TEST_F(Held, StayWhileAnyNumberOfPassesMakesOthersCurrent) {
  fill_and_hold(6, 2);  // 4 and 5 are in memory
  EXPECT_EQ(held_keys(6), (std::vector<Key>{0, 1, 2, 3}));
  auto const slots = tiers->space().at(0).slots;
  EXPECT_EQ(slots, 2 * 4 + 1);
  for (int pass = 1; pass <= 3; ++pass) {
    tiers->begin_pass();
    for (Key const key : ascending(6)) {
      replace(*tiers, key, static_cast<int>(key) + 10 * pass);
    }
    for (Key const key : ascending(4)) {
      EXPECT_TRUE(held(key, static_cast<int>(key))) << "pass " << pass << ", key " << key;
    }
  }
  for (Key const key : ascending(6)) {
    tiers->release(key);
    EXPECT_FALSE(tiers->is_held(key));
    EXPECT_TRUE(holds(*tiers, key, static_cast<int>(key) + 30));
  }
  EXPECT_EQ(tiers->space().at(0).slots, slots) << "the slots that were planned sufficed";
  for (int pass = 4; pass <= 6; ++pass) {
    tiers->hold();
    for (Key const key : ascending(6)) {
      replace(*tiers, key, static_cast<int>(key) + 10 * pass);
      tiers->release(key);
    }
  }
  EXPECT_EQ(tiers->space().at(0).slots, slots) << "each was free again";
}

TEST_F(Held, AreThoseOfThenWhateverBecomesOfTrials) {
  for (bool const accepted : {true, false}) {
    fill_and_hold(4, 0, 4);
    for (Key const key : ascending(4)) {
      ASSERT_TRUE(try_out(*tiers, key, 50));
    }
    if (accepted) {
      tiers->accept_trials();
    } else {
      EXPECT_EQ(tiers->revert_trials(), ascending(4));
    }
    for (Key const key : ascending(4)) {
      EXPECT_TRUE(held(key, static_cast<int>(key)));
      EXPECT_TRUE(holds(*tiers, key, accepted ? 50 : static_cast<int>(key)));
      tiers->release(key);
      EXPECT_TRUE(holds(*tiers, key, accepted ? 50 : static_cast<int>(key)));
    }
  }
}

TEST_F(Held, AreNoneWithoutSlotsForThem) {
  fill(4, 1, 0, 0);
  tiers->hold();
  EXPECT_TRUE(held_keys(4).empty());
  EXPECT_THROW((void)held(0, 0), PreconditionError);
}

TEST_F(Held, AreReadAgainFromTheFirstPieceWhenDamagedOnTheWay) {
  fill_and_hold(2, 0);
  int reads = 0;
  kernel->on_complete = [&](aio::Transfer const& transfer, aio::Completion& completion) {
    if (transfer.direction == aio::Direction::read && ++reads == 1) {
      completion.result = -EIO;
    }
  };
  EXPECT_TRUE(held(1, 1));
  EXPECT_EQ(reads, 2);
  kernel->on_complete = [](aio::Transfer const& transfer, aio::Completion& completion) {
    if (transfer.direction == aio::Direction::read) {
      completion.result = -EIO;
    }
  };
  EXPECT_THROW((void)held(1, 1), IoError);
}

// A checkpoint's file system that is full says nothing about the state.
TEST_F(Held, AreNotLostWhereWhoeverTakesThemFails) {
  fill_and_hold(2, 0);
  memory::HugeBuffer const memory{piece_bytes};
  int takes = 0;
  try {
    tiers->read_held(1, memory.bytes(),
                     [&](auto, Bytes) {
                       ++takes;
                       throw IoError{"checkpoint.dir is full"};
                     },
                     {});
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_STREQ(error.what(), "checkpoint.dir is full");
  }
  EXPECT_EQ(takes, 1);
  EXPECT_TRUE(held(1, 1));
}

}  // namespace
}  // namespace offstage::tiers
