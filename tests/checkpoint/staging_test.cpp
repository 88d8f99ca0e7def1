// One rank's part of a checkpoint, written on a thread of its own.
#include "checkpoint/staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "checkpoint/allowance.hpp"
#include "checkpoint/gated_tiers.hpp"
#include "checkpoint/sample.hpp"
#include "platform/aio/file.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class StagingOfARank : public ::testing::Test {
 protected:
  StagingOfARank() {
    aio::make_directory(step);
    shard.fill(5);
  }

  ScratchDirectory scratch;
  std::string const step = scratch / step_name(2);
  Shard shard{small_model(), 1, 0, two_chunks};
};

TEST_F(StagingOfARank, WritesWhatTheCallerWouldWhileTheStateIsRead) {
  ASSERT_GT(shard.subgroups.size(), 2U);
  Staging staging{2, step, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers};
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(shard.holds(5));
  }
  RankFiles const written = staging.finish();
  EXPECT_GT(staging.seconds().count(), 0.0);
  commit_master(step, sample_meta(small_model(), 2), {written.manifest});
  auto const found = list(scratch.path());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(verify(found[0]), IsEmpty());
  ScratchDirectory const other;
  write_checkpoint(other.path(), 2, 1, two_chunks, 5);
  EXPECT_THAT(compare(found[0], list(other.path())[0]), IsEmpty());
}

TEST_F(StagingOfARank, ThrowsWhatItsThreadMet) {
  aio::make_directory(step + "/" + rank_file_name(0));  // in the way
  Staging staging{1, step, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers};
  EXPECT_THROW((void)staging.finish(), IoError);
}

TEST_F(StagingOfARank, GivesUpAfterTheSubgroupThatItIsAt) {
  GatedTiers gated{*shard.tiers};
  std::optional<Staging> staging{std::in_place,   1,    step, 0, 1, adamw_layout(),
                                 shard.subgroups, gated};
  gated.await_a_fetch();
  // Opens while the destructor waits.
  std::jthread const opener{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{500});
    gated.open();
  }};
  staging.reset();
  EXPECT_EQ(gated.asked(), 1);
}

TEST(AnAllowance, PausesUntilTheWorkIsDueOrSomebodyHurries) {
  auto const begin = Allowance::Clock::now();
  Allowance allowance;
  allowance.add(Seconds{0.05});
  allowance.pause([] { return false; });
  EXPECT_GE(Seconds{Allowance::Clock::now() - begin}.count(), 0.05);
  Seconds const before = allowance.paused();
  EXPECT_LE(before.count(), Seconds{Allowance::Clock::now() - begin}.count());
  allowance.add(Seconds{1e9});
  EXPECT_TRUE(allowance.has_time(Seconds{}));
  int asked = 0;
  allowance.pause([&] { return ++asked == 4; });
  EXPECT_GE((allowance.paused() - before).count(), 0.06) << "three looks of 20 ms";
}

TEST_F(StagingOfARank, ItsRatesPausesAreCountedAndEndWhenItHurries) {
  tiers::PathSettings path;
  path.directory = scratch / "storage";
  std::filesystem::create_directory(path.directory);
  tiers::VirtualSettings settings;
  settings.paths = tiers::make_paths({.paths = {path}});
  settings.spill = "offstage-test";
  settings.buffers = 1;
  settings.holds = true;
  shard.tiers = tiers::make_virtual_tiers(shard.sizes(), settings);
  shard.fill(5);
  Staging staging{1,
                  step,
                  0,
                  1,
                  adamw_layout(),
                  shard.subgroups,
                  *shard.tiers,
                  {.drain = {.rate = {.bytes_per_second = 1.0}}}};
  staging.wait_for_held();
  std::this_thread::sleep_for(std::chrono::seconds{1});  // some of which it pauses
  EXPECT_FALSE(staging.is_done()) << "a byte a second";
  shard.fill(6);
  RankFiles const written = staging.finish();
  EXPECT_GT(written.paused.count(), 0.0);
  EXPECT_LT(written.paused, staging.seconds());
  commit_master(step, sample_meta(small_model(), 2), {written.manifest});
  ScratchDirectory const other;
  write_checkpoint(other.path(), 2, 1, two_chunks, 5);
  EXPECT_THAT(compare(list(scratch.path())[0], list(other.path())[0]), IsEmpty());
}

}  // namespace
}  // namespace offstage::checkpoint
