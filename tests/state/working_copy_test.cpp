#include "state/working_copy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <semaphore>
#include <thread>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/wrapped_device.hpp"
#include "state/link_support.hpp"

namespace offstage::state {
namespace {

constexpr device::Emulation no_link{};
constexpr device::Emulation link{.host_to_device = 4e9, .device_to_host = 2e9};
constexpr int layers = 3;

std::vector<LayerLayout> layers_with(std::vector<std::int64_t> sizes) {
  std::vector<LayerLayout> made;
  for (std::int64_t elements : sizes) {
    made.emplace_back().elements = elements;
  }
  return made;
}

/// What element i of a layer holds in these tests: unlike all of its neighbours.
template <class T>
T value_of(int layer, std::int64_t i) {
  return store<T>(static_cast<float>(layer * 100 + i % 97));
}

/// An emulated device that adds up what all its streams copy.
class CountingDevice final : public device::WrappedDevice {
 public:
  explicit CountingDevice(device::Emulation const& emulation)
      : CountingDevice{device::make_host_device(0, emulation)} {}
  [[nodiscard]] bool host_visible() const noexcept override { return visible_; }

  std::map<device::Copy, std::atomic<Bytes>> copied;

 protected:
  [[nodiscard]] std::unique_ptr<device::Stream> wrap(
      std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<CountingStream>(std::move(stream), copied);
  }

 private:
  class CountingStream final : public device::WrappedStream {
   public:
    CountingStream(std::unique_ptr<device::Stream> stream,
                   std::map<device::Copy, std::atomic<Bytes>>& counts)
        : WrappedStream{std::move(stream)}, counts_{counts} {}
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      counts_.at(direction) += size;
      inner().copy(target, source, size, direction);
    }

   private:
    std::map<device::Copy, std::atomic<Bytes>>& counts_;
  };

  explicit CountingDevice(std::unique_ptr<device::Device> inner)
      : WrappedDevice{std::move(inner)}, visible_{WrappedDevice::inner().host_visible()} {
    for (auto const direction : {device::Copy::host_to_device, device::Copy::device_to_host,
                                 device::Copy::device_to_device}) {
      copied[direction] = 0;
    }
  }
  bool visible_;
};

/// Three layers of sizes that no number of ranks divides, the first and the last large ones.
template <class T>
struct Fixture {
  explicit Fixture(device::Emulation const& emulation, LinkKind kind = LinkKind::usual)
      : device{std::make_unique<CountingDevice>(emulation)},
        link{make_link(kind, comm, device->host_visible())} {
    fill(copy);
    for (auto& [direction, bytes] : device->copied) {
      bytes = 0;
    }
  }
  void fill(WorkingCopy<T>& target) {
    for (int layer = 0; layer < layers; ++layer) {
      ChunkRange const mine = map.chunks(layer, comm.rank());
      std::vector<T> values;
      for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
        values.push_back(value_of<T>(layer, mine.first * chunk_elements + i));
      }
      target.write(map.shard_offset(layer, comm.rank()), values);
    }
  }
  void expect_layer(int layer) {
    auto const whole = copy.acquire(layer);
    ASSERT_EQ(std::ssize(whole), padded(layer));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(whole[i], value_of<T>(layer, static_cast<std::int64_t>(i)));
    }
    copy.release(layer, nullptr);
  }
  [[nodiscard]] std::int64_t padded(int layer) const {
    return map.layers()[static_cast<std::size_t>(layer)].padded_elements();
  }

  mpi::Communicator comm = mpi::Communicator::world();
  ShardMap map{layers_with({5 * 4096, 10, 7 * 4096 - 3}), comm.size()};
  std::unique_ptr<CountingDevice> device;
  std::unique_ptr<RankLink> link;
  std::unique_ptr<device::Stream> stream = device->make_calling_stream("compute");
  WorkingCopy<T> copy{map, *link, *device, *stream};
};

template <class T>
class GatherTest : public testing::Test {};
using AllElements = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(GatherTest, AllElements);

TYPED_TEST(GatherTest, EveryRankSeesTheWholeLayerOverAnyLink) {
  for (auto const& emulation : {no_link, link, device::Emulation{.device_to_host = 1e9}}) {
    for (LinkKind const kind : every_link) {
      Fixture<TypeParam> fixture{emulation, kind};
      for (int layer : {0, 1, 2, 1, 0}) {
        fixture.expect_layer(layer);
      }
    }
  }
}

