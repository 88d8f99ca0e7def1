#include "update/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/thread.hpp"
#include "platform/faulty_kernel.hpp"
#include "platform/scratch_directory.hpp"
#include "update/compute_lane.hpp"

namespace offstage::update {
namespace {

constexpr kernels::AdamwStep first_step{0.01, 0.9, 0.95, 1e-8, 0.1, 0.5, 1};

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t stream) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = store<T>(normal(5, stream, i));
  }
  return values;
}

/// A shard cut into subgroups of one to three chunks, each with a decayed and an undecayed part.
struct Shard {
  explicit Shard(int count) {
    for (int index = 0; index < count; ++index) {
      state::Subgroup subgroup;
      subgroup.index = index;
      subgroup.begin = size;
      subgroup.size = chunk_elements * (1 + index % 3);
      std::int64_t const cut = 100 + 1000 * (index % 4);
      subgroup.decay_ranges = {{0, cut, true}, {cut, subgroup.size, false}};
      size += subgroup.size;
      subgroups.push_back(subgroup);
    }
  }
  [[nodiscard]] std::vector<Bytes> extents() const {
    std::vector<Bytes> sizes;
    for (auto const& subgroup : subgroups) {
      sizes.push_back(subgroup.state_bytes());
    }
    return sizes;
  }

  std::int64_t size = 0;
  std::vector<state::Subgroup> subgroups;
};

/// p random, m and v zero.
void initialize(Shard const& shard, tiers::Tiers& tiers) {
  auto const parameters = random_values<float>(shard.size, 1);
  for (auto const& subgroup : shard.subgroups) {
    tiers::Lease lease = tiers.create(subgroup.index);
    std::memcpy(lease.mutable_bytes().data(), parameters.data() + subgroup.begin,
                static_cast<std::size_t>(subgroup.size) * sizeof(float));
    lease.commit();
  }
}

std::vector<float> state_of(Shard const& shard, tiers::Tiers& tiers) {
  std::vector<float> all;
  for (auto const& subgroup : shard.subgroups) {
    tiers::Lease const lease = tiers.fetch(subgroup.index);
    auto const* const values = reinterpret_cast<float const*>(lease.bytes().data());
    all.insert(all.end(), values, values + 3 * subgroup.size);
  }
  return all;
}

/// State and working copy after a few steps. Bits, so that equal means equal.
template <class W>
struct Result {
  std::vector<float> state;
  std::vector<W> copy;
  bool operator==(Result const& other) const {
    return state.size() == other.state.size() && copy == other.copy &&
           std::memcmp(state.data(), other.state.data(), state.size() * sizeof(float)) == 0;
  }
};

template <class G, class W>
Result<W> train(Shard const& shard, tiers::Tiers& tiers, int workers, int steps) {
  initialize(shard, tiers);
  std::vector<W> copy(static_cast<std::size_t>(shard.size));
  UpdatePipeline pipeline{shard.subgroups, tiers, workers};
  for (int t = 1; t <= steps; ++t) {
    auto const gradient = random_values<G>(shard.size, static_cast<std::uint64_t>(10 + t));
    kernels::AdamwStep step = first_step;
    step.step = t;
    pipeline.run(step, std::span<G const>{gradient}, std::span<W>{copy});
  }
  return {state_of(shard, tiers), copy};
}

/// The same with the reference kernel, one subgroup after the other.
template <class G, class W>
Result<W> train_by_reference(Shard const& shard, int steps) {
  auto const tiers = tiers::make_host_tiers(shard.extents());
  initialize(shard, *tiers);
  std::vector<W> copy(static_cast<std::size_t>(shard.size));
  for (int t = 1; t <= steps; ++t) {
    auto const gradient = random_values<G>(shard.size, static_cast<std::uint64_t>(10 + t));
    for (auto const& subgroup : shard.subgroups) {
      tiers::Lease lease = tiers->fetch(subgroup.index);
      auto* const p = reinterpret_cast<float*>(lease.mutable_bytes().data());
      for (auto const& range : subgroup.decay_ranges) {
        kernels::AdamwStep step = first_step;
        step.step = t;
        step.weight_decay = range.decayed ? first_step.weight_decay : 0.0;
        auto const n = static_cast<std::size_t>(range.end - range.begin);
        auto const shard_begin = static_cast<std::size_t>(subgroup.begin + range.begin);
        float* const begin = p + range.begin;
        kernels::ref::adamw<G, W>({{begin, n},
                                   {begin + subgroup.size, n},
                                   {begin + 2 * subgroup.size, n},
                                   {gradient.data() + shard_begin, n},
                                   {copy.data() + shard_begin, n}},
                                  step);
      }
      lease.commit();
    }
  }
  return {state_of(shard, *tiers), copy};
}

