// A save of a step that another run's checkpoint has: nothing good goes before its replacement is
// complete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include "checkpoint/inspect.hpp"
#include "checkpoint/replacement.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/failing_calls.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Steps 4, 6 and 8 of an earlier run, and a run that goes back to step 4.
class StoreReplacement : public CheckpointStore {
 protected:
  void SetUp() override {
    Store earlier{directory, {.keep = 5}, world};
    for (std::int64_t const step : {4, 6, 8}) {
      shard.fill(static_cast<std::uint64_t>(step));
      earlier.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
    }
    roll_back();
  }
  void roll_back() {
    restarted = std::make_unique<Store>(directory, Retention{.keep = 5}, world);
    (void)restarted->restore(path(4), small_model(), shard.map, shard.subgroups, *shard.tiers,
                             ignore_parameters);
    restarted->pass_over_after(4);
  }
  /// True if this checkpoint has these bits, on all ranks.
  bool holds(std::int64_t step, std::uint64_t seed) {
    Shard loaded = make_shard();
    Store reading{directory, {}, world};
    (void)reading.restore(path(step), small_model(), loaded.map, loaded.subgroups, *loaded.tiers,
                          ignore_parameters);
    return world.minimum(loaded.holds(seed) ? 1 : 0) == 1;
  }
  [[nodiscard]] std::string away(std::int64_t step) const {
    return directory + "/" + replaced_name(step);
  }

  Shard shard = make_shard();
  std::unique_ptr<Store> restarted;
};

TEST_F(StoreReplacement, IsRemovedOnceItsReplacementIsComplete) {
  shard.fill(60);
  restarted->save(meta(6), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(4, 6));
  EXPECT_TRUE(holds(6, 60));
  EXPECT_FALSE(fs::exists(away(6)));
}

TEST_F(StoreReplacement, IsBackAfterASaveThatFails) {
  FailingTiers failing;
  EXPECT_THROW(restarted->save(meta(6), shard.map, shard.subgroups, failing), mpi::AgreedError);
  EXPECT_THAT(steps(), ElementsAre(4, 6, 8));
  EXPECT_TRUE(holds(6, 6));
  shard.fill(60);
  restarted->save(meta(6), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(4, 6));
  EXPECT_TRUE(holds(6, 60));
}

TEST_F(StoreReplacement, IsBackWhateverCallOfTheSaveFails) {
  Call const kinds = Call::open | Call::write | Call::truncate | Call::sync | Call::rename;
  std::int64_t failures = 0;
  // Every eighth; tests/sweep has them all.
  for (std::int64_t nth = world.size();; nth += 8) {
    bool failed = false;
    bool said = false;
    {
      shard.fill(60);
      // On the rank that does all this; the others take part.
      FailingCalls const failing{{.kinds = kinds,
                                  .error_number = ENOSPC,
                                  .first = world.rank() == 0 ? nth : INT64_MAX,
                                  .times = 1,
                                  .name = directory}};
      try {
        restarted->save(meta(6), shard.map, shard.subgroups, *shard.tiers);
      } catch (mpi::AgreedError const& error) {
        said = true;
        EXPECT_EQ(error.code(), ExitCode::io) << error.what();
      }
      failed = world.broadcast_value(failing.failed() > 0, 0);
    }
    if (said) {
      ++failures;
      EXPECT_FALSE(fs::exists(away(6))) << "call " << nth;
      EXPECT_TRUE(holds(6, 6)) << "call " << nth;
      EXPECT_THAT(steps(), ElementsAre(4, 6, 8)) << "call " << nth;
      continue;
    }
    EXPECT_TRUE(holds(6, 60)) << "call " << nth;
    EXPECT_FALSE(fs::exists(away(6))) << "the next start ends what was left, call " << nth;
    if (!failed) {
      break;
    }
    // What failed was not part of the save but of tidying up.
    on_one_rank([&] { fs::remove_all(directory); });
    SetUp();
  }
  EXPECT_GT(failures, 5);
}

TEST_F(StoreReplacement, IsBackAtTheNextStartAfterASaveThatWasKilled) {
  on_one_rank([&] {
    put_away(directory, 6);
    (void)write_ranks(path(6), small_model(), 2, two_chunks, 60);
  });
  roll_back();
  EXPECT_THAT(steps(), ElementsAre(4, 6, 8));
  EXPECT_TRUE(holds(6, 6));
}

TEST_F(StoreReplacement, IsFoundByTheNameThatItsUserGives) {
  on_one_rank([&] { put_away(directory, 8); });
  Shard loaded = make_shard();
  Store named{directory, {}, world};
  auto const found = named.restore(path(8), small_model(), loaded.map, loaded.subgroups,
                                   *loaded.tiers, ignore_parameters);
  EXPECT_EQ(found.step, 8);
}

TEST_F(StoreReplacement, IsRemovedByTheNextStartWhereTheNewOneWasComplete) {
  on_one_rank([&] {
    put_away(directory, 6);
    write_checkpoint(directory, 6, 2, two_chunks, 60);
  });
  EXPECT_TRUE(holds(6, 60));
  EXPECT_FALSE(fs::exists(away(6)));
}

}  // namespace
}  // namespace offstage::checkpoint
