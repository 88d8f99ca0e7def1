#include "plan/waiting_slabs.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

TEST(WaitingSlabs, GiveWhatIsThereInVainOrLongest) {
  WaitingSlabs slabs{2, 4};
  ASSERT_TRUE(slabs.leave());
  int const first = slabs.make(0);
  int const second = slabs.make(1);
  EXPECT_NE(first, second);
  EXPECT_THROW((void)slabs.take(2), PreconditionError) << "both are in use";
  slabs.release(second);
  slabs.release(first);
  EXPECT_EQ(slabs.take(2), second) << "it was released first";
  EXPECT_EQ(slabs.find(1), WaitingSlabs::none);
  EXPECT_EQ(slabs.find(0), first);
  slabs.forget(second);
  EXPECT_EQ(slabs.find(2), WaitingSlabs::none) << "it was forgotten";
  EXPECT_EQ(slabs.take(3), second) << "nothing is there";
  EXPECT_EQ(slabs.find(3), second);
  EXPECT_THROW((void)slabs.find(4), PreconditionError);
  WaitingSlabs own{3, 3};
  EXPECT_FALSE(own.leave());
  EXPECT_EQ(own.make(2), 2) << "each has its own";
  EXPECT_EQ(own.make(2), 2);
  EXPECT_EQ(own.find(2), 2);
  own.begin();
  EXPECT_EQ(own.find(2), WaitingSlabs::none) << "no tensor is there";
}

}  // namespace
}  // namespace offstage::plan
