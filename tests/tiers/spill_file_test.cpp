#include "tiers/spill_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tiers/spill_directory.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SpillFiles : public ::testing::Test {
 protected:
  static constexpr char const* spill = "offstage-test-3";
  [[nodiscard]] SpillFile make(Bytes size = 8192) const {
    return make_spill_file(scratch.path(), spill, size);
  }
  [[nodiscard]] std::string refusal(std::string const& directory) const {
    return message_of([&] { (void)make_spill_file(directory, spill, 8192); });
  }
  ScratchDirectory scratch;
};

TEST_F(SpillFiles, LeaveNoNameInTheDirectory) {
  aio::File const file = make();
  struct stat status {};
  ASSERT_EQ(fstat(file.descriptor(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_nlink, 0U);
  EXPECT_EQ(status.st_size, 8192);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(SpillFiles, AreNotInTheWayOfTheNextOfThatName) {
  aio::File const first = make();
  aio::File const second = make();
  EXPECT_NE(first.descriptor(), second.descriptor());
}

TEST_F(SpillFiles, TakeOverAnEmptyDirectory) {
  std::filesystem::create_directory(scratch / spill);
  (void)make();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(SpillFiles, ShareTheirDirectoryWhereItKeepsOpenFilesUnderHiddenNames) {
  std::string const name = spill_name({"12", "run", "here", getpid(), 0});
  std::string const hidden = scratch / name + "/.nfs0000000000000001";
  std::filesystem::create_directory(scratch / name);
  std::ofstream{hidden} << "of a file that is open";
  {
    auto const file = make_spill_file(scratch.path(), name, 8192);
    EXPECT_TRUE(std::filesystem::exists(hidden));
    SpillMark const mark{{scratch.path(), name}};
    EXPECT_TRUE(is_there({scratch.path(), name}));
    std::filesystem::remove(hidden);  // that file was closed
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(SpillFiles, RefuseWhatLiesInTheirDirectory) {
  std::filesystem::create_directory(scratch / spill);
  std::string const foreign = scratch / spill + "/extents";
  std::ofstream{foreign} << "foreign";
  EXPECT_THAT(refusal(scratch.path()),
              AllOf(HasSubstr("tiers.path"), HasSubstr(scratch / spill), HasSubstr("remove")));
  EXPECT_EQ(std::filesystem::file_size(foreign), 7U);
}

TEST_F(SpillFiles, RefuseAFileInPlaceOfTheirDirectory) {
  std::ofstream{scratch / spill} << "foreign";
  EXPECT_THAT(refusal(scratch.path()), HasSubstr("in the way"));
}

TEST_F(SpillFiles, SayWhatIsWrongWithThePath) {
  std::string const missing = scratch / "missing";
  EXPECT_THAT(refusal(missing), AllOf(HasSubstr("tiers.path = " + missing),
                                      HasSubstr("does not exist"), HasSubstr("create it")));
  std::string const file = scratch / "file";
  std::ofstream{file} << "x";
  EXPECT_THAT(refusal(file), HasSubstr("not a directory"));
  // Neither root nor others make directories there.
  EXPECT_THAT(refusal("/proc"), HasSubstr("tiers.path = /proc"));
}

TEST_F(SpillFiles, RefuseWhatDoesNotFitAndLeaveNothing) {
  EXPECT_THAT(message_of([&] { (void)make(Bytes{1} << 50); }),
              AllOf(HasSubstr("tiers.path"), HasSubstr("needs"), HasSubstr("is free")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace offstage::tiers
