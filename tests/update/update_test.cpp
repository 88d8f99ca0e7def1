#include "update/update.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "memory_tiers.hpp"
#include "platform/faulty_kernel.hpp"
#include "platform/scratch_directory.hpp"
#include "targets_in.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update_support.hpp"

namespace offstage::update {
namespace {

/// Where a run has what, and in which order it updates it.
struct Scenario {
  MemoryTiers::Settings state{};
  MemoryTiers::Settings gradients{};
  int workers = 3;
  std::function<std::vector<std::int64_t>(std::vector<std::int64_t>)> order =
      [](std::vector<std::int64_t> ascending) { return ascending; };
};

template <class G, class W>
Result<W> train(Shard const& shard, tiers::Tiers& tiers, tiers::Tiers& gradient_tiers,
                Scenario const& run, int steps) {
  Gradients<G> gradients{shard, gradient_tiers};
  initialize(shard, tiers);
  std::vector<W> copy(static_cast<std::size_t>(shard.size));
  Update update{{.subgroups = shard.subgroups,
                 .state = tiers,
                 .gradient = gradients.source(),
                 .target = parameters::targets_in(std::span<W>{copy})},
                {.workers = run.workers}};
  for (int t = 1; t <= steps; ++t) {
    gradients.set(random_values<G>(shard.size, static_cast<std::uint64_t>(10 + t)));
    kernels::OptimizerStep step = first_step;
    step.step = t;
    make_update(update, on_cpu(run.order(shard.ascending())), step);
  }
  return {state_of(shard, tiers), copy};
}

template <class G, class W>
Result<W> train(Shard const& shard, Scenario const& run, int steps) {
  MemoryTiers tiers{shard.extents(), run.state};
  MemoryTiers gradient_tiers{shard.extents(sizeof(G)), run.gradients};
  auto result = train<G, W>(shard, tiers, gradient_tiers, run, steps);
  EXPECT_EQ(tiers.held(), 0);
  EXPECT_EQ(gradient_tiers.held(), 0);
  return result;
}

template <class Types>
class UpdateTypes : public ::testing::Test {};
TYPED_TEST_SUITE(UpdateTypes, AllTypes);

TYPED_TEST(UpdateTypes, GivesTheBitsOfTheReferenceWhereverStateAndGradientLie) {
  using G = typename TypeParam::Gradient;
  using W = typename TypeParam::Copy;
  Shard const shard{7};
  auto const expected = train_by_reference<G, W>(shard, 3);
  for (std::int64_t const in_memory : {0, 3, 7}) {
    Scenario run;
    run.state.in_memory = in_memory;
    run.gradients.in_memory = 7 - in_memory;
    EXPECT_EQ((train<G, W>(shard, run, 3)), expected) << in_memory << " in memory";
  }
}

/// A host gradient that is the same everywhere.
GradientSource constant_gradient(std::vector<float> const& values, MemoryTiers& tiers) {
  return [&](state::Subgroup const& subgroup) {
    return GradientLease{tiers.create(subgroup.index),
                         std::span{values}.subspan(static_cast<std::size_t>(subgroup.begin),
                                                   static_cast<std::size_t>(subgroup.size))};
  };
}

TEST(Update, OneElementByHand) {
  // t = 1: m = 0.1 g, v = 0.05 g^2, so m / (1 - 0.9) = g and v / (1 - 0.95) = g^2: p moves by
  // alpha, and by alpha lambda p where it is decayed. The gradient is 4 x 0.5 = 2.
  state::Subgroup subgroup;
  subgroup.size = chunk_elements;
  subgroup.pieces = {{0, {0, 1}, 0, 1}};
  std::vector<state::Subgroup> const subgroups{subgroup};
  MemoryTiers tiers{{12 * subgroup.size}};
  MemoryTiers gradient_tiers{{1}};
  {
    tiers::Lease lease = tiers.create(0);
    std::ranges::fill(lease.mutable_bytes(), std::byte{0});
    auto* const p = reinterpret_cast<float*>(lease.mutable_bytes().data());
    p[0] = p[1] = 3.0F;
    lease.commit();
  }
  std::vector<float> const gradient(chunk_elements, 4.0F);
  std::vector<float> copy(chunk_elements);
  Update update{{.subgroups = subgroups,
                 .state = tiers,
                 .gradient = constant_gradient(gradient, gradient_tiers),
                 .target = parameters::targets_in(std::span{copy})},
                {.workers = 1}};
  make_update(update, on_cpu({0}), first_step);
  EXPECT_NEAR(copy[0], 3.0 - 0.01 - 0.01 * 0.1 * 3.0, 1e-6);
  EXPECT_NEAR(copy[1], 3.0 - 0.01, 1e-6);
  EXPECT_NEAR(copy[2], -0.01, 1e-6);
  auto const state = tiers.fetch(0);
  auto const* const values = reinterpret_cast<float const*>(state.bytes().data());
  EXPECT_EQ(values[0], copy[0]);
  EXPECT_NEAR(values[chunk_elements], 0.1 * 2.0, 1e-6);
  EXPECT_NEAR(values[2 * chunk_elements], 0.05 * 4.0, 1e-6);
}

TEST(Update, GivesTheSameBitsForAnyWorkersBuffersAndDelaysAndNeverHangs) {
  Shard const shard{10};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, 2);
  auto const slow = [](MemoryTiers::Event event) {
    std::this_thread::sleep_for(std::chrono::microseconds{(event.key * 37) % 200});
  };
  for (int const workers : {1, 2, 3, 5, 8}) {
    for (int const state_buffers : {1, 2, 3}) {
      for (int const gradient_buffers : {1, 3}) {
        Scenario run{{state_buffers, 0, slow}, {gradient_buffers, 2, slow}, workers};
        EXPECT_EQ((train<bfloat16, bfloat16>(shard, run, 2)), expected)
            << workers << " workers, " << state_buffers << " and " << gradient_buffers
            << " buffers";
      }
    }
  }
}

TEST(Update, GivesTheSameBitsInTheVirtualTier) {
  ScratchDirectory const scratch;
  Shard const shard{10};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, 2);
  tiers::PathSettings path;
  path.directory = scratch.path();
  path.engine = {64 * KiB, 2};
  path.read_rate = path.write_rate = 1e9;
  for (int const workers : {1, 3, 8}) {
    for (int const buffers : {1, 3}) {
      for (std::int64_t const cached : {0, 4}) {
        // Reordered, short and refused requests change the schedule, never the numbers.
        auto const kernel = std::make_shared<aio::FaultyKernel>();
        int calls = 0;
        kernel->reverse = true;
        kernel->on_submit = [&](aio::Transfer& transfer) {
          if (++calls % 5 == 0) {
            transfer.length = std::min<Bytes>(transfer.length, 8 * KiB);
          }
          return calls % 101 == 0 ? -EAGAIN : 0;
        };
        tiers::VirtualSettings settings;
        settings.paths = tiers::make_paths({.paths = {path}, .kernel = kernel});
        settings.spill = "offstage-test";
        settings.buffers = buffers;
        settings.cached = cached;
        auto const state = tiers::make_virtual_tiers(shard.extents(), settings);
        auto const gradients = tiers::make_virtual_tiers(shard.extents(2), settings);
        Scenario run;
        run.workers = workers;
        EXPECT_EQ((train<bfloat16, bfloat16>(shard, *state, *gradients, run, 2)), expected)
            << workers << " workers, " << buffers << " buffers, " << cached << " cached";
      }
    }
  }
}

