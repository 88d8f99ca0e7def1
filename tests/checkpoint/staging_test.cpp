// One rank's part of a checkpoint, written on a thread of its own.
#include "checkpoint/staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "checkpoint/gated_tiers.hpp"
#include "checkpoint/sample.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t two_chunks = 2 * chunk_elements;

class StagingOfARank : public ::testing::Test {
 protected:
  StagingOfARank() {
    make_directory(step);
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
  make_directory(step + "/" + rank_file_name(0));  // in the way
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

}  // namespace
}  // namespace offstage::checkpoint
