// Updates that CPU and device share: the bits of the CPU alone, whoever updates what, in which
// pieces and in which order it ends.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "deadline.hpp"
#include "device/shuffled_device.hpp"
#include "shared_update.hpp"
#include "targets_in.hpp"
#include "tries.hpp"

namespace offstage::update {
namespace {

constexpr int steps = 2;
/// So fast that it takes no time, but host code must not touch its memory.
constexpr device::Emulation fast_link{1e13, 1e13, 0.0, 0.0};

using Call = MemoryTiers::Call;

template <class G, class W>
Result<W> train(device::Device& device, Shard const& shard, Numbers<G> const& numbers,
                Sharing const& sharing) {
  Deadline const deadline{std::chrono::seconds{60}, sharing.text()};
  SharedUpdate<G, W> update{device, shard, numbers, sharing};
  for (int t = 1; t <= steps; ++t) {
    update.run(t);
    EXPECT_EQ(update.held(), 0);
  }
  return update.result();
}

/// The devices of all tests: memory that the host sees, a link, and a link with delays.
std::unique_ptr<device::Device> make_device(int kind, std::uint64_t seed) {
  if (kind == 2) {
    return std::make_unique<device::ShuffledDevice>(seed, 0, std::chrono::microseconds{200});
  }
  return device::make_host_device(0, kind == 1 ? fast_link : device::Emulation{});
}

template <class Types>
class SharedUpdateTypes : public ::testing::Test {};
TYPED_TEST_SUITE(SharedUpdateTypes, AllTypes);

TYPED_TEST(SharedUpdateTypes, GivesTheBitsOfTheReferenceOnBothSides) {
  using G = typename TypeParam::Gradient;
  using W = typename TypeParam::Copy;
  Shard const shard{5};
  Numbers<G> const numbers{shard, steps};
  auto const expected = train_by_reference<G, W>(shard, steps);
  for (int kind = 0; kind < 3; ++kind) {
    for (int const residents : {0, 2}) {
      auto const device = make_device(kind, 1);
      Sharing sharing;
      sharing.residents = residents;
      EXPECT_EQ((train<G, W>(*device, shard, numbers, sharing)), expected)
          << "device " << kind << ", " << sharing.text();
    }
  }
}

TEST(SharedUpdate, GivesTheBitsOfTheReferenceWithEveryOptimizerAndItsMoments) {
  for (Optimizer const& optimizer : all_optimizers()) {
    SCOPED_TRACE(optimizer.text());
    Shard const shard{5, optimizer.layout};
    Numbers<bfloat16> const numbers{shard, steps};
    auto const expected = train_by_reference<bfloat16, bfloat16>(shard, steps, optimizer.step);
    for (double const share : {0.0, 0.5, 1.0}) {
      for (int const residents : {0, 2}) {
        auto const device = make_device(2, 1);
        Sharing sharing;
        sharing.share = share;
        sharing.residents = residents;
        sharing.chunk = (1 + residents) * chunk_elements;
        sharing.lent_buffers = residents;
        sharing.step = optimizer.step;
        EXPECT_EQ((train<bfloat16, bfloat16>(*device, shard, numbers, sharing)), expected)
            << sharing.text();
      }
    }
  }
}

TEST(SharedUpdate, GivesTheSameBitsForAnyShareResidentsChunksWorkersAndDelays) {
  Shard const shard{7};
  Numbers<bfloat16> const numbers{shard, steps};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, steps);
  std::mt19937 random{1};
  auto const one_of = [&](auto const& values) { return values[random() % values.size()]; };
  for (double const share : {0.0, 0.25, 0.33, 0.5, 0.75, 1.0}) {
    for (int const residents : {0, 1, 3, 7}) {
      for (int kind = 0; kind < 3; ++kind) {
        Sharing sharing;
        sharing.share = share;
        sharing.residents = residents;
        sharing.chunk = chunk_elements * one_of(std::array{1, 2, 3, 8});
        sharing.workers = one_of(std::array{1, 2, 3, 5});
        sharing.buffers = one_of(std::array{1, 2, 4});
        sharing.parameter_buffers = one_of(std::array{1, 3});
        sharing.lent_buffers = one_of(std::array{0, 1, 4});
        sharing.transfers = one_of(std::array{plan::Transfers::overlap, plan::Transfers::blocking});
        sharing.state.buffers = one_of(std::array{1, 2, 3});
        sharing.gradients.buffers = one_of(std::array{1, 3});
        sharing.state.in_memory = one_of(std::array{0, 3});
        auto const device = make_device(kind, random());
        EXPECT_EQ((train<bfloat16, bfloat16>(*device, shard, numbers, sharing)), expected)
            << "device " << kind << ", " << sharing.text();
      }
    }
  }
}

TEST(SharedUpdate, EndsWithTheSmallestPools) {
  Shard const shard{5};
  Numbers<bfloat16> const numbers{shard, steps};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, steps);
  for (int const workers : {1, 2, 4, 8}) {
    for (auto const transfers : {plan::Transfers::overlap, plan::Transfers::blocking}) {
      for (int const lent_buffers : {0, 1}) {
        auto const device = make_device(2, 1);
        Sharing sharing{.residents = 1,
                        .workers = workers,
                        .buffers = 1,
                        .parameter_buffers = 1,
                        .lent_buffers = lent_buffers,
                        .transfers = transfers};
        sharing.state.buffers = sharing.gradients.buffers = 1;
        EXPECT_EQ((train<bfloat16, bfloat16>(*device, shard, numbers, sharing)), expected)
            << sharing.text();
      }
    }
  }
}