TYPED_TEST(GatherTest, TwoLayersCanBeHeldAThirdCannot) {
  for (auto const& emulation : {no_link, link}) {
    Fixture<TypeParam> fixture{emulation};
    auto const a = fixture.copy.acquire(0);
    EXPECT_THROW((void)fixture.copy.acquire(2), PreconditionError) << "two large ones";
    auto const b = fixture.copy.acquire(1);
    EXPECT_EQ(a[1], value_of<TypeParam>(0, 1));
    EXPECT_EQ(b[1], value_of<TypeParam>(1, 1));
    EXPECT_THROW((void)fixture.copy.acquire(1), PreconditionError);
    fixture.copy.release(0, nullptr);
    fixture.copy.release(1, nullptr);
    EXPECT_THROW(fixture.copy.release(1, nullptr), PreconditionError);
  }
}

TEST(WorkingCopy, OfOneRankIsUsedWhereItIs) {
  Fixture<bfloat16> fixture{link};
  auto const whole = fixture.copy.acquire(2);
  Bytes const shard = std::ssize(fixture.copy.shard()) * static_cast<Bytes>(sizeof(bfloat16));
  if (fixture.comm.size() == 1) {
    EXPECT_EQ(whole.data(), fixture.copy.shard().data() + fixture.map.shard_offset(2, 0));
    EXPECT_EQ(fixture.device->used(), shard);
    for (auto const& [direction, bytes] : fixture.device->copied) {
      EXPECT_EQ(bytes, 0);
    }
  } else {
    auto const& map = fixture.map;
    EXPECT_EQ(fixture.device->used(),
              shard + (2 * map.gathered_elements(1) + map.gathered_elements(2)) * 2);
  }
  EXPECT_EQ(fixture.device->used(),
            WorkingCopy<bfloat16>::device_bytes(fixture.map, fixture.comm.rank()));
  fixture.copy.release(2, nullptr);
}

TEST(WorkingCopy, TakesNothingOverTheLinkButThisRanksPartToTheHostAndTheOthersFromIt) {
  Fixture<bfloat16> fixture{link};
  Bytes const own = fixture.map.chunks(2, fixture.comm.rank()).count * chunk_elements * 2;
  fixture.expect_layer(2);
  EXPECT_EQ(fixture.device->copied[device::Copy::device_to_host],
            fixture.comm.size() > 1 ? own : 0);
  EXPECT_EQ(fixture.device->copied[device::Copy::host_to_device], fixture.padded(2) * 2 - own);

  Fixture<bfloat16> visible{no_link};
  visible.expect_layer(2);
  EXPECT_EQ(visible.device->copied[device::Copy::device_to_host], 0);
  EXPECT_EQ(visible.device->copied[device::Copy::host_to_device], 0);

  for (LinkKind const kind : {LinkKind::direct, LinkKind::queued}) {
    Fixture<bfloat16> direct{link, kind};
    direct.expect_layer(2);
    if (direct.comm.size() > 1) {
      EXPECT_EQ(direct.device->copied[device::Copy::device_to_host], 0);
      EXPECT_EQ(direct.device->copied[device::Copy::host_to_device], 0);
      EXPECT_EQ(direct.device->copied[device::Copy::device_to_device], own);
    }
  }
}

/// Counts what goes through another link.
class CountingLink final : public RankLink {
 public:
  explicit CountingLink(RankLink& inner) : RankLink{inner.comm(), inner.route()}, inner_{inner} {}
  void all_gather(device::Stream& stream, std::span<std::byte> buffer) override {
    ++gathers;
    inner_.all_gather(stream, buffer);
  }
  void all_to_all(device::Stream& stream, std::span<std::byte const> send,
                  std::span<Slice const> send_parts, std::span<std::byte> receive,
                  std::span<Slice const> receive_parts) override {
    inner_.all_to_all(stream, send, send_parts, receive, receive_parts);
  }
  int gathers = 0;

 private:
  RankLink& inner_;
};

