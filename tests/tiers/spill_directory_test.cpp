#include "tiers/spill_directory.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "platform/scratch_directory.hpp"

namespace offstage::tiers {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SpillName, TellsItsOwner) {
  SpillOwner const owner{"4711", "my run-2", "node-3.site", 1234, 7};
  std::string const name = spill_name(owner);
  EXPECT_EQ(name, "offstage-4711-my_run_2-node_3.site-1234-7");
  auto const found = spill_owner(name);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->job, "4711");
  EXPECT_EQ(found->host, "node_3.site");
  EXPECT_EQ(found->process, 1234);
  EXPECT_EQ(found->rank, 7);
}

TEST(SpillName, OfNoJobSaysSo) {
  std::string const name = spill_name({"", "", "h", 1, 0});
  EXPECT_EQ(name, "offstage-nojob-_-h-1-0");
  EXPECT_EQ(spill_owner(name)->job, "");
}

TEST(SpillName, StaysAPartOfAPathAndShort) {
  std::string run(500, 'x');
  run += '/';
  std::string const name = spill_name({"1/..", run, "../h", 1, 0});
  EXPECT_EQ(name.find('/'), std::string::npos);
  EXPECT_LT(name.size(), 255U);
}

TEST(SpillName, IsNoOtherForm) {
  for (char const* name : {"",
                           "-",
                           "offstage",
                           "offstage-data",
                           "offstage-1-run-h-2",
                           "offstage-1-run-h-2-3-4",
                           "offstage-1-run-h-x-0",
                           "offstage-1-run-h-0-0",
                           "offstage-1-run-h--1-0",
                           "offstage-1-run-h-99999999999-0",
                           "offstage-1-run-h-1-",
                           "offstage-1-r n-h-1-0",
                           "Offstage-1-run-h-1-0",
                           "offstage-1-run-h-1-0 ",
                           "offstage-1\n-run-h-1-0",
                           "offstage-\x1b[2J-run-h-1-0",
                           "offstage-1 2-run-h-1-0",
                           "offstage-\xc3\xa9-run-h-1-0",
                           "offstage-1-r\nn-h-1-0",
                           "offstage-1-run-h\x7f-1-0",
                           "offstage-1-run-h-1-0\n"}) {
    EXPECT_FALSE(spill_owner(name)) << name;
  }
}

TEST(SpillName, HasPartsNoLongerThanThoseItIsMadeOf) {
  std::string const longest(64, 'x');
  EXPECT_TRUE(spill_owner(fmt::format("offstage-{0}-{0}-{0}-1-0", longest)));
  EXPECT_FALSE(spill_owner(fmt::format("offstage-{}x-run-h-1-0", longest)));
  EXPECT_FALSE(spill_owner(fmt::format("offstage-1-{}x-h-1-0", longest)));
  EXPECT_FALSE(spill_owner(fmt::format("offstage-1-run-{}x-1-0", longest)));
  EXPECT_EQ(spill_owner(spill_name({longest + "y", longest + "y", longest + "y", 1, 0}))->job,
            longest);
}

