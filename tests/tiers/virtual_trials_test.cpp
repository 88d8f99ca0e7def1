// Trials in the virtual tier: what they cost, and who waits for what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "tiers/virtual_trials.hpp"

namespace offstage::tiers {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(VirtualTrials, AreNoneUnlessAskedFor) {
  fill(4, 2, 0, 0);
  EXPECT_EQ(tiers->host_bytes(), 3 * 8 * KiB);
  EXPECT_EQ(tiers->space().at(0).slots, 2 + 1);
  for (Key key = 0; key < 4; ++key) {
    EXPECT_FALSE(tiers->fetch_on_trial(key));
  }
  tiers->accept_trials();
  EXPECT_THAT(tiers->revert_trials(), IsEmpty());
}

TEST_F(VirtualTrials, TakeASpareSlotInStorageAndASpareBufferInMemory) {
  fill(6, 3, 2, 1);  // 3, 4 and 5 are in memory
  EXPECT_TRUE(try_out(*tiers, 5, 10));
  EXPECT_FALSE(tiers->fetch_on_trial(4));
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  EXPECT_TRUE(try_out(*tiers, 1, 10));
  EXPECT_FALSE(tiers->fetch_on_trial(2));
  EXPECT_THAT(tiers->revert_trials(), ElementsAre(0, 1, 5));
  EXPECT_TRUE(tiers->in_memory(5));
  EXPECT_TRUE(try_out(*tiers, 5, 10));
}

TEST_F(VirtualTrials, TakeMemoryAndSlotsForThatManyMore) {
  fill(6, 3, 2, 1);
  EXPECT_EQ(tiers->host_bytes(), (3 + 1 + 1) * 8 * KiB);
  EXPECT_EQ(tiers->space().at(0).slots, 3 + 1 + 2);
  settings.spare_buffers = settings.spare_slots = 100;
  tiers = make({5000, 4096, 100});
  EXPECT_EQ(tiers->host_bytes(), (3 + 3) * 8 * KiB) << "no more than two versions of each";
  settings.cached = 0;
  tiers = make({5000, 4096, 100});
  EXPECT_EQ(tiers->space().at(0).slots, 3 + 1 + 3);
}

TEST_F(VirtualTrials, RefuseFewerSparesThanNone) {
  add_path();
  settings.spare_slots = -1;
  EXPECT_THROW((void)make({4096, 4096}), PreconditionError);
  settings.spare_slots = 0;
  settings.spare_buffers = -1;
  EXPECT_THROW((void)make({4096, 4096}), PreconditionError);
}

TEST_F(VirtualTrials, AreRefusedAtOnceEvenIfNoBufferIsFree) {
  fill(4, 1, 1, 0);
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  Lease const has_the_buffer = tiers->fetch(1);
  EXPECT_FALSE(tiers->fetch_on_trial(2));
  EXPECT_FALSE(tiers->fetch_on_trial(0));
}

TEST_F(VirtualTrials, OfCachedExtentsAreCopiesAndWaitForABufferAsMissesDo) {
  fill(4, 1, 1, 1);  // 3 is in memory
  std::optional<Lease> first{tiers->fetch(0)};
  std::optional<Lease> second{
      tiers->fetch(1)};  // a spare buffer that no version needs is one for leases
  std::atomic<bool> done = false;
  NamedThread trial{"trial", [&] {
                      EXPECT_TRUE(try_out(*tiers, 3, 10));
                      done = true;
                    }};
  let_others_run();
  EXPECT_FALSE(done);
  first.reset();
  trial.join();
  second.reset();
  tiers->revert_trials();
  EXPECT_TRUE(holds(*tiers, 3, 3));
}

TEST_F(VirtualTrials, OfCachedExtentsMoveNoBytesToOrFromStorage) {
  fill(4, 2, 0, 2);
  EXPECT_THAT(moved([&] {
                EXPECT_TRUE(try_out(*tiers, 3, 10));
                EXPECT_TRUE(try_out(*tiers, 2, 10));
                tiers->revert_trials();
                EXPECT_TRUE(try_out(*tiers, 3, 10));
                tiers->accept_trials();
              }),
              ElementsAre(3, 0, 0));
}

TEST_F(VirtualTrials, MayLeaveMemoryWhileTheVersionsBeforeStay) {
  fill(4, 1, 0, 1);  // 3 is in memory
  EXPECT_TRUE(try_out(*tiers, 3, 10));
  replace(*tiers, 0, 5);
  EXPECT_FALSE(tiers->in_memory(3));
  EXPECT_TRUE(holds(*tiers, 3, 10));
  EXPECT_EQ(tiers->residence().host, 8 * KiB) << "current versions alone are counted";
  tiers->revert_trials();
  EXPECT_TRUE(tiers->in_memory(3));
  EXPECT_TRUE(holds(*tiers, 3, 3));
}

TEST_F(VirtualTrials, MoveAsLittleAsPlainPasses) {
  constexpr Key n = 12;
  for (Evict const evict : {Evict::farthest, Evict::oldest}) {
    for (std::int64_t const cached : {0, 1, 5, 11, 12}) {
      settings.evict = evict;
      fill(n, cached, n, n);
      for (int round = 0; round < 4; ++round) {
        auto const order = round % 2 == 0 ? descending(n) : ascending(n);
        EXPECT_THAT(moved([&] { trial_pass(order, round); }),
                    ElementsAre(cached, n - cached, n - cached));
        tiers->accept_trials();
      }
    }
  }
}

TEST_F(VirtualTrials, OfEveryKeyLeaveTheCacheAsItWasIfTheyAreReverted) {
  constexpr Key n = 12;
  for (Evict const evict : {Evict::farthest, Evict::oldest}) {
    for (std::int64_t const cached : {0, 1, 5, 11, 12}) {
      settings.evict = evict;
      fill(n, cached, n, n);
      for (int round = 0; round < 4; ++round) {
        auto const order = round % 2 == 0 ? descending(n) : ascending(n);
        trial_pass(order, round);
        EXPECT_THAT(tiers->revert_trials(), SizeIs(n));
        EXPECT_EQ(tiers->residence().host, cached * 8 * KiB);
        EXPECT_THAT(moved([&] { EXPECT_TRUE(pass(*tiers, order, round)); }),
                    ElementsAre(cached, n - cached, n - cached));
      }
    }
  }
}

TEST_F(VirtualTrials, AreMadeAgainInTheSamePassAtTheSameCost) {
  constexpr Key n = 12;
  for (std::int64_t const cached : {0, 1, 5, 11, 12}) {
    fill(n, cached, n, n);
    tiers->begin_pass();
    for (int round = 0; round < 3; ++round) {
      EXPECT_THAT(moved([&] {
                    for (Key key = 0; key < n; ++key) {
                      EXPECT_TRUE(try_out(*tiers, key, 10));
                    }
                  }),
                  ElementsAre(cached, n - cached, n - cached));
      tiers->revert_trials();
    }
  }
}

TEST_F(VirtualTrials, DoNotBringBackIntoTheCacheWhatHadToLeaveForThem) {
  fill(4, 2, 2, 0);  // 2 and 3 are in memory
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  EXPECT_FALSE(tiers->in_memory(2));
  EXPECT_THAT(tiers->revert_trials(), ElementsAre(0));
  EXPECT_FALSE(tiers->in_memory(0));
  EXPECT_EQ(tiers->residence().host, 8 * KiB);
  EXPECT_TRUE(holds(*tiers, 0, 0));
  EXPECT_TRUE(holds(*tiers, 2, 2));
}

TEST_F(VirtualTrials, MayLeaveTheCacheAboveItsLimitUntilTheNextCommit) {
  fill(4, 1, 0, 1);
  EXPECT_TRUE(try_out(*tiers, 3, 10));
  replace(*tiers, 0, 5);  // drives 3 out
  tiers->revert_trials();
  EXPECT_EQ(tiers->residence().host, 2 * 8 * KiB);
  for (Key const key : {0, 3}) {
    EXPECT_TRUE(tiers->in_memory(key));
  }
  replace(*tiers, 1, 6);
  EXPECT_EQ(tiers->residence().host, 8 * KiB);
  for (auto const& [key, value] :
       std::vector<std::pair<Key, int>>{{0, 5}, {1, 6}, {2, 2}, {3, 3}}) {
    EXPECT_TRUE(holds(*tiers, key, value));
  }
}

TEST_F(VirtualTrials, NeedNoMoreSlotsThanWereAskedFor) {
  constexpr Key n = 12;
  for (std::int64_t const cached : {0, 1, 5}) {
    fill(n, cached, 4, 2);
    auto const asked_for = tiers->space().at(0).slots;
    int value = 0;
    for (int round = 0; round < 12; ++round) {
      trial_pass(round % 2 == 0 ? descending(n) : ascending(n), value);
      if (round % 3 == 0) {
        for (Key const key : tiers->revert_trials()) {
          replace(*tiers, key, static_cast<int>(key) + value + 1);
        }
      } else {
        tiers->accept_trials();
      }
      ++value;
    }
    EXPECT_EQ(tiers->space().at(0).slots, asked_for);
  }
}

TEST_F(VirtualTrials, AcceptedFreeTheBuffersThatOthersWaitFor) {
  fill(4, 1, 0, 1);
  EXPECT_TRUE(try_out(*tiers, 3, 10));
  std::optional<Lease> has_the_buffer{tiers->fetch(0)};
  std::atomic<bool> done = false;
  NamedThread miss{"miss", [&] {
                     EXPECT_TRUE(holds(*tiers, 1, 1));
                     done = true;
                   }};
  let_others_run();
  EXPECT_FALSE(done);
  tiers->accept_trials();
  miss.join();
}

TEST_F(VirtualTrials, AskedForWhenTrialsAreAcceptedAreAsAnyOther) {
  for (Key const key : {1, 3}) {  // in storage, and in memory
    fill(4, 1, 1, 1);
    std::optional<Lease> first{tiers->fetch(0)};
    std::optional<Lease> second{tiers->fetch(2)};
    NamedThread trial{"trial", [&] { EXPECT_TRUE(try_out(*tiers, key, 10)); }};
    auto const asked_for = [&] {
      try {
        EXPECT_THAT(tiers->revert_trials(), IsEmpty());
        return false;
      } catch (PreconditionError const&) {  // a lease on trial is asked for
        return true;
      }
    };
    while (!asked_for()) {
      let_others_run();
    }
    tiers->accept_trials();
    first.reset();
    trial.join();
    EXPECT_THAT(tiers->revert_trials(), IsEmpty());
    EXPECT_TRUE(holds(*tiers, key, 10));
  }
}

TEST_F(VirtualTrials, AskedForBehindALeaseOfTheKeyAreRefusedOrGivenWhenItEnds) {
  fill(4, 1, 1, 1);
  for (Key const key : {1, 3}) {
    for (bool const accepted : {false, true}) {
      std::optional<Lease> first{tiers->fetch(key)};
      NamedThread trial{"trial", [&] { EXPECT_TRUE(try_out(*tiers, key, 10)); }};
      let_others_run();
      if (accepted) {
        tiers->accept_trials();
      }
      first.reset();
      trial.join();
      EXPECT_THAT(tiers->revert_trials(), SizeIs(accepted ? 0 : 1));
      EXPECT_TRUE(holds(*tiers, key, accepted ? 10 : static_cast<int>(key)));
    }
  }
  auto first = tiers->fetch_on_trial(2);
  NamedThread second{"second", [&] { EXPECT_FALSE(tiers->fetch_on_trial(2)); }};
  let_others_run();
  first->commit();
}

TEST_F(VirtualTrials, WaitingForABufferKeepTheirExtentWhereItIs) {
  fill(4, 1, 1, 1);  // 3 is in memory
  std::optional<Lease> first{tiers->fetch(0)};
  std::optional<Lease> second{tiers->fetch(1)};
  NamedThread trial{"trial", [&] { EXPECT_TRUE(try_out(*tiers, 3, 10)); }};
  let_others_run();
  set(*first, 20);
  first->commit();  // would drive 3 out
  trial.join();
  second.reset();
  EXPECT_THAT(tiers->revert_trials(), ElementsAre(3));
  EXPECT_TRUE(tiers->in_memory(3));
  EXPECT_TRUE(holds(*tiers, 3, 3));
  EXPECT_TRUE(holds(*tiers, 0, 20));
}

TEST_F(VirtualTrials, AreRevertedWhenWhatIsBeingWrittenIs) {
  fill(4, 1, 0, 1);
  EXPECT_TRUE(try_out(*tiers, 3, 10));
  std::atomic<bool> writing = false;
  std::atomic<bool> go_on = false;
  kernel->on_submit = [&](aio::Transfer& transfer) {
    if (transfer.direction == aio::Direction::write) {
      writing = true;
      writing.notify_all();
      go_on.wait(false);
    }
    return 0;
  };
  NamedThread drives_it_out{"commit", [&] { replace(*tiers, 0, 5); }};
  writing.wait(false);
  std::atomic<bool> reverted = false;
  NamedThread verdict{"verdict", [&] {
                        EXPECT_THAT(tiers->revert_trials(), ElementsAre(3));
                        reverted = true;
                      }};
  let_others_run();
  EXPECT_FALSE(reverted);
  go_on = true;
  go_on.notify_all();
  drives_it_out.join();
  verdict.join();
  EXPECT_TRUE(holds(*tiers, 3, 3));
  EXPECT_TRUE(holds(*tiers, 0, 5));
}

TEST_F(VirtualTrials, AreNotShared) {
  add_path();
  paths[0].persistent = true;
  std::filesystem::create_directory(scratch / "names");
  settings.kept = std::make_shared<KeptFileShape>(
      KeptFileShape{scratch / "names", "1-r0-", std::vector<std::byte>(4096), 8 * KiB, {}});
  settings.spare_slots = 2;
  tiers = make_filled(3);
  EXPECT_TRUE(tiers->give(0, scratch / "before"));
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  EXPECT_THROW((void)tiers->give(0, scratch / "on-trial"), PreconditionError);
  EXPECT_TRUE(tiers->give(1, scratch / "other"));
  tiers->revert_trials();
  EXPECT_TRUE(holds(*tiers, 0, 0));
  EXPECT_TRUE(tiers->give(0, scratch / "again"));
  EXPECT_TRUE(try_out(*tiers, 0, 10));
  tiers->accept_trials();
  EXPECT_TRUE(tiers->give(0, scratch / "accepted"));
  EXPECT_TRUE(holds(*tiers, 0, 10));
}

}  // namespace
}  // namespace offstage::tiers