TYPED_TEST(GatherTest, ALayerWithMemoryOfItsOwnIsGatheredOnceUntilParametersChange) {
  for (auto const& emulation : {no_link, link}) {
    for (LinkKind const kind : every_link) {
      Fixture<TypeParam> fixture{emulation, kind};
      CountingLink counted{*fixture.link};
      WorkingCopy<TypeParam> copy{fixture.map, counted, *fixture.device, *fixture.stream,
                                  WorkingCopy<TypeParam>::all_layers};
      fixture.fill(copy);
      bool const several = fixture.comm.size() > 1;
      constexpr float change = 8.0F;
      auto const use = [&](int layer, float add) {
        auto const whole = copy.acquire(layer);
        ASSERT_EQ(std::ssize(whole), fixture.padded(layer));
        EXPECT_FALSE(copy.gathers(layer));
        for (std::size_t i = 0; i < whole.size(); ++i) {
          auto const before = value_of<TypeParam>(layer, static_cast<std::int64_t>(i));
          ASSERT_EQ(whole[i], store<TypeParam>(load(before) + add));
        }
        copy.release(layer, fixture.stream->record());
      };
      auto const change_all = [&] {
        for (int layer = 0; layer < layers; ++layer) {
          ChunkRange const mine = fixture.map.chunks(layer, fixture.comm.rank());
          std::vector<TypeParam> values;
          for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
            auto const before = value_of<TypeParam>(layer, mine.first * chunk_elements + i);
            values.push_back(store<TypeParam>(load(before) + change));
          }
          copy.write(fixture.map.shard_offset(layer, fixture.comm.rank()), values);
        }
      };
      EXPECT_EQ(copy.gathers(2), several);
      for (int layer : {0, 1, 2, 2, 1, 0, 0, 2}) {
        use(layer, 0.0F);
      }
      EXPECT_EQ(counted.gathers, several ? layers : 0);
      if (several) {
        change_all();
        use(1, 0.0F);  // as it was when it was gathered
        copy.begin();
        for (int layer : {2, 0, 1, 2}) {
          use(layer, change);
        }
        EXPECT_EQ(counted.gathers, 2 * layers);
        auto const a = copy.acquire(0);
        auto const b = copy.acquire(2);
        EXPECT_NE(a.data(), b.data()) << "two large ones may be held";
        EXPECT_THROW((void)copy.acquire(1), PreconditionError);
        EXPECT_THROW(copy.begin(), PreconditionError);
        copy.release(0, nullptr);
        copy.release(2, nullptr);
      }
    }
  }
}

TEST(WorkingCopy, MemoryOfEveryLayersOwnIsAllOfThemAndTheShard) {
  Fixture<bfloat16> fixture{link};
  using Copy = WorkingCopy<bfloat16>;
  Bytes const before = fixture.device->used();
  Copy const copy{fixture.map, *fixture.link, *fixture.device, *fixture.stream, Copy::all_layers};
  Bytes const taken = fixture.device->used() - before;
  EXPECT_EQ(taken, Copy::device_bytes(fixture.map, fixture.comm.rank(), Copy::all_layers));
  Bytes whole = 0;
  for (int layer = 0; layer < layers; ++layer) {
    whole += fixture.map.gathered_elements(layer) * 2;
  }
  Bytes const shard = fixture.map.shard_elements(fixture.comm.rank()) * 2;
  EXPECT_EQ(taken, fixture.comm.size() > 1 ? whole + shard : shard);
}

// The model's work is queued, as a GPU's, and stands still while layers are handed out.
TEST(WorkingCopy, LeavesALayerAsItIsUntilTheModelsStreamIsDoneWithItAndGathersTheNextMeanwhile) {
  for (LinkKind const kind : every_link) {
    Fixture<bfloat16> fixture{link, kind};
    auto const model = fixture.device->make_stream("model");
    auto const other = fixture.device->make_stream("other");
    WorkingCopy<bfloat16> copy{fixture.map, *fixture.link, *fixture.device, *model};
    fixture.fill(copy);
    std::array<std::vector<bfloat16>, layers> seen;
    auto const use = [&](int layer) {
      auto const whole = copy.acquire(layer);
      auto& to = seen[static_cast<std::size_t>(layer)];
      to.resize(whole.size());
      model->copy(to.data(), whole.data(), static_cast<Bytes>(whole.size_bytes()),
                  device::Copy::device_to_host);
      copy.release(layer, model->record());
      return whole.data();
    };
    std::promise<void> gate;
    model->enqueue([open = gate.get_future().share()] { open.wait(); });
    std::binary_semaphore gathered{0};
    bool in_time = false;
    {
      std::jthread const opener{[&] {
        in_time = gathered.try_acquire_for(std::chrono::seconds{30});
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
        gate.set_value();
      }};
      auto const* const first = use(0);
      EXPECT_NE(use(1), first);
      std::vector<std::byte> behind(static_cast<std::size_t>(fixture.comm.size()));
      fixture.link->all_gather(*other, behind);
      other->synchronize();  // so layer 1 has come, for links keep their order
      gathered.release();
      use(2);
    }
    model->synchronize();
    EXPECT_TRUE(in_time) << "a layer waited for the use of the one before";
    for (int layer = 0; layer < layers; ++layer) {
      auto const& values = seen[static_cast<std::size_t>(layer)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], value_of<bfloat16>(layer, static_cast<std::int64_t>(i)))
            << "layer " << layer << ", element " << i;
      }
    }
  }
}

/// A stream that has failed.
class FailedStream final : public device::WrappedStream {
 public:
  using WrappedStream::WrappedStream;
  [[nodiscard]] std::shared_ptr<device::Event> record() override {
    throw IoError{"the device is gone"};
  }
};

