// Files of a checkpoint that one node sees and another does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Files of two ranks, one of which wrote its own elsewhere: its node has another directory at that
/// path.
class FilesElsewhere : public ::testing::Test {
 protected:
  void commit(Seconds patience) const {
    commit_master(step_, sample_meta(small_model(), 1), manifests_, false, patience);
  }
  void come() const { std::filesystem::rename(file_ + ".elsewhere", file_); }

  ScratchDirectory scratch_;
  std::string step_ = scratch_ / step_name(1);
  std::vector<std::string> manifests_ =
      write_ranks(step_, small_model(), 2, chunk_elements * 99, 7, adamw_layout());
  std::string file_ = step_ + "/rank-0001.h5";

  void SetUp() override { std::filesystem::rename(file_, file_ + ".elsewhere"); }
};

TEST_F(FilesElsewhere, AreNoCheckpoint) {
  EXPECT_THAT(message_of<IoError>([&] { commit(Seconds{0}); }),
              AllOf(HasSubstr("rank-0001.h5 is missing, as the node of rank 0 sees it"),
                    HasSubstr("rank 1 has written it"), HasSubstr("one directory for all nodes")));
  EXPECT_FALSE(std::filesystem::exists(step_ + "/" + master_name));
}

TEST_F(FilesElsewhere, MayComeIntoSightLater) {
  std::jthread const arrival{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    come();
  }};
  commit(Seconds{60});
  EXPECT_EQ(inspect(step_).state, Completeness::complete);
}

// Another rank has read the master: here the file system is not mounted, and nothing is damaged.
TEST_F(FilesElsewhere, AreNoDamageWhereTheWholeDirectoryIsOutOfSight) {
  come();
  commit(Seconds{0});
  Reader const reader{step_, read_master(step_)};
  std::filesystem::rename(step_, step_ + ".elsewhere");
  EXPECT_THAT(message_of<IoError>([&] { (void)reader.manifest(1); }),
              HasSubstr("is there for another node, but not for this one"));
  std::filesystem::rename(step_ + ".elsewhere", step_);
  std::filesystem::remove(file_);
  EXPECT_THAT(message_of<DataError>([&] { (void)reader.manifest(1); }), HasSubstr("is missing"));
}

}  // namespace
}  // namespace offstage::checkpoint