tiers::StorageSettings storage(std::string const& path, int buffers,
                               std::shared_ptr<aio::Kernel> kernel = nullptr) {
  return {path, "offstage-test", buffers, {64 * KiB, 2}, std::move(kernel)};
}

template <class Types>
class UpdatePipelineTypes : public ::testing::Test {};
template <class G, class W>
struct Types {
  using Gradient = G;
  using Copy = W;
};
using AllTypes =
    ::testing::Types<Types<float, float>, Types<float, bfloat16>, Types<bfloat16, float>,
                     Types<bfloat16, bfloat16>, Types<float, float16>, Types<float16, float>,
                     Types<float16, float16>>;
TYPED_TEST_SUITE(UpdatePipelineTypes, AllTypes);

TYPED_TEST(UpdatePipelineTypes, GivesTheBitsOfTheReferenceWhereverTheStateLives) {
  using G = typename TypeParam::Gradient;
  using W = typename TypeParam::Copy;
  ScratchDirectory const scratch;
  Shard const shard{7};
  auto const expected = train_by_reference<G, W>(shard, 3);
  auto const host = tiers::make_host_tiers(shard.extents());
  EXPECT_EQ((train<G, W>(shard, *host, 3, 3)), expected);
  auto const stored = tiers::make_storage_tiers(shard.extents(), storage(scratch.path(), 3));
  EXPECT_EQ((train<G, W>(shard, *stored, 3, 3)), expected);
}

TEST(UpdatePipeline, OneElementByHand) {
  // t = 1: m = 0.1 g, v = 0.05 g^2, so m / (1 - 0.9) = g and v / (1 - 0.95) = g^2: p moves by
  // alpha, and by alpha lambda p where it is decayed. The gradient is 4 x 0.5 = 2.
  state::Subgroup subgroup;
  subgroup.size = chunk_elements;
  subgroup.decay_ranges = {{0, 1, true}, {1, chunk_elements, false}};
  std::vector<state::Subgroup> const subgroups{subgroup};
  auto const tiers = tiers::make_host_tiers({subgroup.state_bytes()});
  {
    tiers::Lease lease = tiers->create(0);
    auto* const p = reinterpret_cast<float*>(lease.mutable_bytes().data());
    p[0] = p[1] = 3.0F;
    lease.commit();
  }
  std::vector<float> const gradient(chunk_elements, 4.0F);
  std::vector<float> copy(chunk_elements);
  UpdatePipeline{subgroups, *tiers, 1}.run(first_step, std::span{gradient}, std::span{copy});
  EXPECT_NEAR(copy[0], 3.0 - 0.01 - 0.01 * 0.1 * 3.0, 1e-6);
  EXPECT_NEAR(copy[1], 3.0 - 0.01, 1e-6);
  EXPECT_NEAR(copy[2], -0.01, 1e-6);
  auto const state = tiers->fetch(0);
  auto const* const values = reinterpret_cast<float const*>(state.bytes().data());
  EXPECT_EQ(values[0], copy[0]);
  EXPECT_NEAR(values[chunk_elements], 0.1 * 2.0, 1e-6);
  EXPECT_NEAR(values[2 * chunk_elements], 0.05 * 4.0, 1e-6);
}

TEST(UpdatePipeline, GivesTheSameBitsForAnyNumberOfWorkersAndBuffers) {
  ScratchDirectory const scratch;
  Shard const shard{10};
  auto const host = tiers::make_host_tiers(shard.extents());
  auto const expected = train<bfloat16, bfloat16>(shard, *host, 1, 3);
  for (int const workers : {1, 3, 12}) {
    for (int const buffers : {1, 3}) {
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
      auto const stored =
          tiers::make_storage_tiers(shard.extents(), storage(scratch.path(), buffers, kernel));
      EXPECT_EQ((train<bfloat16, bfloat16>(shard, *stored, workers, 3)), expected)
          << workers << " workers, " << buffers << " buffers";
    }
  }
}

TEST(UpdatePipeline, CountsTheBytesAndSecondsOfARun) {
  ScratchDirectory const scratch;
  Shard const shard{4};
  auto const tiers = tiers::make_storage_tiers(shard.extents(), storage(scratch.path(), 2));
  initialize(shard, *tiers);
  auto const gradient = random_values<float>(shard.size, 1);
  std::vector<float> copy(gradient.size());
  UpdatePipeline pipeline{shard.subgroups, *tiers, 2};
  UpdateStats const stats = pipeline.run(first_step, std::span{gradient}, std::span{copy});
  EXPECT_EQ(stats.read_bytes, 12 * shard.size);
  EXPECT_EQ(stats.write_bytes, 12 * shard.size);
  EXPECT_GT(stats.compute.count(), 0.0);
  EXPECT_GE(stats.total, stats.compute);
}

