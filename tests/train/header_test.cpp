#include "train/report/header.hpp"

#include <gmock/gmock.h>

namespace offstage::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Header, GivenKeysStandBehindTheirSource) {
  std::vector<config::Setting> const settings{{"a.w", "3", "--a.w=3"},
                                              {"a.x", "1", "my.cfg:2"},
                                              {"b.y", "2", "default"},
                                              {"d.w", "4", "my.cfg:10"}};
  EXPECT_THAT(describe_given(settings, 9),
              ElementsAre("  my.cfg: a.x=1 d.w=4", "  command line: a.w=3"));
  EXPECT_THAT(describe_given({{"b.y", "2", "default"}, {"a.x", "1", "my.cfg:2 (default)"}}, 9),
              IsEmpty());
}

TEST(Header, GivenKeysBeyondTheRoomAreCounted) {
  std::vector<config::Setting> settings;
  for (int i = 0; i < 9; ++i) {
    settings.push_back({"key", std::string(40, 'x'), "--key"});
  }
  auto const all = describe_given(settings, 100);
  EXPECT_EQ(all.size(), 5);  // one in the first line, two in each other
  auto const some = describe_given(settings, 3);
  ASSERT_EQ(some.size(), 3);
  EXPECT_EQ(some[1], all[1]);
  EXPECT_EQ(some[2], all[2] + " and 4 more");
  EXPECT_THAT(describe_given(settings, 0), IsEmpty());
}

}  // namespace
}  // namespace offstage::train
