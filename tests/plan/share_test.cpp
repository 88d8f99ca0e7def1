#include "plan/share.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

constexpr double giga = 1e9;

/// Elements that take a second each way on everything.
UpdateRates even() {
  return {.cpu_update = 100, .device_update = 100, .host_to_device = 1400, .device_to_host = 1200};
}
UpdateDemand hundred() {
  return {.elements = 100, .gradient_bytes = 2, .parameter_bytes = 2};
}

void expect_times(UpdateTimes const& times, std::vector<double> const& expected) {
  EXPECT_NEAR(times.cpu.count(), expected.at(0), 1e-12) << "cpu";
  EXPECT_NEAR(times.device.count(), expected.at(1), 1e-12) << "device";
  EXPECT_NEAR(times.host_to_device.count(), expected.at(2), 1e-12) << "host to device";
  EXPECT_NEAR(times.device_to_host.count(), expected.at(3), 1e-12) << "device to host";
  EXPECT_NEAR(times.total.count(), expected.at(4), 1e-12) << "total";
}

TEST(UpdateTimes, OfTheCpuAloneSendNewParameters) {
  expect_times(update_times(hundred(), even(), 0.0), {1.0, 0.0, 200.0 / 1400, 0.0, 1.0});
}

TEST(UpdateTimes, OfTheDeviceAloneMoveStateAndGradientThereAndStateBack) {
  expect_times(update_times(hundred(), even(), 1.0), {0.0, 1.0, 1.0, 1.0, 1.0});
}

TEST(UpdateTimes, OfASmallerStateMoveLess) {
  auto demand = hundred();
  demand.state_bytes = 6.0;
  auto rates = even();
  rates.host_memory = 100.0;
  auto const times = update_times(demand, rates, 1.0);
  EXPECT_NEAR(times.host_to_device.count(), 100 * 8 / 1400.0, 1e-12);
  EXPECT_NEAR(times.device_to_host.count(), 0.5, 1e-12);
  EXPECT_NEAR(times.host_memory.count(), 8.0 + 6.0, 1e-12);
  EXPECT_NEAR(update_times(demand, rates, 0.0).host_memory.count(), 2 * 6.0 + 2.0 + 2.0 + 2.0,
              1e-12);
  demand.state_bytes = 0.0;
  EXPECT_THROW((void)update_times(demand, rates, 0.0), PreconditionError);
}

TEST(UpdateTimes, OfAShareDivideTheElements) {
  // 25 on the device: 25 * 14 B and 75 * 2 B there, 25 * 12 B back.
  expect_times(update_times(hundred(), even(), 0.25),
               {0.75, 0.25, (25 * 14 + 75 * 2) / 1400.0, 0.25, 0.75});
}

TEST(UpdateTimes, OfResidentsMoveTheirGradientAlone) {
  auto demand = hundred();
  demand.resident = 0.4;
  expect_times(update_times(demand, even(), 0.0), {0.6, 0.4, (40 * 2 + 60 * 2) / 1400.0, 0.0, 0.6});
  // The share is one of what is not resident: 30 of 60.
  expect_times(update_times(demand, even(), 0.5),
               {0.3, 0.7, (30 * 14 + 40 * 2 + 30 * 2) / 1400.0, 0.3, 0.7});
}

TEST(UpdateTimes, OfGradientsThatWaitOnTheDeviceDoNotMoveThemThere) {
  auto demand = hundred();
  demand.held = 10;
  expect_times(update_times(demand, even(), 0.25),
               {0.75, 0.25, (25 * 12 + 15 * 2 + 75 * 2) / 1400.0, 0.25, 0.75});
  demand.held = 1000;  // more room than the device has to update
  expect_times(update_times(demand, even(), 0.25),
               {0.75, 0.25, (25 * 12 + 75 * 2) / 1400.0, 0.25, 0.75});
  demand.resident = 0.4;
  demand.held = 50;  // residents first
  expect_times(update_times(demand, even(), 0.5),
               {0.3, 0.7, (30 * 12 + 20 * 2 + 30 * 2) / 1400.0, 0.3, 0.7});
  demand.transfers = Transfers::blocking;
  expect_times(update_times(demand, even(), 0.0),
               {0.6, 0.4, 60 * 2 / 1400.0, 0.0, 1.0 + 60 * 2 / 1400.0});
}