TEST(UpdatePipeline, WithoutSubgroupsDoesNothing) {
  std::vector<state::Subgroup> const none;
  auto const tiers = tiers::make_host_tiers({});
  UpdateStats const stats =
      UpdatePipeline{none, *tiers, 3}.run(first_step, std::span<float const>{}, std::span<float>{});
  EXPECT_EQ(stats.read_bytes, 0);
}

TEST(UpdatePipeline, RefusesSpansShorterThanTheShard) {
  Shard const shard{2};
  auto const tiers = tiers::make_host_tiers(shard.extents());
  initialize(shard, *tiers);
  std::vector<float> const gradient(static_cast<std::size_t>(shard.size));
  std::vector<float> copy(gradient.size());
  UpdatePipeline pipeline{shard.subgroups, *tiers, 1};
  std::span<float> const shorter = std::span{copy}.first(copy.size() - 1);
  EXPECT_THROW(pipeline.run(first_step, std::span{gradient}, shorter), PreconditionError);
  EXPECT_THROW(pipeline.run(first_step, std::span<float const>{shorter}, std::span{copy}),
               PreconditionError);
  EXPECT_THROW((UpdatePipeline{shard.subgroups, *tiers, 0}), PreconditionError);
}

TEST(UpdatePipeline, RefusesTwoDifferent16BitTypesAndLeavesTheStateAlone) {
  Shard const shard{2};
  auto const tiers = tiers::make_host_tiers(shard.extents());
  initialize(shard, *tiers);
  auto const before = state_of(shard, *tiers);
  auto const gradient = random_values<float16>(shard.size, 1);
  std::vector<bfloat16> copy(gradient.size());
  UpdatePipeline pipeline{shard.subgroups, *tiers, 2};
  EXPECT_THROW(pipeline.run(first_step, std::span{gradient}, std::span{copy}), PreconditionError);
  EXPECT_EQ(state_of(shard, *tiers), before);
}

TEST(UpdatePipeline, ThrowsTheFirstErrorWhenAllWorkersHaveEnded) {
  ScratchDirectory const scratch;
  Shard const shard{9};
  auto const gradient = random_values<float>(shard.size, 1);
  std::vector<float> copy(gradient.size());
  for (auto const direction : {aio::Direction::read, aio::Direction::write}) {
    for (int const workers : {1, 3}) {
      auto const kernel = std::make_shared<aio::FaultyKernel>();
      auto const tiers =
          tiers::make_storage_tiers(shard.extents(), storage(scratch.path(), workers, kernel));
      initialize(shard, *tiers);
      UpdatePipeline pipeline{shard.subgroups, *tiers, workers};
      int healthy = 8;
      kernel->on_complete = [&](aio::Transfer const& transfer, aio::Completion& completion) {
        if (transfer.direction == direction && --healthy < 0) {
          completion.result = -EIO;
        }
      };
      EXPECT_THROW(pipeline.run(first_step, std::span{gradient}, std::span{copy}), IoError);
      EXPECT_EQ(kernel->in_flight(), 0U);
      // Every lease has ended: the next run gets all keys and buffers.
      kernel->on_complete = nullptr;
      pipeline.run(first_step, std::span{gradient}, std::span{copy});
    }
  }
}

TEST(UpdatePipeline, AnErrorOfTheKernelReachesTheCaller) {
  Shard const shard{3};
  auto const tiers = tiers::make_host_tiers(shard.extents());
  initialize(shard, *tiers);
  std::vector<float> const gradient(static_cast<std::size_t>(shard.size));
  std::vector<float> copy(gradient.size());
  kernels::AdamwStep bad = first_step;
  bad.step = 0;
  UpdatePipeline pipeline{shard.subgroups, *tiers, 2};
  EXPECT_THROW(pipeline.run(bad, std::span{gradient}, std::span{copy}), PreconditionError);
}

TEST(ComputeLane, RunsEverythingOnTheServingThread) {
  constexpr int workers = 4;
  ComputeLane lane{workers};
  auto const server = std::this_thread::get_id();
  int count = 0;  // of the serving thread alone
  bool elsewhere = false;
  std::vector<NamedThread> threads;
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back("worker", [&] {
      for (int i = 0; i < 100; ++i) {
        lane.run([&] {
          ++count;
          elsewhere = elsewhere || std::this_thread::get_id() != server;
        });
      }
      lane.leave();
    });
  }
  lane.serve();
  EXPECT_EQ(count, 400);
  EXPECT_FALSE(elsewhere);
}

TEST(ComputeLane, HandsErrorsBackToTheWorker) {
  ComputeLane lane{1};
  std::string caught;
  NamedThread worker{"worker", [&] {
                       try {
                         lane.run([] { throw std::runtime_error{"broken"}; });
                       } catch (std::runtime_error const& error) {
                         caught = error.what();
                       }
                       lane.leave();
                     }};
  lane.serve();
  worker.join();
  EXPECT_EQ(caught, "broken");
}

}  // namespace
}  // namespace offstage::update
