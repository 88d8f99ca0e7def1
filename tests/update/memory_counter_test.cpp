#include "device/memory_counter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "shard_support.hpp"
#include "temporary_directory.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::update {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;
using User = device::MemoryCounter::User;
using Clock = device::MemoryCounter::Clock;

/// A trace and what it says in the end.
class TracedMemory : public ::testing::Test {
 protected:
  [[nodiscard]] Clock::time_point at(int microseconds) const {
    return start_ + std::chrono::microseconds{microseconds};
  }
  /// Ends the row. Its values of a series, in the order of their times.
  std::vector<Bytes> row(std::string const& series) {
    memory_.reset();
    trace_.reset();
    std::vector<std::pair<double, Bytes>> found;
    for (auto const& event : nlohmann::json::parse(std::ifstream{path_})) {
      if (event.at("ph") == "C") {
        EXPECT_EQ(event.at("name"), "device memory");
        found.emplace_back(event.at("ts").get<double>(), event.at("args").at(series).get<Bytes>());
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(found, {}, &std::pair<double, Bytes>::first));
    std::vector<Bytes> values;
    for (auto const& each : found) {
      values.push_back(each.second);
    }
    return values;
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path().string() + "/trace.json";
  std::optional<trace::Trace> trace_{std::in_place, path_, 0, "node"};
  std::optional<device::MemoryCounter> memory_{std::in_place, *trace_};
  Clock::time_point start_ = Clock::now();
};

TEST_F(TracedMemory, IsDrawnInTheOrderOfTimesWhateverIsToldFirst) {
  memory_->used(User::slots, 5, at(30), at(40));
  memory_->used(User::slots, 3, at(10), at(35));
  memory_->used(User::lent, 7, at(20), at(50));
  memory_->write(at(60));
  EXPECT_THAT(row("update chunks"), ElementsAre(3, 3, 8, 5, 0, 0));
  EXPECT_THAT(row("lent chunks"), ElementsAre(0, 7, 7, 7, 7, 0));
}

TEST_F(TracedMemory, DoesNotDipWhereOneUseFollowsTheOther) {
  memory_->used(User::activations, 5, at(10), at(20));
  memory_->used(User::activations, 5, at(20), at(30));
  EXPECT_THAT(row("activations"), ElementsAre(5, 5, 0));
}

TEST_F(TracedMemory, StaysInUseOnceItIsKept) {
  memory_->keep(User::parameters, 9);
  memory_->used(User::activations, 1, Clock::now() + std::chrono::microseconds{1},
                Clock::now() + std::chrono::microseconds{9});
  EXPECT_THAT(row("parameters"), ElementsAre(9, 9, 9));
}

TEST_F(TracedMemory, ThatIsWrittenInPartsIsNeitherLostNorDoubled) {
  memory_->used(User::slots, 5, at(10), at(40));
  memory_->write(at(20));
  memory_->write(at(25));
  memory_->used(User::slots, 2, at(5), at(50));  // begins before what is written
  EXPECT_THAT(row("update chunks"), ElementsAre(5, 7, 2, 0));
}

TEST_F(TracedMemory, OfNothingOrForNoTimeIsNotDrawn) {
  memory_->used(User::slots, 0, at(10), at(40));
  memory_->used(User::slots, -1, at(10), at(40));
  memory_->used(User::slots, 1, at(40), at(10));
  memory_->used(User::slots, 1, at(40), at(40));
  EXPECT_THAT(row("update chunks"), IsEmpty());
}

TEST_F(TracedMemory, OfTheLaneIsThatOfItsSlotsAndEndsWithThem) {
  auto const device = device::make_host_device(64 * MiB, {1e9, 1e9, 0.0, 0.0});
  Bytes const slot = ChunkBuffers::stride(chunk_elements * 16);
  auto const idle = device->allocate(slot, "activations");
  DeviceLaneSettings settings;
  settings.chunk = chunk_elements;
  settings.buffers = 3;
  settings.lent = idle.as<std::byte>();
  DeviceLane lane{*device, settings, nullptr, &*memory_};
  Shard const shard{3};
  auto const copy = device->allocate(shard.size * 4, "parameters");
  for (state::Subgroup const& subgroup : shard.subgroups) {
    std::vector<float> state(static_cast<std::size_t>(3 * subgroup.size));
    std::vector<float> const gradient(static_cast<std::size_t>(subgroup.size));
    auto const target = copy.as<float>().subspan(static_cast<std::size_t>(subgroup.begin),
                                                 static_cast<std::size_t>(subgroup.size));
    lane.update(subgroup, std::as_writable_bytes(std::span{state}),
                std::span<float const>{gradient},
                parameters::Target{.view = target, .on_device = true}, first_step);
  }
  auto const own = row("update chunks");
  auto const lent = row("lent chunks");
  EXPECT_THAT(own, Each(Le(2 * slot)));
  EXPECT_THAT(lent, Each(Le(slot)));
  EXPECT_GE(std::ranges::max(own), slot);
  EXPECT_EQ(std::ranges::max(lent), slot);
  EXPECT_EQ(own.back(), 0);
  EXPECT_EQ(lent.back(), 0);
}

TEST_F(TracedMemory, HasHeldGradientsFromTheirFirstPartToTheirLastReader) {
  auto const device = device::make_host_device(64 * MiB, {1e12, 1e12, 0.0, 0.0});
  auto const stream = device->make_calling_stream("model");
  Shard const shard{2};
  Bytes const first = shard.subgroups[0].size * 4;
  Bytes const all = shard.size * 4;
  HeldGradients held{*device, all, 4, shard.subgroups, &*memory_};
  std::vector<std::int64_t> const both{0, 1};
  auto const gradient = device->allocate(all, "a gradient");
  held.hold(both);
  EXPECT_THAT((held.add<float, float>(*stream, 0, gradient.as<float const>(),
                                      {.begins = true, .final = true})),
              IsEmpty());
  { auto const tried = held.read(0); }
  { auto const reading = held.read(1); }
  { auto const again = held.read(0); }
  held.hold(both);  // the next step, of which nothing comes
  EXPECT_THAT(row("held gradients"), ElementsAre(first, all, first, 0));
}

}  // namespace
}  // namespace offstage::update
