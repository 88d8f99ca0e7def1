#include "plan/waiting_slabs.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

TEST(WaitingSlabs, GiveWhatIsThereInVainOrLongest) {
  WaitingSlabs slabs{{.tensors = 4, .slabs = 2}};
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
  WaitingSlabs own{{.tensors = 3, .slabs = 3}};
  EXPECT_FALSE(own.leave());
  EXPECT_EQ(own.make(2), 2) << "each has its own";
  EXPECT_EQ(own.make(2), 2);
  EXPECT_EQ(own.find(2), 2);
  own.begin();
  EXPECT_EQ(own.find(2), WaitingSlabs::none) << "no tensor is there";
}

TEST(WaitingSlabs, AreTheLastTensorsOwnAndTheOthersHaveTheRestInTurn) {
  WaitingSlabs slabs{{.tensors = 6, .slabs = 4, .staying = 2}};
  ASSERT_TRUE(slabs.leave());
  EXPECT_TRUE(slabs.leaves(3));
  EXPECT_FALSE(slabs.leaves(4));
  EXPECT_EQ(slabs.make(5), 3);
  EXPECT_EQ(slabs.make(4), 2);
  slabs.release(3);
  slabs.release(2);
  for (int const tensor : {0, 1, 2, 3, 0}) {  // longer than the others
    int const slab = slabs.take(tensor);
    EXPECT_LT(slab, 2);
    slabs.release(slab);
  }
  EXPECT_EQ(slabs.find(4), 2);
  EXPECT_EQ(slabs.find(5), 3);
  EXPECT_EQ(slabs.make(5), 3) << "it is made anew in its place";
  WaitingSlabs own{{.tensors = 6, .slabs = 6, .staying = 2}};
  EXPECT_FALSE(own.leaves(0)) << "there are slabs for all";
  EXPECT_EQ(own.make(1), 1);
  EXPECT_THROW((WaitingSlabs{{.tensors = 4, .slabs = 2, .staying = 3}}), PreconditionError);
}

}  // namespace
}  // namespace offstage::plan