TEST(Update, GivesTheSameBitsInAnyOrder) {
  Shard const shard{10};
  auto const expected = train_by_reference<float, bfloat16>(shard, 3);
  std::mt19937 random{1};
  Scenario run;
  run.order = [&](std::vector<std::int64_t> order) {
    std::shuffle(order.begin(), order.end(), random);
    return order;
  };
  for (int trial = 0; trial < 5; ++trial) {
    EXPECT_EQ((train<float, bfloat16>(shard, run, 3)), expected);
  }
}

/// A shard whose state and gradient are in host memory.
struct Ready {
  explicit Ready(int count, MemoryTiers::Settings settings = {},
                 MemoryTiers::Settings gradient_settings = {})
      : shard{count},
        tiers{shard.extents(), std::move(settings)},
        gradient_tiers{shard.extents(4), std::move(gradient_settings)},
        gradients{shard, gradient_tiers},
        copy(static_cast<std::size_t>(shard.size)) {
    initialize(shard, tiers);
    gradients.set(random_values<float>(shard.size, 1));
    tiers.forget_events();
  }
  UpdateStats update(int workers, std::vector<std::int64_t> const& order) {
    Update update{parts(), {.workers = workers}};
    return make_update(update, on_cpu(order), first_step);
  }
  UpdateStats update(int workers) { return update(workers, shard.ascending()); }
  [[nodiscard]] UpdateParts parts() {
    return {.subgroups = shard.subgroups,
            .state = tiers,
            .gradient = gradients.source(),
            .target = parameters::targets_in(std::span{copy})};
  }

