#include "train/run/same_data.hpp"

#include <gmock/gmock.h>

#include <utility>

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

data::FileFacts file(std::string path, std::int64_t tokens, std::uint64_t checksum) {
  data::FileFacts facts;
  facts.path = std::move(path);
  facts.tokens = tokens;
  facts.windows = tokens / 8;
  facts.share = 0.5;
  facts.checksum = checksum;
  return facts;
}

TEST(SameData, NamesOfFilesMayDiffer) {
  EXPECT_EQ(difference_from(lines_for_ranks({file("/a", 80, 1)}), {file("/b", 80, 1)}), "");
}

TEST(SameData, ADifferenceNamesFileAndNumbers) {
  auto const first = lines_for_ranks({file("/a", 80, 1), file("/b", 160, 2)});
  EXPECT_THAT(
      difference_from(first, {file("/a", 80, 1), file("/b", 96, 2)}),
      AllOf(HasSubstr("/b: 96 tokens, 12 windows"), HasSubstr("here, but 160 tokens, 20 windows")));
  EXPECT_THAT(difference_from(first, {file("/a", 80, 3), file("/b", 160, 2)}),
              HasSubstr("/a: 80 tokens"));
  EXPECT_THAT(difference_from(first, {file("/a", 80, 1)}),
              HasSubstr("1 files here, but 2 on rank 0"));
}

TEST(SameData, ContentsAreOfTokensAndTheirOrder) {
  auto const both = contents_of("data.train", {file("/a", 80, 1), file("/b", 160, 2)});
  EXPECT_EQ(both.key, "data.train contents");
  EXPECT_THAT(both.value, HasSubstr("240 tokens, "));
  EXPECT_EQ(contents_of("data.train", {file("/c", 80, 1), file("/d", 160, 2)}).value, both.value);
  EXPECT_NE(contents_of("data.train", {file("/a", 80, 2), file("/b", 160, 1)}).value, both.value);
}

}  // namespace
}  // namespace offstage::train
