#include "tiers/kept_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Tiers with one persistent path, or more, and extents of 8 KiB in files with 4 KiB of 'h' before
/// and three 't' behind them.
class KeptFilesTest : public ::testing::Test, protected VirtualFixture {
 protected:
  static constexpr Bytes extent_bytes = 8 * KiB;

  KeptFilesTest() {
    fs::create_directory(slots);
    auto shape = std::make_shared<KeptFileShape>();
    shape->directory = slots;
    shape->prefix = "slot-0003";
    shape->head.assign(4096, std::byte{'h'});
    shape->slot_bytes = extent_bytes;
    shape->tail.assign(3, std::byte{'t'});
    settings.kept = shape;
  }
  void add_persistent_path() {
    add_path();
    paths.back().persistent = true;
  }

  [[nodiscard]] static std::string contents(std::string const& path) {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  [[nodiscard]] static std::string expected(int value) {
    return std::string(4096, 'h') + std::string(extent_bytes, static_cast<char>(value)) + "ttt";
  }
  [[nodiscard]] std::ptrdiff_t names() const {
    return std::distance(fs::directory_iterator{slots}, fs::directory_iterator{});
  }

  std::string slots = scratch / "slots";
  std::string name = scratch / "mine";
};

TEST_F(KeptFilesTest, SharesAFileThatHoldsTheVersionAlone) {
  add_persistent_path();
  auto const tiers = make_filled(4);
  auto const shared = tiers->give(2, name);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->offset, 4096);
  EXPECT_EQ(shared->file_bytes, 4096 + extent_bytes + 3);
  EXPECT_EQ(shared->checksums.size(), 1U);
  EXPECT_EQ(contents(name), expected(2));
  EXPECT_TRUE(fs::is_empty(paths[0].directory)) << "its names are elsewhere";
}

TEST_F(KeptFilesTest, SharesNoFileThatSomebodyHasShortened) {
  add_persistent_path();
  auto const tiers = make_filled(4);
  for (auto const& slot : fs::directory_iterator{slots}) {
    fs::resize_file(slot.path(), 4096 + extent_bytes);
  }
  std::string message;
  try {
    static_cast<void>(tiers->give(2, name));
  } catch (IoError const& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr(slots + "/slot-0003-0-"),
                             HasSubstr(" has 12288 bytes where 12291 were written")));
  EXPECT_FALSE(fs::exists(name));
}

TEST_F(KeptFilesTest, NeverWritesTheSharedFileAgain) {
  add_persistent_path();
  auto const tiers = make_filled(4);
  EXPECT_TRUE(tiers->give(1, name));
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(pass(*tiers, i % 2 == 0 ? ascending(4) : descending(4), i));
    EXPECT_EQ(contents(name), expected(1)) << "after pass " << i;
  }
  struct stat status {};
  ASSERT_EQ(stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 1U) << "nobody else has it";
}

TEST_F(KeptFilesTest, ReadsOnWhatItShared) {
  add_persistent_path();
  auto const tiers = make_filled(4);
  EXPECT_TRUE(tiers->give(1, name));
  fs::remove(name);
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
  EXPECT_TRUE(tiers->give(1, name)) << "a second time, its version is the same";
  EXPECT_EQ(contents(name), expected(1));
}

TEST_F(KeptFilesTest, TakesNoMoreSpaceHoweverOftenItShares) {
  add_persistent_path();
  auto const tiers = make_filled(4);
  std::ptrdiff_t const before = names();
  for (int i = 0; i < 5; ++i) {
    for (Key key = 0; key < 4; ++key) {
      EXPECT_TRUE(tiers->give(key, name));
      fs::remove(name);
    }
    EXPECT_TRUE(pass(*tiers, ascending(4), i));
    EXPECT_LE(names(), before);
  }
}

