#include "update/step_gate.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <limits>
#include <optional>

#include "shard_support.hpp"

namespace offstage::update {
namespace {

using Passing = std::future<std::optional<kernels::OptimizerStep>>;

constexpr double infinite = std::numeric_limits<double>::infinity();

kernels::OptimizerStep presumed() {
  kernels::OptimizerStep step = first_step;
  step.step = 17;
  return step;
}

Passing pass(StepGate& gate, std::int64_t subgroup, Stake stake) {
  return std::async(std::launch::async,
                    [&gate, subgroup, stake] { return gate.pass(subgroup, stake); });
}
bool waits(Passing const& passing) {
  return passing.wait_for(std::chrono::milliseconds{5}) == std::future_status::timeout;
}
bool passes(Passing passing) {
  auto const step = passing.get();
  return step && step->step == 17;
}

TEST(StepGate, WhereAllIsKnownEverybodyPasses) {
  StepGate gate{presumed()};
  EXPECT_TRUE(gate.confirmed());
  EXPECT_EQ(gate.pass(123, Stake::final)->step, 17);
  EXPECT_EQ(gate.pass(0, Stake::trial)->step, 17);
}

TEST(StepGate, LetsATrialPassWithItsGradientAndWhatIsFinalWithTheNorm) {
  StepGate gate{2, presumed(), infinite};
  auto trial = pass(gate, 0, Stake::trial);
  auto final = pass(gate, 0, Stake::final);
  auto other = pass(gate, 1, Stake::trial);
  EXPECT_TRUE(waits(trial));
  gate.complete(0, 4.0);
  EXPECT_TRUE(passes(std::move(trial)));
  EXPECT_TRUE(waits(final));
  EXPECT_TRUE(waits(other));
  EXPECT_FALSE(gate.confirmed());
  gate.complete(1, 4.0);
  EXPECT_TRUE(passes(std::move(other)));
  EXPECT_TRUE(waits(final));
  gate.confirm();
  EXPECT_TRUE(gate.confirmed());
  EXPECT_TRUE(passes(std::move(final)));
}

TEST(StepGate, WaitsForTheGradientEvenOnceConfirmed) {
  StepGate gate{1, presumed(), infinite};
  gate.confirm();
  auto passing = pass(gate, 0, Stake::final);
  EXPECT_TRUE(waits(passing));
  gate.complete(0, 0.0);
  EXPECT_TRUE(passes(std::move(passing)));
}

TEST(StepGate, LetsNoTrialPassOnceTheSquaresAreTooMany) {
  StepGate gate{3, presumed(), 10.0};
  gate.complete(2, 4.0);
  gate.complete(1, 6.0);  // as many as there may be
  EXPECT_TRUE(passes(pass(gate, 2, Stake::trial)));
  gate.complete(0, 1e-9);
  auto held = pass(gate, 1, Stake::trial);
  EXPECT_TRUE(waits(held));
  gate.confirm();  // whoever knows the norm knows better
  EXPECT_TRUE(passes(std::move(held)));
}

TEST(StepGate, LetsNoTrialPassWithSquaresThatAreNoNumber) {
  constexpr double largest = std::numeric_limits<double>::max();
  for (double const squares : {std::numeric_limits<double>::quiet_NaN(), infinite}) {
    StepGate gate{2, presumed(), largest};
    gate.complete(1, squares);
    gate.complete(0, 1.0);
    auto held = pass(gate, 0, Stake::trial);
    EXPECT_TRUE(waits(held)) << squares;
    gate.cancel();
    EXPECT_FALSE(held.get());
  }
}

TEST(StepGate, TurnsEverybodyAwayOnceCancelled) {
  StepGate gate{2, presumed(), infinite};
  gate.complete(0, 1.0);
  auto trial = pass(gate, 1, Stake::trial);
  auto final = pass(gate, 0, Stake::final);
  EXPECT_TRUE(waits(trial));
  EXPECT_TRUE(waits(final));
  EXPECT_FALSE(gate.cancelled());
  gate.cancel();
  EXPECT_TRUE(gate.cancelled());
  EXPECT_FALSE(trial.get());
  EXPECT_FALSE(final.get());
  gate.complete(1, 1.0);
  gate.confirm();
  EXPECT_FALSE(gate.pass(0, Stake::trial));
  EXPECT_FALSE(gate.pass(1, Stake::final));
}

}  // namespace
}  // namespace offstage::update
