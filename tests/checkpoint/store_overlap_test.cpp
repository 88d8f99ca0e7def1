// Saves in two parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/thread.hpp"
#include "checkpoint/gated_tiers.hpp"
#include "checkpoint/store_fixture.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using SavesInTwoParts = CheckpointStore;

TEST_F(SavesInTwoParts, WriteUnderOtherWorkAndAreCheckpointsOnceFinished) {
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  GatedTiers gated{*shard.tiers};
  store.begin_save(meta(2), shard.map, shard.subgroups, gated);
  EXPECT_TRUE(store.is_saving());
  if (!shard.subgroups.empty()) {
    gated.await_a_fetch();  // so that the thread has done with HDF5 for now
  }
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true)) << "none is written yet";
  gated.open();
  auto const stats = store.finish_save();
  EXPECT_FALSE(store.is_saving());
  EXPECT_GE(stats.seconds.count(), 0.0);
  Bytes of_state = 0;
  for (state::Subgroup const& subgroup : shard.subgroups) {
    of_state += 12 * subgroup.size;
  }
  EXPECT_EQ(stats.bytes, of_state);
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(SavesInTwoParts, ThrowWhatTheThreadMetWhenTheyAreFinished) {
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  FailingTiers failing;
  tiers::Tiers& used = world.rank() == 0 ? static_cast<tiers::Tiers&>(failing) : *shard.tiers;
  store.begin_save(meta(2), shard.map, shard.subgroups, used);
  EXPECT_THAT(message_of<mpi::AgreedError>([&] { (void)store.finish_save(); }),
              HasSubstr("cannot save step 2: the disk is gone"));
  EXPECT_FALSE(store.is_saving());
  EXPECT_THAT(steps(), ElementsAre(1));
  store.begin_save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  (void)store.finish_save();
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(SavesInTwoParts, AreGivenUpWithTheirStore) {
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  GatedTiers gated{*shard.tiers};
  std::promise<void> begun;
  // Opens while the store is waiting for its thread.
  NamedThread const opener{"opener", [&] {
                             begun.get_future().wait_for(std::chrono::seconds{60});
                             std::this_thread::sleep_for(std::chrono::milliseconds{500});
                             gated.open();
                           }};
  {
    Store other{directory, {}, world};
    other.begin_save(meta(2), shard.map, shard.subgroups, gated);
    begun.set_value();
  }
  EXPECT_LE(gated.asked(), 1);
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
  save(2, 3);
  EXPECT_EQ(restore_newest(3), std::pair(std::int64_t{2}, true));
}

TEST_F(SavesInTwoParts, AreOneAtATimeAndBeginBeforeTheyFinish) {
  Shard shard = make_shard();
  shard.fill(1);
  EXPECT_THROW((void)store.finish_save(), PreconditionError);
  store.begin_save(meta(1), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THROW(store.begin_save(meta(2), shard.map, shard.subgroups, *shard.tiers),
               PreconditionError);
  (void)store.finish_save();
}

}  // namespace
}  // namespace offstage::checkpoint
