#include "tiers/spill_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SpillFile : public ::testing::Test {
 protected:
  static constexpr char const* spill = "offstage-test-3";
  [[nodiscard]] aio::File make(Bytes size = 8192) const {
    return make_spill_file(scratch.path(), spill, size);
  }
  [[nodiscard]] std::string refusal(std::string const& directory) const {
    return message_of([&] { (void)make_spill_file(directory, spill, 8192); });
  }
  ScratchDirectory scratch;
};

TEST_F(SpillFile, LeavesNoNameInTheDirectory) {
  aio::File const file = make();
  struct stat status {};
  ASSERT_EQ(fstat(file.descriptor(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_nlink, 0U);
  EXPECT_EQ(status.st_size, 8192);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(SpillFile, IsNotInTheWayOfTheNextOfThatName) {
  aio::File const first = make();
  aio::File const second = make();
  EXPECT_NE(first.descriptor(), second.descriptor());
}

TEST_F(SpillFile, TakesOverAnEmptyDirectory) {
  std::filesystem::create_directory(scratch / spill);
  (void)make();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST_F(SpillFile, RefusesWhatLiesInItsDirectory) {
  std::filesystem::create_directory(scratch / spill);
  std::string const foreign = scratch / spill + "/extents";
  std::ofstream{foreign} << "foreign";
  EXPECT_THAT(refusal(scratch.path()),
              AllOf(HasSubstr("tiers.path"), HasSubstr(scratch / spill), HasSubstr("remove")));
  EXPECT_EQ(std::filesystem::file_size(foreign), 7U);
}

TEST_F(SpillFile, RefusesAFileInPlaceOfItsDirectory) {
  std::ofstream{scratch / spill} << "foreign";
  EXPECT_THAT(refusal(scratch.path()), HasSubstr("in the way"));
}

TEST_F(SpillFile, SaysWhatIsWrongWithThePath) {
  std::string const missing = scratch / "missing";
  EXPECT_THAT(refusal(missing), AllOf(HasSubstr("tiers.path = " + missing),
                                      HasSubstr("does not exist"), HasSubstr("create it")));
  std::string const file = scratch / "file";
  std::ofstream{file} << "x";
  EXPECT_THAT(refusal(file), HasSubstr("not a directory"));
  // Neither root nor others make directories there.
  EXPECT_THAT(refusal("/proc"), HasSubstr("tiers.path = /proc"));
}

TEST_F(SpillFile, RefusesWhatDoesNotFitAndLeavesNothing) {
  EXPECT_THAT(message_of([&] { (void)make(Bytes{1} << 50); }),
              AllOf(HasSubstr("tiers.path"), HasSubstr("needs"), HasSubstr("is free")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace offstage::tiers
