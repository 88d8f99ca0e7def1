#include "base/team.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace offstage {
namespace {

TEST(TeamSize, IsOfTheThreadThatSetsIt) {
  int const before = team_size();
  EXPECT_GE(before, 1);
  std::jthread{[] {
    set_team_size(3);
#ifdef _OPENMP
    EXPECT_EQ(team_size(), 3);
#else
    EXPECT_EQ(team_size(), 1);
#endif
  }}.join();
  EXPECT_EQ(team_size(), before);
}

}  // namespace
}  // namespace offstage