TEST(UpdateTimes, OfADirectCopySendNothingForTheCpu) {
  auto demand = hundred();
  demand.direct_copy = true;
  auto rates = even();
  rates.host_to_device = 0.0;  // nobody needs it
  expect_times(update_times(demand, rates, 0.0), {1.0, 0.0, 0.0, 0.0, 1.0});
}

TEST(UpdateTimes, BothDirectionsAtOnceAreSlowerUntilOneIsDone) {
  auto rates = even();
  rates.host_to_device_both = 700;
  rates.device_to_host_both = 600;
  auto const all = update_times(hundred(), rates, 1.0);
  EXPECT_NEAR(all.host_to_device.count(), 2.0, 1e-12);
  EXPECT_NEAR(all.device_to_host.count(), 2.0, 1e-12);
  // 500 B there and 300 B back: 300 / 600 = 0.5 s together, then the 150 B that are left at full
  // rate.
  auto const some = update_times(hundred(), rates, 0.25);
  EXPECT_NEAR(some.device_to_host.count(), 0.5, 1e-12);
  EXPECT_NEAR(some.host_to_device.count(), 0.5 + 150.0 / 1400, 1e-12);
}

TEST(UpdateTimes, AChunkFillsAndDrainsThePipeline) {
  auto demand = hundred();
  demand.chunk = 10;
  // A chunk takes 0.1 s on each resource; the link is busy for 1 s and the chunk's rest comes
  // beside.
  EXPECT_NEAR(update_times(demand, even(), 1.0).total.count(), 1.2, 1e-12);
  // The CPU's last new parameters: 10 * 2 B.
  EXPECT_NEAR(update_times(demand, even(), 0.0).total.count(), 1.0 + 20.0 / 1400, 1e-12);
}

TEST(UpdateTimes, BlockingCopiesAndResidentsTakeTurnsWithTheCpu) {
  auto demand = hundred();
  demand.transfers = Transfers::blocking;
  EXPECT_NEAR(update_times(demand, even(), 0.0).total.count(), 1.0 + 200.0 / 1400, 1e-12);
  demand.resident = 0.4;
  EXPECT_NEAR(update_times(demand, even(), 0.0).total.count(), 0.4 + 0.6 + 120.0 / 1400, 1e-12);
}

TEST(UpdateTimes, HostMemoryCarriesStateGradientAndParameterAndWhatCrossesTheLink) {
  auto rates = even();
  rates.host_memory = 100.0;
  auto demand = hundred();
  EXPECT_NEAR(update_times(demand, rates, 0.0).host_memory.count(), 24 + 2 + 2 + 2, 1e-12);
  EXPECT_NEAR(update_times(demand, rates, 1.0).host_memory.count(), 12 + 2 + 12, 1e-12);
  EXPECT_NEAR(update_times(demand, rates, 1.0).total.count(), 26.0, 1e-12);
  demand.direct_copy = true;
  EXPECT_NEAR(update_times(demand, rates, 0.0).host_memory.count(), 24 + 2 + 2, 1e-12);
}

/// A path that reads 400 bytes a second and writes 300, of a kind.
UpdateRates stored(bool full_duplex = false) {
  auto rates = even();
  rates.paths = {{.read = 400, .write = 300, .full_duplex = full_duplex}};
  return rates;
}

