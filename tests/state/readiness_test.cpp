#include "state/readiness.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "base/error.hpp"

namespace offstage::state {
namespace {

/// Subgroups of 10, 20 and 30 elements.
std::vector<Subgroup> three() {
  std::vector<Subgroup> subgroups(3);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < 3; ++i) {
    auto& subgroup = subgroups[static_cast<std::size_t>(i)];
    subgroup.index = i;
    subgroup.begin = begin;
    subgroup.size = 10 * (i + 1);
    begin += subgroup.size;
  }
  return subgroups;
}

bool waits(std::future<void> const& wait) {
  return wait.wait_for(std::chrono::milliseconds{5}) == std::future_status::timeout;
}

TEST(Readiness, IsThereAtFirst) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.wait(0, 60);
}

TEST(Readiness, WaitsForEverySubgroupOfTheRangeAndForNoOther) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.begin();
  readiness.wait(10, 10);
  readiness.wait(60, 60);
  readiness.done(1);
  readiness.wait(10, 30);
  readiness.wait(29, 30);
  auto const first = std::async(std::launch::async, [&] { readiness.wait(9, 11); });
  auto const last = std::async(std::launch::async, [&] { readiness.wait(29, 31); });
  EXPECT_TRUE(waits(first));
  readiness.done(2);
  last.wait();
  EXPECT_TRUE(waits(first));
  readiness.done(0);
  first.wait();
  readiness.begin();
  auto const again = std::async(std::launch::async, [&] { readiness.wait(0, 1); });
  EXPECT_TRUE(waits(again));
  readiness.done(0);
}

TEST(Readiness, HandsTheFirstErrorToEveryoneUntilTheNextUpdate) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.begin();
  readiness.done(0);
  auto wait = std::async(std::launch::async, [&] { readiness.wait(0, 60); });
  EXPECT_TRUE(waits(wait));
  readiness.fail(std::make_exception_ptr(IoError{"gone"}));
  readiness.fail(std::make_exception_ptr(UsageError{"later"}));
  EXPECT_THROW(wait.get(), IoError);
  EXPECT_THROW(readiness.wait(0, 1), IoError);
  readiness.begin();
  readiness.done(0);
  readiness.wait(0, 10);
}

TEST(Readiness, ExpectsSubgroupBySubgroupIfThatIsHowTheUpdateBegins) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.expect(2);
  readiness.wait(0, 30);
  auto last = std::async(std::launch::async, [&] { readiness.wait(30, 31); });
  EXPECT_TRUE(waits(last));
  readiness.done(2);
  last.get();
  readiness.expect(1);
  readiness.expect(2);
  auto both = std::async(std::launch::async, [&] { readiness.wait(0, 60); });
  readiness.done(2);
  EXPECT_TRUE(waits(both));
  readiness.done(1);
  both.get();
}

TEST(Readiness, IsThereAgainIfThereIsNoUpdateAfterAll) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.expect(0);
  readiness.expect(2);
  auto wait = std::async(std::launch::async, [&] { readiness.wait(0, 60); });
  EXPECT_TRUE(waits(wait));
  readiness.finish();
  wait.get();
  readiness.begin();
  readiness.finish();
  readiness.wait(0, 60);
}

TEST(Readiness, KeepsItsErrorThoughOthersAreExpectedOrDone) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  readiness.expect(2);
  readiness.fail(std::make_exception_ptr(IoError{"gone"}));
  readiness.expect(1);
  readiness.done(1);
  readiness.done(2);
  EXPECT_THROW(readiness.wait(0, 60), IoError);
}

TEST(Readiness, KnowsItsSubgroups) {
  auto const subgroups = three();
  Readiness readiness{subgroups};
  EXPECT_THROW(readiness.done(3), PreconditionError);
  EXPECT_THROW(readiness.done(-1), PreconditionError);
  EXPECT_THROW(readiness.expect(3), PreconditionError);
  EXPECT_THROW(readiness.expect(-1), PreconditionError);
}

}  // namespace
}  // namespace offstage::state
