// Whatever allocation of a save or a restart fails: it ends with an error that says so, leaves
// nothing open, and is done the next time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/failing_allocations.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "checkpoint/staging.hpp"
#include "platform/aio/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class StarvedCheckpoint : public ::testing::Test {
 protected:
  static void expect_typed(std::vector<StarvedRun> const& runs) {
    EXPECT_FALSE(runs.empty());
    for (StarvedRun const& run : runs) {
      EXPECT_FALSE(run.is_data_error) << run.first << ": " << run.message;
      EXPECT_EQ(run.more_descriptors, 0) << run.first << ": " << run.message;
    }
  }

  ScratchDirectory scratch;
};

TEST_F(StarvedCheckpoint, ReadsAManifestOrSaysThatMemoryEnds) {
  std::string const step = write_checkpoint(scratch.path(), 1, 1, 2 * chunk_elements, 3);
  std::string const text = read_text(step + "/" + manifest_name(0));
  expect_typed(starve([&] { (void)parse_manifest(text, adamw_layout(), "rank-0000.json"); }));
  expect_typed(
      starve([&] { (void)parse_manifest(text, adamw_layout(), "rank-0000.json"); }, [] {}, true));
}

TEST_F(StarvedCheckpoint, ReadsAMasterOrSaysThatMemoryEnds) {
  std::string const step = write_checkpoint(scratch.path(), 1, 2, chunk_elements, 3, tiny_model());
  expect_typed(starve([&] { (void)read_master(step); }));
}

TEST_F(StarvedCheckpoint, IsReadOrNotButIsNeverDamaged) {
  std::string const step = write_checkpoint(scratch.path(), 1, 2, chunk_elements, 3, tiny_model());
  memory::HugeBuffer const buffer{12 * chunk_elements};
  expect_typed(starve([&] {
    Reader reader{step, read_master(step)};
    (void)reader.manifest(1);
    state::Piece const piece{1, {0, 1}, 0};
    reader.read({&piece, 1}, buffer.bytes());
  }));
}

TEST_F(StarvedCheckpoint, IsWrittenOrNotAndThenAgain) {
  Shard shard{tiny_model(), 1, 0, chunk_elements};
  shard.fill(5);
  std::string const step = scratch / step_name(2);
  auto const save = [&] {
    aio::make_directory(step);
    auto const files = write_rank_file(step, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers);
    commit_master(step, sample_meta(tiny_model(), 2), {files.manifest});
  };
  expect_typed(starve(save, [&] {
    if (fs::exists(step + "/" + master_name)) {
      EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
    }
    fs::remove_all(step);
  }));
  save();
  EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
}

TEST_F(StarvedCheckpoint, IsLeftAloneWhereMemoryHasEndedForGood) {
  Shard shard{tiny_model(), 1, 0, chunk_elements};
  shard.fill(5);
  std::string const good = write_checkpoint(scratch.path(), 1, 1, chunk_elements, 3, tiny_model());
  std::string const step = scratch / step_name(2);
  constexpr bool forever = true;
  expect_typed(starve([&] { (void)Reader{good, read_master(good)}.manifest(0); }, [] {}, forever));
  expect_typed(starve(
      [&] {
        aio::make_directory(step);
        auto const files =
            Staging{1, step, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers}.finish();
        commit_master(step, sample_meta(tiny_model(), 2), {files.manifest});
      },
      [&] { fs::remove_all(step); }, forever));
  EXPECT_THAT(verify(list(good).at(0)), IsEmpty());
}

TEST_F(StarvedCheckpoint, IsWrittenByAThreadThatHandsItsErrorOver) {
  Shard shard{tiny_model(), 1, 0, chunk_elements};
  shard.fill(5);
  std::string const step = scratch / step_name(2);
  expect_typed(starve(
      [&] {
        aio::make_directory(step);
        (void)Staging{1, step, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers}.finish();
      },
      [&] { fs::remove_all(step); }));
}

}  // namespace
}  // namespace offstage::checkpoint
