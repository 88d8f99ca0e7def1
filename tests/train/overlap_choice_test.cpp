#include "train/step/overlap_choice.hpp"

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
/// How many of so many steps began under backward; one in `redo_every` has to be done again, none
/// if 0.
int overlapped(OverlapChoice& choice, Cost const& cost, int steps, int redo_every = 0) {
  int count = 0;
  for (int i = 0; i < steps; ++i) {
    count += step(choice, cost, redo_every > 0 && i % redo_every == 0) ? 1 : 0;
  }
  return count;
}

TEST(OverlapChoice, OnAndOffAreWhatTheySayWhateverItCosts) {
  OverlapChoice on{config::Switch::on, true};
  EXPECT_EQ(overlapped(on, {.clean = 9.0, .redone = 9.0}, 50, 1), 50);
  OverlapChoice off{config::Switch::off, true};
  EXPECT_EQ(overlapped(off, {}, 50), 0);
}

TEST(OverlapChoice, IsNeverOnWhereItIsNotPossible) {
  for (config::Switch const policy :
       {config::Switch::automatic, config::Switch::on, config::Switch::off}) {
    OverlapChoice choice{policy, false};
    EXPECT_EQ(overlapped(choice, {}, 20), 0);
  }
}

TEST(OverlapChoice, BeginsWithTwoPlainStepsAndStaysOnWhileItGains) {
  OverlapChoice choice{config::Switch::automatic, true};
  EXPECT_FALSE(step(choice, {.plain = 30.0}));  // caches are cold
  EXPECT_FALSE(step(choice, {}));
  EXPECT_EQ(overlapped(choice, {}, 100), 100);
}

TEST(OverlapChoice, GoesOffWhenItCostsMoreThanItGains) {
  OverlapChoice choice{config::Switch::automatic, true};
  // To see what it brings; then now and then.
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 60), 1);
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 600), 10);
}

TEST(OverlapChoice, KeepsAwayWhileStepsClipIfToDoThemAgainCosts) {
  OverlapChoice choice{config::Switch::automatic, true};
  // To see what it brings; then now and then.
  EXPECT_EQ(overlapped(choice, {}, 60, 1), 1);
  EXPECT_EQ(overlapped(choice, {}, 600, 1), 10);
  EXPECT_GT(overlapped(choice, {}, 60), 20);
}

TEST(OverlapChoice, StaysOnWhereStepsThatAreDoneAgainGain) {
  OverlapChoice choice{config::Switch::automatic, true};
  // All but the first two: the next forward hides more of the update than it waits for.
  EXPECT_EQ(overlapped(choice, {.redone = 0.9}, 102, 1), 100);
}

TEST(OverlapChoice, OneBadStepIsNotTheLastWord) {
  OverlapChoice choice{config::Switch::automatic, true};
  overlapped(choice, {}, 2);
  EXPECT_TRUE(step(choice, {.clean = 5.0}));
  EXPECT_FALSE(choice.next());
  EXPECT_GT(overlapped(choice, {}, 200), 100);
  EXPECT_TRUE(choice.next());
}

TEST(OverlapChoice, DoesNotLetTheFirstStepSayWhatAPlainOneTakes) {
  OverlapChoice choice{config::Switch::automatic, true};
  step(choice, {.plain = 30.0});
  step(choice, {});
  EXPECT_EQ(overlapped(choice, {.clean = 1.2}, 60), 1);
}

TEST(OverlapChoice, GoesOffWhileStepsAreDoneAgainAndOnAgainWhenTheyAreNot) {
  OverlapChoice choice{config::Switch::automatic, true};
  Cost const cost;
  EXPECT_GT(overlapped(choice, cost, 20), 10);
  overlapped(choice, cost, 60, 1);  // every step clips
  EXPECT_FALSE(choice.next());
  EXPECT_LE(overlapped(choice, cost, 50, 1), 1);
  EXPECT_GT(overlapped(choice, cost, 60), 20);
  EXPECT_TRUE(choice.next());
}

TEST(OverlapChoice, StaysOnIfClippingIsRare) {
  OverlapChoice choice{config::Switch::automatic, true};
  overlapped(choice, {}, 5);
  EXPECT_EQ(overlapped(choice, {}, 200, 20), 200);
}

TEST(OverlapChoice, TakesAFirstStepThatIsDoneAgainForWhatItIs) {
  OverlapChoice choice{config::Switch::automatic, true};
  overlapped(choice, {}, 2);
  EXPECT_TRUE(step(choice, {}, true));
  // It has seen no clean one: as good as a plain one at most, and so nothing is gained.
  EXPECT_FALSE(choice.next());
}

/// Steps whose updates go on under the next forward, which waits for them: what a step costs comes
/// after its end in part. `until_choice`: of the step after it.
struct Spilling {
  Seconds after_choice, until_choice;
};

TEST(OverlapChoice, CountsWhatTheNextForwardWaitsForToTheStepThatMadeIt) {
  // Redoing an update costs two seconds, all of them in the next step's forward.
  Spilling const plain{Seconds{0.8}, Seconds{0.2}};
  Spilling const clean{Seconds{0.5}, Seconds{0.2}};
  Spilling const redone{Seconds{0.5}, Seconds{2.2}};
  OverlapChoice choice{config::Switch::automatic, true};
  int overlapped_after_a_redo = 0;
  Spilling before{};
  for (int i = 0; i < 400; ++i) {
    choice.update_ended(before.until_choice);
    bool const clips = i % 4 == 3;  // and then 0.25 * 2.7 + 0.75 * 0.7 = 1.2 s are more than 1 s
    bool const ahead = choice.next();
    before = !ahead ? plain : (clips ? redone : clean);
    overlapped_after_a_redo += ahead && i >= 100 ? 1 : 0;
    choice.ended({.overlapped = ahead, .redone = clips, .seconds = before.after_choice});
  }
  // Now and then it tries; the steps that are redone alone would say 0.65 s.
  EXPECT_LT(overlapped_after_a_redo, 60);
}

TEST(OverlapChoice, LearnsNothingFromAStepThatSomethingDisturbed) {
  OverlapChoice choice{config::Switch::automatic, true};
  overlapped(choice, {}, 10);
  ASSERT_TRUE(choice.next());
  for (int i = 0; i < 20; ++i) {
    choice.ended({.overlapped = true, .redone = false, .seconds = Seconds{100.0}});
    choice.disturbed();
    choice.update_ended(Seconds{100.0});
  }
  EXPECT_TRUE(choice.next());
}

TEST(OverlapChoice, ComesBackOnlyForAClearGain) {
  // On, a little gain keeps it on; off, the same does not bring it back.
  Cost const little{.plain = 1.0, .clean = 0.97, .redone = 1.5};
  OverlapChoice stays{config::Switch::automatic, true};
  EXPECT_EQ(overlapped(stays, little, 102), 100);
  OverlapChoice returns{config::Switch::automatic, true};
  overlapped(returns, little, 10);
  overlapped(returns, little, 20, 1);
  EXPECT_FALSE(returns.next());
  EXPECT_EQ(overlapped(returns, little, 40), 0);
}

}  // namespace
}  // namespace offstage::train
