#include "train/files/directories.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "temporary_directory.hpp"
#include "train/files/foreign.hpp"

namespace offstage::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DirectoriesOfARun : public ::testing::Test {
 protected:
  static config::RunConfig config(fs::path const& run, fs::path const& checkpoints) {
    config::RunConfig result;
    result.run_dir = run.string();
    result.checkpoint.dir = checkpoints.string();
    return result;
  }
  static std::string refusal(config::RunConfig const& wanted) {
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
                    HasSubstr("name a directory in which you may create files")));
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

TEST_F(DirectoriesOfARun, OfARunAreNoCheckpointAndHoldNone) {
  auto const checkpoints = root_ / "run/checkpoints";
  auto const step = checkpoints / "step-000000007";
  fs::create_directories(step);
  folder_.write("run/checkpoints/step-000000007/master.h5", "");
  auto const misuse = [](config::RunConfig const& wanted) -> std::string {
    try {
      Directories const made{wanted};
    } catch (UsageError const& error) {
      return error.what();
    }
    return "no UsageError";
  };
  EXPECT_THAT(misuse(config(step, step / "checkpoints")),
              AllOf(HasSubstr("run.dir=" + step.string() + " is a checkpoint itself"),
                    HasSubstr("the directory of its run")));
  EXPECT_THAT(misuse(config(checkpoints, checkpoints / "checkpoints")),
              AllOf(HasSubstr("run.dir=" + checkpoints.string() + " holds checkpoints"),
                    HasSubstr("checkpoint.resume=" + step.string())));
  EXPECT_FALSE(fs::exists(checkpoints / "lock"));
  EXPECT_FALSE(fs::exists(checkpoints / "checkpoints"));
  Directories const made{config(checkpoints, checkpoints)};
}

TEST_F(DirectoriesOfARun, MayBeLinksThemselves) {
  fs::create_directories(root_ / "there/run");
  fs::create_directory_symlink(root_ / "there/run", root_ / "run");
  fs::create_directory_symlink(root_ / "there", root_ / "checkpoints");
  {
    Directories made{config(root_ / "run", root_ / "checkpoints")};
    made.keep();
  }
  EXPECT_TRUE(fs::exists(root_ / "there/run/lock"));
  EXPECT_TRUE(fs::exists(root_ / "there/lock"));
}

TEST_F(DirectoriesOfARun, HaveNoCheckpointsThatAreLinks) {
  fs::create_directories(root_ / "run/checkpoints");
  fs::create_directory(root_ / "elsewhere");
  fs::create_symlink(root_ / "gone", root_ / "run/away");
  EXPECT_THAT(refusal(config(root_ / "run", root_ / "run/away")),
              AllOf(HasSubstr("checkpoint.dir="), HasSubstr("run/away is a symbolic link to "),
                    HasSubstr("gone, which is not there")));
  auto const link = root_ / "run/checkpoints/step-000000007";
  fs::create_directory_symlink(root_ / "elsewhere", link);
  auto const wanted = config(root_ / "run", root_ / "run/checkpoints");
  EXPECT_THAT(refusal(wanted), AllOf(HasSubstr("checkpoint.dir=" + wanted.checkpoint.dir),
                                     HasSubstr("step-000000007 is a symbolic link"),
                                     HasSubstr("checkpoint.resume")));
  fs::remove(link);
  fs::create_directory_symlink(root_ / "elsewhere", root_ / "run/checkpoints/slots");
  EXPECT_THAT(refusal(wanted), HasSubstr("checkpoints/slots: it is a symbolic link"));
  fs::remove(root_ / "run/checkpoints/slots");
  EXPECT_EQ(refusal(wanted), "no IoError");
}

TEST_F(DirectoriesOfARun, OfAnotherUserAreRefusedUnlessTold) {
  constexpr uid_t somebody = 54321;
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root gives directories away";
  }
  fs::create_directories(root_ / "theirs");
  ASSERT_EQ(::chown((root_ / "theirs").c_str(), somebody, somebody), 0);
  for (auto wanted :
       {config(root_ / "theirs", root_ / "mine"), config(root_ / "mine", root_ / "theirs")}) {
    EXPECT_THAT(refusal(wanted),
                AllOf(HasSubstr("dir=" + (root_ / "theirs").string() + " belongs to user 54321"),
                      HasSubstr("run.allow-foreign=true")));
    EXPECT_TRUE(fs::is_empty(root_ / "theirs"));
    EXPECT_FALSE(fs::exists(root_ / "mine"));
    wanted.allow_foreign = true;
    EXPECT_EQ(refusal(wanted), "no IoError");
  }
  EXPECT_EQ(refusal(config(root_ / "theirs/mine", root_ / "theirs/mine/checkpoints")),
            "no IoError");
}

TEST(ForeignOwner, IsNobodyWhoThisProcessIsByAnotherName) {
  TemporaryDirectory const folder;
  EXPECT_EQ(foreign_owner(folder.path().string(), ::geteuid()), std::nullopt);
  // As where root is squashed: its files belong to the directory's owner.
  EXPECT_EQ(foreign_owner(folder.path().string(), ::geteuid() + 1), std::nullopt);
  EXPECT_EQ(foreign_owner("/usr", ::geteuid() + 1), std::nullopt) << "root's";
  EXPECT_THROW((void)foreign_owner("/nowhere", ::geteuid()), IoError);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace offstage::train