TEST(UpdateTimes, StorageIsABoundWhateverTheShare) {
  auto demand = hundred();
  demand.storage = {.read = 1200, .written = 1200};
  for (double const share : {0.0, 0.5, 1.0}) {
    EXPECT_NEAR(update_times(demand, stored(), share).total.count(), 3.0 + 4.0, 1e-12);
    EXPECT_NEAR(update_times(demand, stored(true), share).total.count(), 4.0, 1e-12);
  }
  demand.storage = {.read = 12, .written = 12};
  EXPECT_NEAR(update_times(demand, stored(), 0.0).storage.count(), 0.07, 1e-12);
  EXPECT_NEAR(update_times(demand, stored(), 0.0).total.count(), 1.0, 1e-12) << "the cores";
}

TEST(UpdateTimes, PathsWorkTogether) {
  auto demand = hundred();
  demand.storage = {.read = 1200, .written = 1200};
  auto rates = stored();
  rates.paths.push_back({.read = 800, .write = 600});
  EXPECT_NEAR(update_times(demand, rates, 0.0).storage.count(), 7.0 / 3.0, 1e-12);
}

TEST(UpdateTimes, OfSpilledGradientsReadThoseThatTheDeviceDoesNotHold) {
  auto demand = hundred();
  demand.storage.spilled = 60;
  EXPECT_NEAR(update_times(demand, stored(), 0.5).storage.count(), 60 * 2 / 400.0, 1e-12);
  demand.held = 40;
  EXPECT_NEAR(update_times(demand, stored(), 0.0).storage.count(), 60 * 2 / 400.0, 1e-12)
      << "the cores update them";
  EXPECT_NEAR(update_times(demand, stored(), 0.25).storage.count(), 35 * 2 / 400.0, 1e-12);
  EXPECT_NEAR(update_times(demand, stored(), 0.5).storage.count(), 20 * 2 / 400.0, 1e-12);
  demand.held = 100;
  EXPECT_EQ(update_times(demand, stored(), 0.75).storage.count(), 0.0);
}

TEST(BestShare, WhereStorageTakesLongestLeavesTheOthersMostTime) {
  auto demand = hundred();
  double const alone = best_share(demand, stored());
  EXPECT_GT(alone, 0.3);
  demand.storage = {.read = 1200, .written = 1200};
  EXPECT_NEAR(best_share(demand, stored()), alone, 1e-9);
}

TEST(BestShare, GivesTheDeviceMoreWhereItsGradientsNeedNotSpill) {
  auto demand = hundred();
  demand.held = 100;
  auto rates = stored();
  rates.cpu_update = 1000;
  double const alone = best_share(demand, rates);
  demand.storage = {
      .read = 240, .written = 0, .spilled = 100};  // 0.6 s of state, 0.5 s of gradients
  double const chosen = best_share(demand, rates);
  EXPECT_GT(chosen, alone + 0.1);
  EXPECT_LT(update_times(demand, rates, chosen).total, update_times(demand, rates, alone).total);
}

TEST(UpdateTimes, OfNothingAreNone) {
  expect_times(update_times({}, {}, 0.5), {0, 0, 0, 0, 0});
  EXPECT_EQ(best_share({}, {}), 0.0);
}

TEST(UpdateTimes, AskForTheRatesThatCount) {
  UpdateRates const cpu_alone{.cpu_update = 100};
  auto demand = hundred();
  EXPECT_THROW((void)update_times(demand, {}, 0.0), PreconditionError);
  EXPECT_THROW((void)update_times(demand, cpu_alone, 0.0), PreconditionError) << "the copies";
  demand.direct_copy = true;
  EXPECT_NO_THROW((void)update_times(demand, cpu_alone, 0.0));
  EXPECT_THROW((void)update_times(demand, cpu_alone, 0.1), PreconditionError);
  auto rates = even();
  rates.device_to_host = 0.0;
  EXPECT_THROW((void)update_times(demand, rates, 0.1), PreconditionError);
}

TEST(UpdateTimes, AskForTheRatesOfPathsThatAreUsed) {
  auto demand = hundred();
  auto unknown = even();
  unknown.paths = {{.read = 400, .write = 0}};
  EXPECT_NO_THROW((void)update_times(demand, unknown, 0.5));
  demand.storage.written = 1;
  EXPECT_THROW((void)update_times(demand, unknown, 0.5), PreconditionError);
  EXPECT_THROW((void)update_times(demand, even(), 0.5), PreconditionError) << "no path";
  demand.storage = {.spilled = -1};
  EXPECT_THROW((void)update_times(demand, stored(), 0.5), PreconditionError);
}