/// The id of a process that has ended.
pid_t gone() {
  pid_t const child = fork();
  if (child == 0) {
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  return child;
}

class Spills : public ::testing::Test {
 protected:
  std::string make(std::string const& host, std::int64_t process,
                   std::string const& job = "12") const {
    std::string path = scratch / spill_name({job, "run", host, process, 0});
    fs::create_directory(path);
    return path;
  }
  ScratchDirectory scratch;
  pid_t const gone_ = gone();
};

TEST_F(Spills, OfAProcessThatIsGoneAreRemoved) {
  std::string const empty = make("here", gone());
  std::string const with_file = make("here", gone());
  std::ofstream{with_file + "/extents"} << "x";
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_FALSE(fs::exists(with_file));
  EXPECT_EQ(report.removed.size(), 2U);
  EXPECT_THAT(report.removed[0], AllOf(HasSubstr("in job 12"), HasSubstr("which is gone")));
  EXPECT_THAT(report.left, IsEmpty());
}

TEST_F(Spills, OfAProcessThatHasEndedAndNobodyHasAskedHowAreRemoved) {
  pid_t const child = fork();
  if (child == 0) {
    _exit(0);
  }
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  std::string const left = make("here", child);
  auto const report = tidy_spills(scratch.path(), "here");
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(report.removed.size(), 1U);
}

TEST_F(Spills, OfALivingProcessAreNobodyElsesBusiness) {
  std::string const mine = make("here", getpid());
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_TRUE(fs::exists(mine));
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_THAT(report.left, IsEmpty());
}

TEST_F(Spills, OfAnotherHostAreReported) {
  std::string const theirs = make("there", gone());
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_TRUE(fs::exists(theirs));
  EXPECT_THAT(report.left, ElementsAre(AllOf(HasSubstr(theirs), HasSubstr("on there"))));
}

TEST_F(Spills, WithSomethingElseInThemAreReported) {
  std::string const path = make("here", gone());
  std::ofstream{path + "/notes"} << "mine";
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_TRUE(fs::exists(path + "/notes"));
  EXPECT_THAT(report.left, ElementsAre(AllOf(HasSubstr(path), HasSubstr("not empty"))));
}

TEST_F(Spills, WithForgedNamesAreNotEvenRead) {
  for (int i = 0; i < 3000; ++i) {
    fs::create_directory(
        scratch / fmt::format("offstage-1\noffstage: error: forged {}\x1b[2J-run-there-1-0", i));
  }
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_THAT(report.left, IsEmpty());
  EXPECT_THAT(report.removed, IsEmpty());
}

TEST_F(Spills, ByTheThousandsAreAFewLines) {
  for (int i = 0; i < 3000; ++i) {
    (void)make("there", 1000 + i);
  }
  for (int i = 0; i < 100; ++i) {
    (void)make("here", gone_, std::to_string(i));
  }
  auto const report = tidy_spills(scratch.path(), "here");
  ASSERT_EQ(report.left.size(), most_spill_lines + 1);
  EXPECT_EQ(report.left.back(), "left 2996 more of this user in " + scratch.path());
  ASSERT_EQ(report.removed.size(), most_spill_lines + 1);
  EXPECT_EQ(report.removed.back(), "removed 96 more in " + scratch.path());
}

TEST_F(Spills, OfOthersHideNoneOfThisUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can make directories of another user";
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(chown(make("here", gone_, std::to_string(i)).c_str(), 4242, 4242), 0);
  }
  std::string const mine = make("there", 1);
  auto const report = tidy_spills(scratch.path(), "here");
  ASSERT_EQ(report.left.size(), most_spill_lines + 2);
  EXPECT_THAT(report.left.front(), HasSubstr(mine));
  EXPECT_THAT(report.left[1], HasSubstr("belongs to another user"));
  EXPECT_EQ(report.left.back(), "left 96 more of other users in " + scratch.path());
}

TEST_F(Spills, AreNeverSoughtThroughALink) {
  fs::create_directory(scratch / "target");
  std::ofstream{scratch / "target/extents"} << "precious";
  fs::create_symlink(scratch / "target", scratch / spill_name({"12", "run", "here", gone(), 0}));
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_TRUE(fs::exists(scratch / "target/extents"));
  EXPECT_THAT(report.left, ElementsAre(HasSubstr("no directory")));
}

TEST_F(Spills, OfANamesakeMakeRoom) {
  std::string const name = spill_name({"12", "run", "here", getpid(), 0});
  std::string const other = make("here", gone());
  fs::create_directory(scratch / name);
  std::ofstream{scratch / name + "/extents"} << "stale";
  remove_namesake(scratch.path(), name);
  EXPECT_FALSE(fs::exists(scratch / name));
  remove_namesake(scratch.path(), fs::path{other}.filename().string());
  EXPECT_TRUE(fs::exists(other));
}

TEST_F(Spills, InADirectoryThatIsNotThereAreNone) {
  auto const report = tidy_spills(scratch / "missing", "here");
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_THAT(report.left, IsEmpty());
}

TEST_F(Spills, OtherNamesAreLeftAlone) {
  fs::create_directory(scratch / "offstage-data");
  std::ofstream{scratch / "offstage-1-run-here-1"} << "x";
  auto const report = tidy_spills(scratch.path(), "here");
  EXPECT_THAT(report.left, IsEmpty());
  EXPECT_TRUE(fs::exists(scratch / "offstage-1-run-here-1"));
}

TEST(LiesInMemory, TellsTmpfsFromDisks) {
  EXPECT_FALSE(lies_in_memory("/proc"));
  EXPECT_FALSE(lies_in_memory("/no/such/directory"));
  if (fs::is_directory("/dev/shm")) {
    EXPECT_TRUE(lies_in_memory("/dev/shm"));
  }
}

}  // namespace
}  // namespace offstage::tiers
