#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "checkpoint/sample.hpp"
#include "cli/commands.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t subgroup = 2 * chunk_elements;

/// A directory with a complete checkpoint of step 1 and an unfinished save of step 2.
class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    complete = checkpoint::write_checkpoint(scratch.path(), 1, 1, subgroup, 1);
    (void)checkpoint::write_ranks(unfinished, checkpoint::small_model(), 1, subgroup, 1);
  }

  /// The exit code; what was written is in `out` and `err`.
  ExitCode call(std::string const& command, std::string const& path) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    auto const code = run({"checkpoint", command, path});
    out = ::testing::internal::GetCapturedStdout();
    err = ::testing::internal::GetCapturedStderr();
    return code;
  }

  ScratchDirectory scratch;
  std::string complete;
  std::string unfinished = scratch / checkpoint::step_name(2);
  std::string out;
  std::string err;
};

TEST_F(CheckpointCommand, VerifyTakesAnUnfinishedSaveForNoDamage) {
  EXPECT_EQ(call("verify", scratch.path()), ExitCode::done);
  EXPECT_THAT(
      out, AllOf(HasSubstr(complete + ": good\n"), HasSubstr(unfinished + ": unfinished save\n")));
}

TEST_F(CheckpointCommand, ARunsDirectoryStandsForItsCheckpoints) {
  fs::path const run{scratch / "run"};
  fs::create_directories(run / "checkpoints");
  fs::rename(complete, run / "checkpoints" / checkpoint::step_name(1));
  EXPECT_EQ(call("ls", run.string()), ExitCode::done);
  EXPECT_THAT(out, HasSubstr((run / "checkpoints" / checkpoint::step_name(1)).string()));
  EXPECT_EQ(call("verify", run.string()), ExitCode::done);
  // The run's own configuration knows of another place.
  fs::rename(run / "checkpoints", scratch / "elsewhere");
  std::ofstream{run / "effective.cfg"} << "[checkpoint]\ndir = " << (scratch / "elsewhere") << "\n";
  EXPECT_EQ(call("ls", run.string()), ExitCode::done) << err;
  EXPECT_THAT(out, HasSubstr(scratch / "elsewhere"));
  // The configuration may be of another version.
  std::ofstream{run / "effective.cfg", std::ios::app}
      << "[platform]\nconversion = 1GB/s\n[of-a-later]\nversion = 2\n";
  EXPECT_EQ(call("ls", run.string()), ExitCode::done) << err;
  EXPECT_THAT(out, HasSubstr(scratch / "elsewhere"));
  // Tools that keep versions of files leave a link in the place of one.
  fs::rename(run / "effective.cfg", scratch / "kept.cfg");
  fs::create_symlink(scratch / "kept.cfg", run / "effective.cfg");
  EXPECT_EQ(call("ls", run.string()), ExitCode::done) << err;
  EXPECT_THAT(out, HasSubstr(scratch / "elsewhere"));
  // That place is not a copy's.
  fs::path const copy{scratch / "copy"};
  fs::create_directories(copy);
  std::ofstream{copy / "effective.cfg"} << "[run]\ndir = " << run.string()
                                        << "\n[checkpoint]\ndir = " << (scratch / "elsewhere")
                                        << "\n";
  EXPECT_EQ(call("ls", copy.string()), ExitCode::data);
  // Nobody knows to what a relative one was relative: it is not looked for below this directory.
  std::ofstream{run / "effective.cfg"}
      << "[checkpoint]\ndir = " << fs::relative(scratch / "elsewhere").string() << "\n";
  EXPECT_EQ(call("ls", run.string()), ExitCode::data);
}

TEST_F(CheckpointCommand, VerifyFailsOnDamageBesideAnUnfinishedSave) {
  fs::remove(complete + "/rank-0000.h5");
  EXPECT_EQ(call("verify", scratch.path()), ExitCode::data);
  EXPECT_THAT(out, AllOf(HasSubstr(complete + ": damaged: "), HasSubstr("unfinished save")));
}

TEST_F(CheckpointCommand, VerifyFailsWhereNothingIsComplete) {
  fs::remove_all(complete);
  for (std::string const& path : {scratch.path(), unfinished}) {
    EXPECT_EQ(call("verify", path), ExitCode::data);
    EXPECT_THAT(out, HasSubstr(unfinished + ": unfinished save\n"));
    EXPECT_THAT(err, HasSubstr(path + ": no complete checkpoint"));
  }
}

TEST_F(CheckpointCommand, LsSaysWhatIsUnfinished) {
  EXPECT_EQ(call("ls", scratch.path()), ExitCode::done);
  EXPECT_THAT(out, AllOf(HasSubstr(" complete "), HasSubstr(" unfinished "),
                         Not(HasSubstr("did not finish"))));
}

TEST_F(CheckpointCommand, LsSaysWhatIsDamagedAndWhyBelowTheTable) {
  fs::remove(complete + "/rank-0000.h5");
  EXPECT_EQ(call("ls", scratch.path()), ExitCode::done);
  EXPECT_THAT(out, AllOf(ContainsRegex("\n1 +damaged +2 "),
                         HasSubstr("\n" + complete + "/rank-0000.h5 is missing")));
}

TEST_F(CheckpointCommand, ShowsAHostilePathOnOneLineEach) {
  std::string const nasty = scratch / "a\n9  complete\x1b[2J";
  fs::create_directory(nasty);
  fs::rename(complete, nasty + "/step-000000001");
  fs::rename(unfinished, nasty + "/step-000000002");
  for (char const* const command : {"ls", "verify"}) {
    EXPECT_EQ(call(command, nasty), ExitCode::done);
    EXPECT_EQ(std::ranges::count(out, '\n'), command == std::string_view{"ls"} ? 3 : 2) << out;
    EXPECT_THAT(
        out, AllOf(HasSubstr("a\\x0a9  complete\\x1b[2J/step-000000001"), Not(HasSubstr("\x1b"))));
  }
  fs::remove(nasty + "/step-000000001/rank-0000.h5");
  EXPECT_EQ(call("ls", nasty), ExitCode::done);
  EXPECT_EQ(std::ranges::count(out, '\n'), 4) << out;
}

}  // namespace
}  // namespace offstage::cli