TEST(UpdateTimes, SharesLieBetweenNoneAndAll) {
  auto demand = hundred();
  for (double const share : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW((void)update_times(demand, even(), share), PreconditionError);
  }
  demand.resident = 1.1;
  EXPECT_THROW((void)update_times(demand, even(), 0.0), PreconditionError);
}

TEST(BestShare, BalancesTheCpuAndTheLink) {
  // CPU (1 - s) = link (14 s + 2 (1 - s)) / 7: s = 5 / 19.
  UpdateRates const rates{
      .cpu_update = 100, .device_update = 1e6, .host_to_device = 700, .device_to_host = 1e6};
  EXPECT_NEAR(best_share(hundred(), rates), 5.0 / 19.0, 1e-6);
  // The device is the bound: 1 - s = 4 s.
  UpdateRates const slow_device{
      .cpu_update = 100, .device_update = 25, .host_to_device = 1e6, .device_to_host = 1e6};
  EXPECT_NEAR(best_share(hundred(), slow_device), 0.2, 1e-6);
}

TEST(BestShare, GivesTheDeviceNothingWhereTheLinkIsSlow) {
  UpdateRates const rates{
      .cpu_update = 100, .device_update = 1e6, .host_to_device = 200, .device_to_host = 200};
  EXPECT_EQ(best_share(hundred(), rates), 0.0);
}

TEST(BestShare, GivesTheDeviceEverythingWhereTheCpuIsOutOfProportion) {
  UpdateRates const rates{
      .cpu_update = 1, .device_update = 1e9, .host_to_device = 1e12, .device_to_host = 1e12};
  EXPECT_GT(best_share(hundred(), rates), 0.999);
}

