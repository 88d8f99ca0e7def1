#include "train/directories.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DirectoriesOfARun : public ::testing::Test {
 protected:
  static RunConfig config(fs::path const& run, fs::path const& checkpoints) {
    RunConfig result;
    result.run_dir = run.string();
    result.checkpoint.dir = checkpoints.string();
    return result;
  }
  static std::string refusal(RunConfig const& wanted) {
    try {
      Directories const made{wanted};
    } catch (IoError const& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      return error.what();
    }
    return "no IoError";
  }

  TemporaryDirectory folder_;
  fs::path const root_ = folder_.path();
};

TEST_F(DirectoriesOfARun, AreCreatedWithTheirParentsAndKept) {
  {
    Directories made{config(root_ / "a/run", root_ / "b/c/")};
    made.keep();
  }
  EXPECT_TRUE(fs::exists(root_ / "a/run/lock"));
  EXPECT_TRUE(fs::exists(root_ / "b/c/lock"));
}

TEST_F(DirectoriesOfARun, LeaveNothingUnlessTheyAreKept) {
  { Directories const made{config(root_ / "a/run", root_ / "a/run/checkpoints")}; }
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(DirectoriesOfARun, LeaveTheLockThatAnEarlierRunCreated) {
  folder_.write("lock", "");
  { Directories const made{config(root_, root_ / "checkpoints")}; }
  EXPECT_TRUE(fs::exists(root_ / "lock"));
  EXPECT_FALSE(fs::exists(root_ / "checkpoints"));
}

TEST_F(DirectoriesOfARun, ARefusedRunLeavesTheHoldersLock) {
  auto const wanted = config(root_ / "run", root_ / "run");
  std::optional<Directories> holder{wanted};
  EXPECT_THROW(Directories{wanted}, LockedError);
  EXPECT_TRUE(fs::exists(root_ / "run/lock"));
  EXPECT_THROW(Directories{wanted}, LockedError);
  holder.reset();
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(DirectoriesOfARun, ANameThatIsTooLongIsAnIoErrorWithKeyAndPath) {
  auto const run = root_ / std::string(300, 'x') / "run";
  EXPECT_THAT(refusal(config(run, root_)),
              AllOf(HasSubstr("run.dir=" + run.string()), HasSubstr("File name too long"),
                    HasSubstr("name a directory that you may create files in")));
  EXPECT_THAT(refusal(config(root_ / "run", run)), HasSubstr("checkpoint.dir=" + run.string()));
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(DirectoriesOfARun, ACircleOfLinksIsAnIoErrorWithKeyAndPath) {
  fs::create_symlink(root_ / "circle", root_ / "circle");
  auto const run = root_ / "circle/run";
  EXPECT_THAT(refusal(config(run, root_)),
              AllOf(HasSubstr("run.dir=" + run.string()), HasSubstr("Too many levels")));
}

TEST_F(DirectoriesOfARun, AFileInTheWayIsAnIoErrorWithKeyAndPath) {
  auto const file = folder_.write("file", "");
  EXPECT_THAT(refusal(config(file, root_)),
              AllOf(HasSubstr("run.dir=" + file), HasSubstr("not a directory")));
  EXPECT_THAT(refusal(config(root_ / "run", file + "/below")),
              AllOf(HasSubstr("checkpoint.dir=" + file + "/below"), HasSubstr("Not a directory")));
}

}  // namespace
}  // namespace offstage::train