  Shard shard;
  MemoryTiers tiers;
  MemoryTiers gradient_tiers;
  Gradients<float> gradients;
  std::vector<float> copy;
};

TEST(Update, FetchesAndCommitsInTheGivenOrderAsOnePass) {
  Ready ready{6};
  std::vector<std::int64_t> const order{4, 0, 5, 1, 3, 2};
  ready.update(1, order);
  EXPECT_EQ(ready.tiers.keys_of(MemoryTiers::Call::fetch), order);
  EXPECT_EQ(ready.tiers.keys_of(MemoryTiers::Call::commit), order);
  EXPECT_EQ(ready.tiers.passes(), 1);
}

TEST(Update, RefusesAnOrderThatIsNotEveryIndexOnce) {
  Ready ready{3};
  for (std::vector<std::int64_t> const& order : std::vector<std::vector<std::int64_t>>{
           {}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {0, 1, -1}, {0, 1, 2, 0}}) {
    EXPECT_THROW(ready.update(1, order), PreconditionError);
  }
  EXPECT_THAT(ready.tiers.events(), testing::IsEmpty());
}

TEST(Update, MeasuresTheTimeInTheKernel) {
  Ready ready{4};
  UpdateStats const stats = ready.update(2);
  EXPECT_GT(stats.compute.count(), 0.0);
  EXPECT_GE(stats.total, stats.compute);
}

TEST(Update, OverlapsTheTripsOfItsWorkers) {
  // Three fetches wait for each other: none comes back before all have begun.
  auto const begun = std::make_shared<std::atomic<int>>(0);
  MemoryTiers::Settings settings;
  settings.hook = [=](MemoryTiers::Event event) {
    if (event.call == MemoryTiers::Call::fetch) {
      for (++*begun; *begun < 3;) {
        std::this_thread::yield();
      }
    }
  };
  Ready ready{3, settings};
  ready.update(3);
  EXPECT_EQ(*begun, 3);
}

TEST(Update, WithoutSubgroupsDoesNothing) {
  Ready ready{0};
  EXPECT_EQ(ready.update(3).compute.count(), 0.0);
}

TEST(Update, RefusesSpansShorterThanTheShardAndNoWorkers) {
  Ready ready{2};
  auto const before = state_of(ready.shard, ready.tiers);
  auto parts = ready.parts();
  parts.gradient = [&](state::Subgroup const& subgroup) {
    return GradientLease{ready.gradient_tiers.fetch(subgroup.index),
                         std::span<float const>{ready.copy}.first(7)};
  };
  Update update{parts, {.workers = 1}};
  EXPECT_THROW(make_update(update, on_cpu(ready.shard.ascending()), first_step), PreconditionError);
  EXPECT_EQ(state_of(ready.shard, ready.tiers), before);
  EXPECT_THROW((Update{ready.parts(), {.workers = 0}}), PreconditionError);
}

TEST(Update, ThrowsTheFirstErrorWhenAllWorkersHaveEnded) {
  for (auto const call : {MemoryTiers::Call::fetch, MemoryTiers::Call::commit}) {
    for (bool const of_gradient : {false, true}) {
      for (int const workers : {1, 3}) {
        auto const healthy = std::make_shared<std::atomic<int>>(1 << 30);
        MemoryTiers::Settings settings;
        settings.buffers = 2;
        settings.hook = [=](MemoryTiers::Event event) {
          if (event.call == call && --*healthy < 0) {
            throw IoError{"the disk is gone"};
          }
        };
        Ready ready{9, of_gradient ? MemoryTiers::Settings{} : settings,
                    of_gradient ? settings : MemoryTiers::Settings{}};
        *healthy = 4;
        if (of_gradient && call == MemoryTiers::Call::commit) {
          ready.update(workers);  // a gradient is read alone
        } else {
          EXPECT_THROW(ready.update(workers), IoError);
        }
        // Every lease has ended: the next run gets all keys and buffers.
        EXPECT_EQ(ready.tiers.held(), 0);
        EXPECT_EQ(ready.gradient_tiers.held(), 0);
        *healthy = 1 << 30;
        ready.update(workers);
      }
    }
  }
}

TEST(Update, AnErrorOfTheKernelReachesTheCaller) {
  Ready ready{3};
  kernels::OptimizerStep bad = first_step;
  bad.step = 0;
  Update update{ready.parts(), {.workers = 2}};
  EXPECT_THROW(make_update(update, on_cpu(ready.shard.ascending()), bad), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
