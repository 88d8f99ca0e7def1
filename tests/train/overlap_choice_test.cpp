#include "train/overlap_choice.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

/// What steps take: plain, under backward, and under backward but done again.
struct Cost {
  double plain = 1.0;
  double clean = 0.7;
  double redone = 1.5;
};

/// One step, as the choice would have it. Whether it began under backward.
bool step(OverlapChoice& choice, Cost const& cost, bool redone = false) {
  bool const overlapped = choice.next();
  double const seconds = !overlapped ? cost.plain : redone ? cost.redone : cost.clean;
  choice.learn({.overlapped = overlapped, .redone = redone, .seconds = Seconds{seconds}});
  return overlapped;
}
/// How many of so many steps began under backward; one in `redo_every` has to be done again, none if 0.
int overlapped(OverlapChoice& choice, Cost const& cost, int steps, int redo_every = 0) {
  int count = 0;
  for (int i = 0; i < steps; ++i) {
    count += step(choice, cost, redo_every > 0 && i % redo_every == 0) ? 1 : 0;
  }
  return count;
}

TEST(OverlapChoice, OnAndOffAreWhatTheySayWhateverItCosts) {
  OverlapChoice on{Overlap::on, true};
  EXPECT_EQ(overlapped(on, {.clean = 9.0, .redone = 9.0}, 50, 1), 50);
  OverlapChoice off{Overlap::off, true};
  EXPECT_EQ(overlapped(off, {}, 50), 0);
}

TEST(OverlapChoice, IsNeverOnWhereItIsNotPossible) {
  for (Overlap const policy : {Overlap::automatic, Overlap::on, Overlap::off}) {
    OverlapChoice choice{policy, false};
    EXPECT_EQ(overlapped(choice, {}, 20), 0);
  }
}

TEST(OverlapChoice, BeginsWithTwoPlainStepsAndStaysOnWhileItGains) {
  OverlapChoice choice{Overlap::automatic, true};
  EXPECT_FALSE(step(choice, {.plain = 30.0}));  // caches are cold
  EXPECT_FALSE(step(choice, {}));
  EXPECT_EQ(overlapped(choice, {}, 100), 100);
}

TEST(OverlapChoice, GoesOffWhenItCostsMoreThanItGains) {
  OverlapChoice choice{Overlap::automatic, true};
  // To see what it brings; then now and then.
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 60), 1);
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 600), 10);
}

TEST(OverlapChoice, DoesNotBeginWhileStepsClip) {
  OverlapChoice choice{Overlap::automatic, true};
  EXPECT_EQ(overlapped(choice, {}, 30, 1), 0);
  EXPECT_GT(overlapped(choice, {}, 30), 10);
}

TEST(OverlapChoice, OneBadStepIsNotTheLastWord) {
  OverlapChoice choice{Overlap::automatic, true};
  overlapped(choice, {}, 2);
  EXPECT_TRUE(step(choice, {.clean = 5.0}));
  EXPECT_FALSE(choice.next());
  EXPECT_GT(overlapped(choice, {}, 200), 100);
  EXPECT_TRUE(choice.next());
}

TEST(OverlapChoice, DoesNotLetTheFirstStepSayWhatAPlainOneTakes) {
  OverlapChoice choice{Overlap::automatic, true};
  step(choice, {.plain = 30.0});
  step(choice, {});
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 60), 1);
}

TEST(OverlapChoice, GoesOffWhileStepsAreDoneAgainAndOnAgainWhenTheyAreNot) {
  OverlapChoice choice{Overlap::automatic, true};
  Cost const cost;
  EXPECT_GT(overlapped(choice, cost, 20), 10);
  overlapped(choice, cost, 60, 1);  // every step clips
  EXPECT_FALSE(choice.next());
  EXPECT_EQ(overlapped(choice, cost, 50, 1), 0);
  EXPECT_GT(overlapped(choice, cost, 60), 20);
  EXPECT_TRUE(choice.next());
}

TEST(OverlapChoice, StaysOnIfClippingIsRare) {
  OverlapChoice choice{Overlap::automatic, true};
  overlapped(choice, {}, 5);
  EXPECT_EQ(overlapped(choice, {}, 200, 20), 200);
}

TEST(OverlapChoice, TakesAFirstStepThatIsDoneAgainForWhatItIs) {
  OverlapChoice choice{Overlap::automatic, true};
  overlapped(choice, {}, 2);
  EXPECT_TRUE(step(choice, {}, true));
  // It has seen no clean one: as good as a plain one at most, and so nothing is gained.
  EXPECT_FALSE(choice.next());
}

TEST(OverlapChoice, ComesBackOnlyForAClearGain) {
  // On, a little gain keeps it on; off, the same does not bring it back.
  Cost const little{.plain = 1.0, .clean = 0.97, .redone = 1.5};
  OverlapChoice stays{Overlap::automatic, true};
  EXPECT_EQ(overlapped(stays, little, 102), 100);
  OverlapChoice returns{Overlap::automatic, true};
  overlapped(returns, little, 10);
  overlapped(returns, little, 20, 1);
  EXPECT_FALSE(returns.next());
  EXPECT_EQ(overlapped(returns, little, 40), 0);
}

}  // namespace
}  // namespace offstage::train
