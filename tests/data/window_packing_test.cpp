#include "data/window_packing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace offstage::data {
namespace {

using testing::ElementsAre;

TEST(PackWindows, TakesTheLongestFirstAndTheTightestRoom) {
  // 6 and 5 open windows; 4 fits 6 exactly, 3 leaves 2 beside 5, 2 fits there.
  std::vector<std::int64_t> const lengths{3, 6, 2, 5, 4};
  auto const packed = pack_windows(lengths, 10);
  EXPECT_THAT(packed.documents, ElementsAre(0, 2, 3, 1, 4));  // window of document 0 comes first
  EXPECT_THAT(packed.begins, ElementsAre(0, 3, 5));
}

TEST(PackWindows, LeavesOutEmptyOnesAndGivesLongOnesAWindow) {
  std::vector<std::int64_t> const lengths{0, 12, 0, 3};
  auto const packed = pack_windows(lengths, 10);
  EXPECT_THAT(packed.documents, ElementsAre(1, 3));
  EXPECT_THAT(packed.begins, ElementsAre(0, 1, 2));
  EXPECT_THAT(pack_windows({}, 10).begins, ElementsAre(0));
}

TEST(PackWindows, HoldEveryDocumentOnceWithinTheCapacityAndFillThemWell) {
  constexpr std::int64_t capacity = 512;
  std::vector<std::int64_t> lengths(5'000);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = 1 + static_cast<std::int64_t>(i * 7919 % 400);
  }
  auto const packed = pack_windows(lengths, capacity);
  std::vector<std::int64_t> seen = packed.documents;
  std::ranges::sort(seen);
  std::vector<std::int64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
  auto const windows = std::ssize(packed.begins) - 1;
  for (std::size_t w = 0; w < static_cast<std::size_t>(windows); ++w) {
    std::int64_t sum = 0;
    for (auto i = packed.begins[w]; i < packed.begins[w + 1]; ++i) {
      sum += lengths[static_cast<std::size_t>(packed.documents[static_cast<std::size_t>(i)])];
    }
    EXPECT_LE(sum, capacity);
    EXPECT_GE(sum, 1);
  }
  auto const tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_LE(windows, tokens / capacity + tokens / capacity / 50 + 2);
}

}  // namespace
}  // namespace offstage::data