/// A door that fetches of one subgroup's state wait at.
struct Door {
  std::atomic<bool> open = false;
  [[nodiscard]] std::function<void(MemoryTiers::Event)> before(std::int64_t subgroup) {
    return [this, subgroup](MemoryTiers::Event event) {
      while (event.call == Call::fetch && event.key == subgroup && !open) {
        std::this_thread::sleep_for(std::chrono::microseconds{100});
      }
    };
  }
};

TEST(SharedUpdate, StartReturnsWhenTheCpuIsDoneAndReadinessSaysWhatIsInPlace) {
  Shard const shard{4};
  Numbers<bfloat16> const numbers{shard, 1};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, 1);
  Deadline const deadline{std::chrono::seconds{60}, "start"};
  for (int kind = 0; kind < 3; ++kind) {
    Door door;
    auto const device = make_device(kind, 3);
    Sharing sharing;  // subgroups 1 and 3 on the device
    sharing.state.hook = door.before(3);
    SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
    auto const expect_part = [&](std::int64_t index) {
      auto const& subgroup = shard.subgroups[static_cast<std::size_t>(index)];
      update.readiness().wait(subgroup.begin, subgroup.begin + subgroup.size);
      auto const part = update.copy_part(subgroup.begin, subgroup.size);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.copy.begin() + subgroup.begin))
          << "subgroup " << index << ", device " << kind;
    };
    update.start(1);
    EXPECT_THAT(update.state().keys_of(Call::commit), testing::Not(testing::Contains(3)));
    EXPECT_THROW(update.update().plan(update.order()), PreconditionError);
    EXPECT_THROW(update.update().run(first_step), PreconditionError);
    expect_part(0);
    expect_part(1);
    expect_part(2);
    std::thread opener{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
      door.open = true;
    }};
    expect_part(3);
    opener.join();
    auto const stats = update.finish();
    EXPECT_EQ(stats.cpu_elements + stats.device_elements, shard.size);
    EXPECT_EQ(update.held(), 0);
    EXPECT_EQ(update.result(), expected);
  }
}

TEST(SharedUpdate, FinishWithoutStartIsNothingAndTheDestructorWaits) {
  Shard const shard{4};
  Numbers<float> const numbers{shard, 1};
  auto const device = make_device(2, 4);
  SharedUpdate<float, float> update{*device, shard, numbers, {}};
  EXPECT_EQ(update.finish().device_elements, 0);
  update.start(1);  // ends with `update`
}

TEST(SharedUpdate, LeavesWhatIsLentAloneWhenStartHasReturned) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, 1};
  auto const expected = train_by_reference<bfloat16, bfloat16>(shard, 1);
  for (int const lent_buffers : {1, 2, 3}) {  // of three: then nothing else is left
    Door door;
    auto const device = make_device(2, 5);
    Sharing sharing;
    sharing.lent_buffers = lent_buffers;
    sharing.residents = 1;
    if (lent_buffers < 3) {
      sharing.state.hook = door.before(3);
    }
    SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
    EXPECT_EQ(update.lane().any_own_buffers(), lent_buffers < 3);
    update.start(1);
    std::ranges::fill(update.lent(), std::byte{0x5A});
    door.open = true;
    update.finish();
    EXPECT_THAT(update.lent(), testing::Each(std::byte{0x5A})) << lent_buffers;
    EXPECT_EQ(update.result(), expected) << lent_buffers;
  }
}

