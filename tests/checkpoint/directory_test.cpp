#include "checkpoint/directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/sample.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(CheckpointDirectory, TakesOnlyStepAndDigitsForACheckpoint) {
  EXPECT_EQ(step_name(100), "step-000000100");
  EXPECT_EQ(step_of("step-000000100"), 100);
  EXPECT_EQ(step_of("step-12345678901"), 12345678901);
  for (char const* name : {"step-", "step--1", "step-1x", "step-+1", "xstep-1", "Step-1", "step-1 ",
                           "step-99999999999999999999", ""}) {
    EXPECT_FALSE(step_of(name)) << name;
  }
}

TEST(CheckpointDirectory, ListsStepsFromOldToNewAndNothingElse) {
  ScratchDirectory const scratch;
  EXPECT_TRUE(step_directories(scratch / "absent").empty());
  for (char const* name : {"step-000000010", "step-000000009", "step-000000100", "other"}) {
    fs::create_directory(scratch / name);
  }
  overwrite(scratch / "step-000000011", "a file");
  std::vector<std::int64_t> steps;
  for (StepDirectory const& directory : step_directories(scratch.path())) {
    steps.push_back(directory.step);
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(9, 10, 100));
}

TEST(CheckpointDirectory, RemovesItsOwnFilesAlone) {
  ScratchDirectory const scratch;
  std::string const step = scratch / "step-000000001";
  fs::create_directory(step);
  for (char const* name :
       {"master.h5", "master.h5.tmp", "rank-0000.h5", "rank-0000.json", "extent-0000-000001.h5",
        "head-0000", "passed-over", "extent-0000-000001.h5.tmp", "rank-0000.h5.tmp"}) {
    overwrite(step + "/" + name, "x");
  }
  overwrite(step + "/notes.txt", "mine");
  overwrite(step + "/rank-x.h5", "mine");
  overwrite(step + "/rank-x.h5.tmp", "mine");
  remove_checkpoint(step);
  EXPECT_EQ(std::distance(fs::directory_iterator{step}, {}), 3);
  fs::remove(step + "/notes.txt");
  fs::remove(step + "/rank-x.h5.tmp");
  fs::remove(step + "/rank-x.h5");
  remove_checkpoint(step);
  EXPECT_FALSE(fs::exists(step));
  remove_checkpoint(step);  // another thread, or the user, was quicker
}

TEST(CheckpointDirectory, HasNoStepsThatAreLinksAndRemovesNothingThroughThem) {
  ScratchDirectory const scratch;
  fs::create_directories(scratch / "another/step-000000001");
  overwrite(scratch / "another/step-000000001/master.h5", "x");
  fs::create_directory(scratch / "mine");
  fs::create_directory_symlink(scratch / "another/step-000000001", scratch / "mine/step-000000001");
  EXPECT_TRUE(step_directories(scratch / "mine").empty());
  EXPECT_THAT(message_of<IoError>([&] { remove_checkpoint(scratch / "mine/step-000000001"); }),
              HasSubstr("mine/step-000000001: it is a symbolic link"));
  EXPECT_TRUE(fs::exists(scratch / "another/step-000000001/master.h5"));
  // The directory of all checkpoints is the user's to name.
  fs::create_directory_symlink(scratch / "another", scratch / "link");
  EXPECT_EQ(step_directories(scratch / "link").size(), 1U);
}

TEST(CheckpointDirectory, WritesTextsOnceAndReadsThemBack) {
  ScratchDirectory const scratch;
  write_text(scratch / "a", "one\ntwo\n");
  EXPECT_EQ(read_text(scratch / "a"), "one\ntwo\n");
  EXPECT_EQ(size_of(scratch / "a"), 8);
  EXPECT_EQ(size_of(scratch / "b"), std::nullopt);
  // Who names a master in place of its checkpoint is told so, and not of a failing file system.
  EXPECT_EQ(size_of(scratch / "a/master.h5"), std::nullopt);
  EXPECT_EQ(size_of_file(scratch / "a/master.h5"), std::nullopt);
  EXPECT_THROW(write_text(scratch / "a", ""), IoError);
  EXPECT_THROW((void)read_text(scratch / "b"), IoError);
}

TEST(CheckpointChecksum, FindsTheFirstChunkThatDiffers) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(5 * block_bytes));
  std::vector<std::uint64_t> checksums(5);
  checksum_blocks(bytes, checksums);
  EXPECT_EQ(checksums[0], checksum_of(std::span{bytes}.first(block_bytes)));
  EXPECT_EQ(first_mismatch(bytes, checksums), std::nullopt);
  bytes[static_cast<std::size_t>(3 * block_bytes)] = std::byte{1};
  bytes.back() = std::byte{1};
  EXPECT_EQ(first_mismatch(bytes, checksums), 3);
  EXPECT_THROW(checksum_blocks(std::span{bytes}.first(100), checksums), PreconditionError);
}

TEST(CheckpointChecksum, ReadsItsOwnHexadecimalsAlone) {
  EXPECT_EQ(to_hex(0xABCDEFU), "0000000000abcdef");
  EXPECT_EQ(parse_hex("0000000000abcdef"), 0xABCDEFU);
  EXPECT_EQ(parse_hex("ffffffffffffffff"), ~std::uint64_t{0});
  for (char const* text : {"", "abcdef", "000000000000000g", "0x00000000abcdef", "-000000000abcdef",
                           "00000000000abcdef"}) {
    EXPECT_FALSE(parse_hex(text)) << text;
  }
}

}  // namespace
}  // namespace offstage::checkpoint
