#include "base/team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/error.hpp"
#include "limits.hpp"

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

#ifdef _OPENMP
TEST(TeamSize, IsWhatWasSetWhateverOpenMpMayTakeBack) {
  std::jthread{[] {
    omp_set_dynamic(1);
    omp_set_max_active_levels(0);
    set_team_size(3);
    EXPECT_EQ(omp_get_dynamic(), 0);
    std::atomic<int> members{0};
#pragma omp parallel
    ++members;
    EXPECT_EQ(members, 3);
  }}.join();
}

TEST(TeamSize, IsRefusedWhereSoManyThreadsCannotBeHad) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  int const before = team_size();
  AddressSpace const room{20 * MiB};
  EXPECT_THROW(set_team_size(200), IoError);  // and OpenMP does not end the process
  EXPECT_EQ(team_size(), before);
}

TEST(TeamSize, IsThereOnceItIsMade) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  std::jthread{[] {
    set_team_size(60);
    AddressSpace const room{20 * MiB};
    EXPECT_NO_THROW(require_team());
  }}.join();
  std::jthread{[] {
    set_team_size(60);
    set_team_size(2);
    set_team_size(60);  // OpenMP has let the others go, and has to make them
    AddressSpace const room{20 * MiB};
    EXPECT_NO_THROW(require_team());
  }}.join();
}
#endif

}  // namespace
}  // namespace offstage
