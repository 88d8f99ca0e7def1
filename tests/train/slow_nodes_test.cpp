#include "train/run/slow_nodes.hpp"

#include <gmock/gmock.h>

#include <array>

namespace offstage::train {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

auto named(char const* node) {
  return Field("node", &SlowNode::node, node);
}

TEST(SlowNodes, AreThoseBeyondTheMedianTheSlowestFirst) {
  auto const slow = slow_nodes(std::array<NodePace, 5>{{{"a", Seconds{0.4}},
                                                        {"b", Seconds{0.21}},
                                                        {"c", Seconds{0.2}},
                                                        {"d", Seconds{0.2}},
                                                        {"e", Seconds{0.6}}}});
  EXPECT_THAT(slow, ElementsAre(named("e"), named("a")));
  EXPECT_THAT(slow.back().sentence, HasSubstr("a is slow: its own part of a step takes 0.4 s, 1.9 "
                                              "times that of the median of 5 nodes, 0.21 s"));
}

TEST(SlowNodes, OfTwoTheFasterIsTheMeasure) {
  EXPECT_THAT(slow_nodes(std::array<NodePace, 2>{{{"a", Seconds{1.0}}, {"b", Seconds{2.0}}}}),
              ElementsAre(named("b")));
}

TEST(SlowNodes, AreNotNamedAloneNorForALittleNorForMilliseconds) {
  EXPECT_THAT(slow_nodes({}), IsEmpty());
  EXPECT_THAT(slow_nodes(std::array<NodePace, 1>{{{"a", Seconds{9.0}}}}), IsEmpty());
  EXPECT_THAT(slow_nodes(std::array<NodePace, 2>{{{"a", Seconds{1.0}}, {"b", Seconds{1.4}}}}),
              IsEmpty());
  EXPECT_THAT(slow_nodes(std::array<NodePace, 2>{{{"a", Seconds{0.002}}, {"b", Seconds{0.011}}}}),
              IsEmpty());
}

}  // namespace
}  // namespace offstage::train