TEST(SharedUpdate, CountsWhatItMoves) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, 1};
  for (int kind = 0; kind < 3; ++kind) {
    auto const device = make_device(kind, 6);
    Sharing sharing;
    sharing.residents = 2;  // subgroups 4 and 5; of the others 1 and 3 on the device
    SharedUpdate<bfloat16, float> update{*device, shard, numbers, sharing};
    auto const size = [&](std::size_t index) { return shard.subgroups[index].size; };
    auto const moved = size(1) + size(3);
    auto const resident = size(4) + size(5);
    auto const on_cpu = size(0) + size(2);
    auto const stats = update.run(1);
    EXPECT_EQ(stats.cpu_elements, on_cpu);
    EXPECT_EQ(stats.device_elements, moved + resident);
    EXPECT_EQ(stats.device.updated, moved + resident);
    EXPECT_EQ(stats.device.to_host_bytes, 12 * moved);
    EXPECT_EQ(stats.device.to_device_bytes,
              14 * moved + 2 * resident + (update.lane().stages() ? 4 * on_cpu : 0));
    EXPECT_EQ(update.lane().stages(), kind != 0);
    for (Seconds const busy : {stats.device.host_to_device, stats.device.device_to_host,
                               stats.device.kernel, stats.compute}) {
      EXPECT_GT(busy.count(), 0.0);
      EXPECT_LE(busy, stats.total);
    }
  }
}

TEST(SharedUpdate, MeasuresTheRatesThatAreEmulated) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, most_tries};
  auto const device = device::make_host_device(0, {8e6, 6e6, 0.5e6, 0.0});
  Sharing sharing;
  sharing.host_update_rate = 0.6e6;
  SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
  int step = 0;
  EXPECT_TRUE(holds_in_some_try([&] {
    auto const stats = update.run(++step);
    auto const& lane = stats.device;
    auto const is_rate = [](auto amount, Seconds busy, double rate) {
      return is_about(static_cast<double>(amount) / busy.count(), rate);
    };
    return is_rate(lane.to_device_bytes, lane.host_to_device, 8e6) &&
           is_rate(lane.to_host_bytes, lane.device_to_host, 6e6) &&
           is_rate(lane.updated, lane.kernel, 0.5e6) &&
           is_rate(stats.cpu_elements, stats.compute, 0.6e6);
  }));
}

TEST(SharedUpdate, OneAfterTheOtherWhereTransfersBlock) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, 1};
  auto const device = make_device(1, 7);
  Sharing sharing;  // 1 and 3 on the device, as residents 4 and 5; then 0 and 2
  sharing.residents = 2;
  sharing.workers = 1;
  sharing.transfers = plan::Transfers::blocking;
  SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
  update.run(1);
  EXPECT_THAT(update.gradient_tiers().keys_of(Call::fetch), testing::ElementsAre(1, 3, 4, 5, 0, 2));
  EXPECT_THAT(update.state().keys_of(Call::commit), testing::ElementsAre(1, 3, 0, 2));
}

TEST(SharedUpdate, WithoutADeviceTheCpuUpdatesAll) {
  Shard const shard{3};
  MemoryTiers tiers{shard.extents()};
  MemoryTiers gradient_tiers{shard.extents(4)};
  Gradients<float> gradients{shard, gradient_tiers};
  initialize(shard, tiers);
  gradients.set(random_values<float>(shard.size, 11));
  std::vector<float> copy(static_cast<std::size_t>(shard.size));
  UpdateParts parts{.subgroups = shard.subgroups,
                    .state = tiers,
                    .gradient = gradients.source(),
                    .target = parameters::targets_in(std::span{copy})};
  Update update{parts, {}};
  auto const stats = make_update(update, {{0, true}, {1, false}, {2, true}}, first_step);
  EXPECT_EQ(stats.cpu_elements, shard.size);
  EXPECT_EQ((Result<float>{state_of(shard, tiers), copy}),
            (train_by_reference<float, float>(shard, 1)));
  parts.resident = [](std::int64_t) { return std::span<std::byte>{}; };
  EXPECT_THROW((Update{parts, {}}), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
