#include "tiers/planned_space.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlannedSpaceTest : public ::testing::Test {
 protected:
  /// Two paths, the first of which is twice as fast.
  VirtualSettings settings(bool persistent = false) {
    VirtualSettings result;
    result.paths = make_paths({.paths = paths(persistent)});
    result.spill = "offstage-test";
    result.buffers = 2;
    return result;
  }
  std::vector<PathSettings> paths(bool persistent = false) {
    std::vector<PathSettings> result(2);
    for (std::size_t i = 0; i < 2; ++i) {
      result[i].directory = scratch_ / std::to_string(i);
      std::filesystem::create_directory(result[i].directory);
      result[i].read_rate = result[i].write_rate = i == 0 ? 2e9 : 1e9;
      result[i].persistent = persistent;
    }
    return result;
  }
  ScratchDirectory scratch_;
  std::vector<Bytes> extents_ = {5000, 9000, 5000, 5000, 5000, 5000};
};

TEST_F(PlannedSpaceTest, IsWhatTheTiersTake) {
  auto const with = settings();
  auto const planned = planned_space(extents_, with);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].slots, 4 + 2);
  EXPECT_EQ(planned[1].slots, 2 + 2);
  auto const taken = make_virtual_tiers(extents_, with)->space();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(planned[i].slots, taken[i].slots);
    EXPECT_EQ(planned[i].slot_bytes, taken[i].slot_bytes);
    EXPECT_EQ(planned[i].bytes, taken[i].slots * 12288);
  }
}

TEST_F(PlannedSpaceTest, SpreadsSpareSlotsAsItDoesExtents) {
  auto with = settings();
  with.spare_slots = 4;
  auto const planned = planned_space(extents_, with);
  EXPECT_EQ(planned[0].slots, 7 + 2) << "two thirds of ten";
  EXPECT_EQ(planned[1].slots, 4 + 2);
  auto const taken = make_virtual_tiers(extents_, with)->space();
  EXPECT_EQ(planned[0].slots, taken[0].slots);
  EXPECT_EQ(planned[1].slots, taken[1].slots);
}

TEST_F(PlannedSpaceTest, IsNoneIfEveryExtentStaysInMemory) {
  auto with = settings();
  with.cached = 6;
  for (PlannedSpace const& path : planned_space(extents_, with)) {
    EXPECT_EQ(path.slots + path.bytes, 0);
  }
  with.paths = nullptr;
  EXPECT_TRUE(planned_space(extents_, with).empty());
  with.cached = 5;
  EXPECT_THROW((void)planned_space(extents_, with), PreconditionError);
}

TEST_F(PlannedSpaceTest, CountsWhatSurroundsASlotWithAFileOfItsOwn) {
  auto with = settings(true);
  with.kept = std::make_shared<KeptFileShape>(KeptFileShape{.directory = scratch_.path(),
                                                            .prefix = "slot",
                                                            .head = std::vector<std::byte>(4096),
                                                            .slot_bytes = 12288,
                                                            .tail = std::vector<std::byte>(100)});
  EXPECT_EQ(planned_space(extents_, with)[0].bytes, 6 * (4096 + 12288 + 100));
  EXPECT_EQ(planned_space(extents_, with)[0].files, 6);
  EXPECT_EQ(planned_space(extents_, settings())[0].files, 1);
}

TEST_F(PlannedSpaceTest, HasToFitTogetherWhereAFileSystemIsShared) {
  auto const two = paths();
  Bytes const free = aio::free_bytes(scratch_.path());
  EXPECT_NEAR(static_cast<double>(require_room(two, {free / 4, free / 4})[1]),
              static_cast<double>(free), 0.1 * static_cast<double>(free));
  auto const message = message_of([&] { (void)require_room(two, {free, free}); });
  EXPECT_THAT(message, AllOf(HasSubstr("tiers.path = " + two[0].directory),
                             HasSubstr("with " + two[1].directory + " on the same file system"),
                             HasSubstr("needs " + format_bytes(2 * free)), HasSubstr("is free"),
                             HasSubstr("or raise tiers.host-memory"), Not(HasSubstr("overlap")),
                             Not(HasSubstr("tiers.split"))));
  EXPECT_THAT(message_of([&] {
                (void)require_room(two, {free, free}, true);
              }),
              HasSubstr("raise tiers.host-memory, or take no slots"));
  EXPECT_THAT(message, HasSubstr("the ranks of this node offload"));
  EXPECT_THAT(message_of([&] {
                (void)require_room(two, {free, free}, false, {3, 1});
              }),
              HasSubstr("the ranks of the 3 nodes that share it offload needs"));
}

}  // namespace
}  // namespace offstage::tiers