/// DOS section 5, in parameters per second; a link of B moves 4 B bytes.
UpdateRates paper_machine(double cpu, double device, double link) {
  return {.cpu_update = cpu * giga,
          .device_update = device * giga,
          .host_to_device = 4 * link * giga,
          .device_to_host = 4 * link * giga};
}
/// The gradients of what the device updates stayed there.
UpdateDemand paper_demand() {
  return {.elements = 7'000'000'000, .gradient_bytes = 0, .chunk = 4 << 20};
}

TEST(PaperStride, OfTheV100MachineIsTwo) {
  double const k = paper_stride(2 * giga, 8.7 * giga, 35 * giga, 3 * giga);
  EXPECT_NEAR(k, (3 / 3.0 + 1 / 35.0) / (1 / 2.0 + 1 / 8.7 - 1 / 6.0), 1e-12);
  EXPECT_EQ(std::lround(k), 2);
}

TEST(PaperStride, OfTheH100MachinePerGpuIsBelowOneWhichNoStrideCanSay) {
  double const k = paper_stride(2 * giga, 0.0, 25 * giga, 13.75 * giga);
  EXPECT_LT(k, 0.6);
  EXPECT_GT(1.0 / (1.0 + k), 0.6) << "share of the device";
}

TEST(PaperStride, IsInfiniteWhereTheCpuKeepsUpWithTheLink) {
  EXPECT_TRUE(std::isinf(paper_stride(10, 0, 10, 1)));
  EXPECT_THROW((void)paper_stride(0, 0, 10, 1), PreconditionError);
}

TEST(BestShare, OfThePapersMachinesIsAtLeastWhatTheStrideSays) {
  // Equation 1 adds transfer and device update, which overlap.
  double const v100 = best_share(paper_demand(), paper_machine(2, 35, 3));
  double const by_stride = 1.0 / (1.0 + paper_stride(2 * giga, 0, 35 * giga, 3 * giga));
  EXPECT_GT(v100, by_stride);
  EXPECT_NEAR(v100, by_stride, 0.1);
  double const h100 = best_share(paper_demand(), paper_machine(2, 25, 13.75));
  EXPECT_GT(h100, 0.5);
  EXPECT_LT(h100, 0.8);
}

class RandomPlan {
 public:
  UpdateRates rates() {
    return {.cpu_update = draw(),
            .device_update = draw(),
            .host_to_device = 10 * draw(),
            .device_to_host = 10 * draw(),
            .host_to_device_both = maybe() ? 10 * draw() : 0,
            .device_to_host_both = maybe() ? 10 * draw() : 0,
            .host_memory = maybe() ? 30 * draw() : 0,
            .paths = {{.read = 10 * draw(), .write = 10 * draw(), .full_duplex = maybe()},
                      {.read = 10 * draw(), .write = 10 * draw()}}};
  }
  UpdateDemand demand() {
    return {.elements = 1000 + static_cast<std::int64_t>(random_() % 9000),
            .resident = maybe() ? 0.3 : 0.0,
            .gradient_bytes = maybe() ? 2 : 4,
            .held = maybe() ? 0 : amount(),
            .parameter_bytes = maybe() ? 2 : 4,
            .chunk = static_cast<std::int64_t>(random_() % 500),
            .direct_copy = maybe(),
            .transfers = maybe() ? Transfers::overlap : Transfers::blocking,
            .storage = {.read = maybe() ? 0 : 12 * amount(),
                        .written = maybe() ? 0 : 12 * amount(),
                        .spilled = maybe() ? 0 : amount()}};
  }
  bool maybe() { return random_() % 2 == 0; }

 private:
  std::int64_t amount() { return static_cast<std::int64_t>(random_() % 9000); }
  double draw() { return std::exp(rate_(random_)); }
  std::mt19937_64 random_{11};
  std::uniform_real_distribution<double> rate_{0.0, 5.0};
};

TEST(BestShare, IsNoWorseThanAnyOther) {
  RandomPlan random;
  for (int round = 0; round < 300; ++round) {
    auto const demand = random.demand();
    auto const rates = random.rates();
    double const best = update_times(demand, rates, best_share(demand, rates)).total.count();
    for (int i = 0; i <= 97; ++i) {
      ASSERT_LE(best, update_times(demand, rates, i / 97.0).total.count() * (1 + 1e-9)) << round;
    }
  }
}

TEST(UpdateTimes, BlockingIsNeverFasterThanOverlap) {
  RandomPlan random;
  for (int round = 0; round < 300; ++round) {
    auto demand = random.demand();
    auto const rates = random.rates();
    for (double const share : {0.0, 0.3, 1.0}) {
      demand.transfers = Transfers::overlap;
      Seconds const overlap = update_times(demand, rates, share).total;
      demand.transfers = Transfers::blocking;
      ASSERT_GE(update_times(demand, rates, share).total, overlap) << round;
    }
  }
}

TEST(UpdateTimes, AFasterResourceNeverMakesItLonger) {
  RandomPlan random;
  for (int round = 0; round < 300; ++round) {
    auto const demand = random.demand();
    auto const rates = random.rates();
    double const before = update_times(demand, rates, 0.4).total.count();
    for (double UpdateRates::*const rate :
         {&UpdateRates::cpu_update, &UpdateRates::device_update, &UpdateRates::host_to_device,
          &UpdateRates::device_to_host, &UpdateRates::host_to_device_both,
          &UpdateRates::device_to_host_both, &UpdateRates::host_memory}) {
      auto faster = rates;
      faster.*rate *= 1.7;
      ASSERT_LE(update_times(demand, faster, 0.4).total.count(), before * (1 + 1e-12)) << round;
    }
    for (double PathRate::*const rate : {&PathRate::read, &PathRate::write}) {
      auto faster = rates;
      faster.paths.back().*rate *= 1.7;
      ASSERT_LE(update_times(demand, faster, 0.4).total.count(), before * (1 + 1e-12)) << round;
    }
  }
}

}  // namespace
}  // namespace offstage::plan