TEST_F(KeptFilesTest, SharesNothingThatIsInHostMemoryOrOnAnotherPath) {
  add_path();
  settings.cached = 1;
  auto const tiers = make_filled(4);
  for (Key key = 0; key < 4; ++key) {
    EXPECT_FALSE(tiers->give(key, name));
  }
  EXPECT_FALSE(fs::exists(name));
  EXPECT_EQ(names(), 0);
  paths.clear();
  add_persistent_path();
  auto const persistent = make_filled(4);
  int shared = 0;
  for (Key key = 0; key < 4; ++key) {
    EXPECT_EQ(persistent->give(key, name).has_value(), !persistent->in_memory(key));
    shared += fs::remove(name) ? 1 : 0;
  }
  EXPECT_EQ(shared, 3);
}

TEST_F(KeptFilesTest, SharesWithNamesBesideItsOwnAloneWhereThatIsWanted) {
  auto shape = std::make_shared<KeptFileShape>(*settings.kept);
  shape->near_alone = true;
  settings.kept = shape;
  add_persistent_path();
  auto const tiers = make_filled(4);
  std::string const beside = fs::path{slots}.parent_path().string();
  fs::create_directory(beside + "-of-another");
  EXPECT_FALSE(tiers->give(1, beside + "-of-another/mine"));
  EXPECT_TRUE(fs::remove(beside + "-of-another")) << "nothing is in it";
  EXPECT_TRUE(tiers->give(1, name));
}

TEST_F(KeptFilesTest, ChecksumsAreOfBlocksAndVerifiedAtAFetch) {
  for (Verify const verify : {Verify::always, Verify::off}) {
    paths.clear();
    add_persistent_path();
    settings.verify = verify;
    auto const tiers = make_filled(2);
    auto const shared = tiers->give(0, name);
    ASSERT_TRUE(shared);
    EXPECT_THAT(shared->checksums, ::testing::Each(::testing::Ne(0U))) << "whatever tiers.verify";
    std::fstream{name, std::ios::in | std::ios::out | std::ios::binary}.seekp(5000).put('x');
    EXPECT_EQ(message_of([&] { (void)tiers->fetch(0); }) != "no such error",
              verify == Verify::always);
    fs::remove(name);
  }
}

TEST_F(KeptFilesTest, SaysThatItCannotHaveTheNameAndGoesOn) {
  add_persistent_path();
  auto const tiers = make_filled(3);
  std::ofstream{name} << "taken";
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(tiers->give(1, name));
  EXPECT_FALSE(tiers->give(2, name));
  std::string const said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot link"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_EQ(contents(name), "taken");
  EXPECT_TRUE(pass(*tiers, ascending(3), 0));
  EXPECT_TRUE(pass(*tiers, ascending(3), 1));
}

TEST_F(KeptFilesTest, LeavesNoNamesAtTheEnd) {
  add_persistent_path();
  {
    auto const tiers = make_filled(4);
    EXPECT_TRUE(tiers->give(1, name));
    EXPECT_EQ(names(), 5);
  }
  EXPECT_EQ(names(), 0);
  EXPECT_EQ(contents(name), expected(1));
}

TEST_F(KeptFilesTest, RefusesWhatDoesNotFitAndLeavesNothing) {
  add_persistent_path();
  auto const huge = std::make_shared<KeptFileShape>(*settings.kept);
  huge->slot_bytes = Bytes{1} << 50;
  settings.kept = huge;
  KeptFiles files{{0, paths[0].directory, spill}, huge};
  files.add(1);
  EXPECT_THAT(message_of([&] { files.make(0); }),
              AllOf(HasSubstr("tiers.path = " + paths[0].directory), HasSubstr("is free")));
  EXPECT_FALSE(files.has_file(0));
  EXPECT_TRUE(fs::is_empty(paths[0].directory));
  EXPECT_EQ(names(), 0);
}

TEST_F(KeptFilesTest, OtherPathsTakeWhatFindsNoPlaceForNewSlots) {
  add_persistent_path();
  add_path();
  auto const tiers = make_filled(6);
  for (Key key = 0; key < 6; ++key) {
    if (tiers->give(key, name)) {
      fs::remove(name);
    }
  }
  fs::remove_all(paths[0].directory);  // no slot can be made there any more
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(pass(*tiers, ascending(6), i));
  }
}

}  // namespace
}  // namespace offstage::tiers