TEST(WorkingCopy, TakesNoMemoryOfALayerWhoseUseFailed) {
  for (auto const& emulation : {no_link, link}) {
    for (LinkKind const kind : every_link) {
      Fixture<bfloat16> fixture{emulation, kind};
      FailedStream model{fixture.device->make_stream("model")};
      for (int const layer : {0, 1}) {
        HeldLayer<bfloat16> const held{fixture.copy, layer, model};
      }
      for (int i = 0; i < 3 && fixture.comm.size() > 1; ++i) {
        EXPECT_THROW((void)fixture.copy.acquire(2), IoError);
      }
    }
  }
}

TEST(WorkingCopy, NeedsHostMemoryOnlyToGatherOverALink) {
  auto const bytes = [](int ranks, Route route) {
    ShardMap const map{layers_with({10, 7 * 4096 - 3}), ranks};
    return WorkingCopy<float16>::host_bytes(map, route);
  };
  for (Route const route : {Route::in_place, Route::staged, Route::direct}) {
    EXPECT_EQ(bytes(1, route), 0);
  }
  EXPECT_EQ(bytes(2, Route::in_place), 0);
  EXPECT_EQ(bytes(2, Route::staged), 8 * 4096 * 2) << "with the padding of the last part";
  EXPECT_EQ(bytes(2, Route::direct), 0);
}

TEST(WorkingCopy, RefusesAWriteBeyondTheShard) {
  Fixture<float> fixture{no_link};
  auto const end = std::ssize(fixture.copy.shard());
  std::vector<float> const two(2);
  EXPECT_NO_THROW(fixture.copy.write(end, {}));
  EXPECT_THROW(fixture.copy.write(end + 1, {}), PreconditionError);
  EXPECT_THROW(fixture.copy.write(end - 1, two), PreconditionError);
  EXPECT_THROW(fixture.copy.write(-1, two), PreconditionError);
}

/// A working copy whose update goes on, in subgroups of a chunk.
struct Updated : Fixture<bfloat16> {
  explicit Updated(device::Emulation const& emulation) : Fixture{emulation} {
    copy.set_readiness(&readiness);
    readiness.begin();
  }
  /// This rank's part of the layer is in place.
  void finish(int layer) {
    for (Subgroup const& subgroup : subgroups) {
      if (subgroup.pieces.front().layer == layer) {
        readiness.done(subgroup.index);
      }
    }
  }
  std::vector<Subgroup> subgroups = subgroups_of(map, comm.rank(), chunk_elements);
  Readiness readiness{subgroups};
};

TEST(WorkingCopy, WaitsForTheLayersOwnPartAndForNothingElse) {
  for (auto const& emulation : {no_link, link}) {
    Updated fixture{emulation};
    fixture.finish(1);
    fixture.expect_layer(1);  // of the others nothing is in place
    fixture.finish(2);
    fixture.expect_layer(2);
  }
}

TEST(WorkingCopy, GivesTheParametersThatAnUpdateWritesWhileItWaits) {
  for (auto const& emulation : {no_link, link}) {
    Updated fixture{emulation};
    ChunkRange const mine = fixture.map.chunks(2, fixture.comm.rank());
    std::vector<bfloat16> const fresh(static_cast<std::size_t>(mine.count * chunk_elements),
                                      to_bf16(7.0F));
    std::jthread const update{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      auto const stream = fixture.device->make_stream("update");
      auto* const target =
          fixture.copy.shard().data() + fixture.map.shard_offset(2, fixture.comm.rank());
      stream->copy(target, fresh.data(), std::ssize(fresh) * 2, device::Copy::host_to_device);
      stream->synchronize();
      fixture.finish(2);
    }};
    auto const whole = fixture.copy.acquire(2);
    EXPECT_THAT(std::vector(whole.begin(), whole.end()), testing::Each(to_bf16(7.0F)));
    fixture.copy.release(2, nullptr);
  }
}

TEST(WorkingCopy, PassesOnTheErrorOfAnUpdateAndHoldsNothingThen) {
  Updated fixture{link};
  fixture.readiness.fail(std::make_exception_ptr(IoError{"the disk is gone"}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW((void)fixture.copy.acquire(0), IoError);
  }
  EXPECT_THROW(fixture.copy.release(0, nullptr), PreconditionError);
}

TEST(WorkingCopy, RefusesWhatTheDeviceCannotHold) {
  mpi::Communicator const comm = mpi::Communicator::world();
  ShardMap const map{layers_with({1 << 20}), comm.size()};
  auto const device = device::make_host_device(MiB);
  auto const stream = device->make_calling_stream("compute");

  auto const link_of_ranks = make_mpi_link(comm, Route::in_place);
  EXPECT_THROW((WorkingCopy<float>{map, *link_of_ranks, *device, *stream}), UsageError);
}

}  // namespace
}  // namespace offstage::state
