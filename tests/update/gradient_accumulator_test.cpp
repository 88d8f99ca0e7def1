#include "update/gradient_accumulator.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <semaphore>
#include <string>
#include <thread>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "memory_tiers.hpp"
#include "platform/scratch_directory.hpp"
#include "state/link_support.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update/slice_transfer.hpp"

namespace offstage::update {
namespace {

using Call = MemoryTiers::Call;

constexpr int layers = 5;
constexpr int micro_batches = 5;  // not a multiple of 2 to 4 ranks: the last round has idle ranks

std::vector<state::LayerLayout> layout() {
  std::vector<state::LayerLayout> result;
  for (std::int64_t elements : {5 * 4096, 10, 7 * 4096 - 3, 4096, 3 * 4096}) {
    result.emplace_back().elements = elements;
  }
  return result;
}

template <class T>
std::vector<T> random_layer(int g, int layer) {
  auto const layers_now = layout();
  state::LayerLayout const& shape = layers_now[static_cast<std::size_t>(layer)];
  std::minstd_rand random(static_cast<unsigned>(g * 10 + layer + 1));
  std::uniform_real_distribution<float> values_of{-1.0F, 1.0F};
  std::vector<T> values(static_cast<std::size_t>(shape.padded_elements()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.elements); ++i) {
    values[i] = store<T>(values_of(random));
  }
  return values;
}

/// The gradient of micro-batch g, the same on whatever rank computes it; padding is zero.
template <class T>
std::vector<T> const& gradient_of(int g, int layer) {
  static auto const all = [] {
    std::vector<std::vector<T>> gradients;
    for (int i = 0; i < micro_batches * layers; ++i) {
      gradients.push_back(random_layer<T>(i / layers, i % layers));
    }
    return gradients;
  }();
  return all[static_cast<std::size_t>(g * layers + layer)];
}

/// The sum that must come out, element by element, in order of g.
template <class T, class A>
std::vector<A> const& expected_sum(int layer) {
  static auto const all = [] {
    std::vector<std::vector<A>> sums(layers);
    for (int i = 0; i < micro_batches * layers; ++i) {
      auto const& gradient = gradient_of<T>(i / layers, i % layers);
      auto& sum = sums[static_cast<std::size_t>(i % layers)];
      sum.resize(gradient.size());
      for (std::size_t k = 0; k < gradient.size(); ++k) {
        sum[k] = store<A>(i < layers ? load(gradient[k]) : load(sum[k]) + load(gradient[k]));
      }
    }
    return sums;
  }();
  return all[static_cast<std::size_t>(layer)];
}

/// Of all layers, chunk sums in (layer, chunk) order: lane i mod 16, lanes in order.
template <class T, class A>
double norm_by_hand() {
  double sum = 0.0;
  for (int layer = 0; layer < layers; ++layer) {
    auto const& all = expected_sum<T, A>(layer);
    for (std::size_t chunk = 0; chunk < all.size(); chunk += chunk_elements) {
      std::array<double, 16> lanes{};
      for (std::size_t i = 0; i < chunk_elements; ++i) {
        double const x = static_cast<double>(load(all[chunk + i]));
        lanes[i % 16] += x * x;
      }
      double chunk_sum = 0.0;
      for (double const lane : lanes) {
        chunk_sum += lane;
      }
      sum += chunk_sum;
    }
  }
  return std::sqrt(sum);
}

template <class T, class A>
double expected_norm() {
  static double const norm = norm_by_hand<T, A>();
  return norm;
}

/// Where sums lie and how the shard is cut.
struct Place {
  bool fp32 = true;
  bool flush = false;
  std::int64_t subgroup_chunks = 2;
  std::int64_t in_memory = 0;
  int buffers = 3;
  std::function<void(MemoryTiers::Event)> accumulated_hook{};
  std::function<void(MemoryTiers::Event)> flushed_hook{};
  std::shared_ptr<tiers::PathSet> paths{};  ///< the virtual tier in place of the test's
  device::Emulation emulation{};
  state::LinkKind link{};
  trace::Trace* trace{};
  GradientFlusher::OnFinal on_final{};
  /// Of gradients on the device: for every second subgroup, the last first.
  Bytes held_room = 0;
};

/// Of a device that the host does not see.
constexpr device::Emulation link{.host_to_device = 4e9, .device_to_host = 4e9};

/// An accumulator on tiers that the test can look into.
template <class T>
class Fixture {
 public:
  explicit Fixture(Place const& place, mpi::Communicator comm = mpi::Communicator::world())
      : comm_{std::move(comm)}, place_{place} {
    GradientSettings settings;
    settings.accumulate_fp32 = place.fp32;
    settings.accumulated = make_tiers(place.fp32 ? sizeof(float) : sizeof(T), place.in_memory,
                                      place.accumulated_hook, accumulated_);
    if (place.flush) {
      settings.flushed = make_tiers(sizeof(float), 0, place.flushed_hook, flushed_);
    }
    settings.trace = place.trace;
    settings.on_final = place.on_final;
    accumulator_.emplace(map_, *link_, *device_, *stream_, subgroups_, std::move(settings));
    if (place.held_room > 0) {
      held_ = std::make_unique<HeldGradients>(*device_, place.held_room,
                                              place.fp32 ? sizeof(float) : sizeof(T), subgroups_);
      accumulator_->set_held(held_.get());
    }
  }

  void step() {
    if (held_) {
      held_->hold(every_second());
    }
    accumulator_->begin_step();
    for (int g = 0; g < micro_batches; g += comm_.size()) {
      int const active = std::min(comm_.size(), micro_batches - g);
      round(active, g + active == micro_batches,
            [&](int layer) { return gradient_of<T>(g + comm_.rank(), layer); });
    }
  }
  /// `gradient` of a layer is asked for on the active ranks.
  template <class Gradient>
  void round(int active, bool last, Gradient const& gradient) {
    accumulator_->begin_round(active, last);
    for (int layer = layers - 1; layer >= 0; --layer) {
      std::vector<T> brought = comm_.rank() < active ? gradient(layer) : std::vector<T>{};
      accumulator_->add(layer, brought);
      std::ranges::fill(brought, store<T>(1e9F));  // the memory is the model's again
    }
    accumulator_->end_round();
  }

  /// This rank's shard as the update will see it. A: what it must be made of.
  template <class A>
  std::vector<A> shard() {
    std::vector<A> all;
    accumulator_->begin_update();
    for (state::Subgroup const& subgroup : subgroups_) {
      GradientLease const lease = accumulator_->fetch(subgroup);
      auto const values = std::get<std::span<A const>>(lease.view);
      EXPECT_EQ(std::ssize(values), subgroup.size);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  template <class A, class Stored = A>
  [[nodiscard]] std::vector<A> expected_shard() const {
    std::vector<A> all;
    for (int layer = 0; layer < layers; ++layer) {
      auto const& sum = expected_sum<T, Stored>(layer);
      state::ChunkRange const mine = map_.chunks(layer, comm_.rank());
      for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
        all.push_back(
            store<A>(load(sum[static_cast<std::size_t>(mine.first * chunk_elements + i)])));
      }
    }
    return all;
  }

  GradientAccumulator<T>& operator*() { return *accumulator_; }
  GradientAccumulator<T>* operator->() { return &*accumulator_; }
  [[nodiscard]] MemoryTiers& accumulated() { return *accumulated_; }
  [[nodiscard]] MemoryTiers& flushed() { return *flushed_; }
  [[nodiscard]] std::vector<state::Subgroup> const& subgroups() const { return subgroups_; }
  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] device::Device const& device() const { return *device_; }
  [[nodiscard]] state::ShardMap const& map() const { return map_; }
  [[nodiscard]] state::RankLink const& link() const { return *link_; }
  /// The indices of the subgroups as the layers of a round come to them.
  [[nodiscard]] std::vector<std::int64_t> every_second() const {
    std::vector<std::int64_t> chosen;
    for (std::int64_t index = std::ssize(subgroups_) - 1; index >= 0; index -= 2) {
      chosen.push_back(index);
    }
    return chosen;
  }
  [[nodiscard]] HeldGradients& held() { return *held_; }
  [[nodiscard]] std::vector<tiers::Key> descending() const {
    std::vector<tiers::Key> keys;
    for (std::int64_t key = std::ssize(subgroups_) - 1; key >= 0; --key) {
      keys.push_back(key);
    }
    return keys;
  }

 private:
  /// `double_of`: what the test may look into, if there is such.
  [[nodiscard]] std::unique_ptr<tiers::Tiers> make_tiers(
      std::size_t element_bytes, std::int64_t in_memory,
      std::function<void(MemoryTiers::Event)> const& hook, MemoryTiers*& double_of) const {
    std::vector<Bytes> sizes;
    for (state::Subgroup const& subgroup : subgroups_) {
      sizes.push_back(subgroup.size * static_cast<Bytes>(element_bytes));
    }
    if (place_.paths) {
      tiers::VirtualSettings settings;
      settings.paths = place_.paths;
      settings.spill = "offstage-test";
      settings.buffers = place_.buffers;
      settings.cached = in_memory;
      return tiers::make_virtual_tiers(sizes, settings);
    }
    auto made = std::make_unique<MemoryTiers>(
        sizes, MemoryTiers::Settings{place_.buffers, in_memory, hook});
    double_of = made.get();
    return made;
  }

  mpi::Communicator comm_;
  Place place_;
  state::ShardMap map_{layout(), comm_.size()};
  std::vector<state::Subgroup> subgroups_ =
      state::subgroups_of(map_, comm_.rank(), place_.subgroup_chunks* chunk_elements);
  std::unique_ptr<device::Device> device_ = device::make_host_device(0, place_.emulation);
  std::unique_ptr<device::Stream> stream_ = device_->make_calling_stream("compute");
  std::unique_ptr<state::RankLink> link_ =
      state::make_link(place_.link, comm_, device_->host_visible());
  MemoryTiers* accumulated_{};
  MemoryTiers* flushed_{};
  std::unique_ptr<HeldGradients> held_;
  std::optional<GradientAccumulator<T>> accumulator_;
};

/// All in memory, half of it, nothing; delayed and flushed; a subgroup cuts layers or spans them.
std::vector<Place> places() {
  std::vector<Place> all;
  for (std::int64_t const chunks : {1, 3, 100}) {
    for (std::int64_t const in_memory : {100, 2, 0}) {
      for (bool const flush : {false, true}) {
        all.push_back({.flush = flush, .subgroup_chunks = chunks, .in_memory = in_memory});
      }
    }
  }
  return all;
}

template <class T, class A>
void expect_sums_and_norm(Place place) {
  SCOPED_TRACE(fmt::format("{} chunks a subgroup, {} in memory, flush {}", place.subgroup_chunks,
                           place.in_memory, place.flush));
  place.fp32 = std::is_same_v<A, float>;
  Fixture<T> gradients{place};
  for (int step = 0; step < 2; ++step) {
    gradients.step();
    EXPECT_EQ(gradients->norm(), (expected_norm<T, A>()));
    if (place.flush) {
      ASSERT_EQ((gradients.template shard<float>()),
                (gradients.template expected_shard<float, A>()));
    } else {
      ASSERT_EQ(gradients.template shard<A>(), gradients.template expected_shard<A>());
    }
  }
}

TEST(GradientAccumulator, SumsInOrderOfTheMicroBatchOnAnyNumberOfRanks) {
  for (bool const flush : {false, true}) {
    Place const place{.flush = flush, .in_memory = 2};
    expect_sums_and_norm<float, float>(place);
    expect_sums_and_norm<bfloat16, float>(place);
    expect_sums_and_norm<bfloat16, bfloat16>(place);
    expect_sums_and_norm<float16, float>(place);
    expect_sums_and_norm<float16, float16>(place);
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereverTheSumsLieAndHoweverTheShardIsCut) {
  for (Place const& place : places()) {
    expect_sums_and_norm<bfloat16, float>(place);
    expect_sums_and_norm<bfloat16, bfloat16>(place);
  }
}

TEST(GradientAccumulator, GivesTheSameBitsInTheVirtualTier) {
  ScratchDirectory const scratch;
  tiers::PathSettings path;
  path.directory = scratch.path();
  path.engine.queue_depth = 2;
  path.read_rate = path.write_rate = 1e9;
  for (Place place : places()) {
    if (place.subgroup_chunks < 100) {
      place.paths = tiers::make_paths({.paths = {path}});
      expect_sums_and_norm<bfloat16, bfloat16>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsOverALinkToTheDevice) {
  for (auto const& emulation : {link, device::Emulation{.device_to_host = 100e6}}) {
    for (bool const flush : {false, true}) {
      Place const place{
          .flush = flush, .subgroup_chunks = 3, .in_memory = 2, .emulation = emulation};
      expect_sums_and_norm<float, float>(place);
      expect_sums_and_norm<bfloat16, float>(place);
      expect_sums_and_norm<bfloat16, bfloat16>(place);
      expect_sums_and_norm<float16, float>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereGradientsWaitOnTheDevice) {
  for (std::int64_t const chunks : {1, 3, 100}) {
    for (Bytes const room : {64 * KiB, 10 * MiB}) {
      Place const place{
          .subgroup_chunks = chunks, .in_memory = 2, .emulation = link, .held_room = room};
      expect_sums_and_norm<float, float>(place);
      expect_sums_and_norm<bfloat16, float>(place);
      expect_sums_and_norm<bfloat16, bfloat16>(place);
      expect_sums_and_norm<float16, float16>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereRanksPassSlicesFromDeviceToDevice) {
  for (auto const& emulation : {link, device::Emulation{.device_to_host = 100e6}}) {
    for (auto const kind : {state::LinkKind::direct, state::LinkKind::queued}) {
      for (bool const flush : {false, true}) {
        Place const place{.flush = flush,
                          .subgroup_chunks = 3,
                          .in_memory = 2,
                          .emulation = emulation,
                          .link = kind,
                          .held_room = flush ? 0 : 64 * KiB};
        expect_sums_and_norm<float, float>(place);
        expect_sums_and_norm<bfloat16, float>(place);
        expect_sums_and_norm<bfloat16, bfloat16>(place);
        expect_sums_and_norm<float16, float>(place);
      }
    }
  }
  // Subgroups that lie in several layers, of ranks that own nothing of some.
  for (std::int64_t const chunks : {1, 100}) {
    expect_sums_and_norm<bfloat16, bfloat16>({.subgroup_chunks = chunks,
                                              .in_memory = 2,
                                              .emulation = link,
                                              .link = state::LinkKind::queued,
                                              .held_room = 10 * MiB});
  }
}

// Links keep their order: what is gathered for the next layer must not come behind slices of this one.
TEST(SliceTransfer, LeavesTheLinkToOthersWhileTheGradientIsStillToCome) {
  auto const comm = mpi::Communicator::world();
  if (comm.size() == 1) {
    return;  // passes nothing on
  }
  for (auto const kind : {state::LinkKind::direct, state::LinkKind::queued}) {
    auto const device = device::make_host_device(0, link);
    auto const ranks = state::make_link(kind, comm, false);
    auto const model = device->make_stream("model");
    auto const other = device->make_stream("parameters");
    std::vector<Slice> parts;
    for (int rank = 0; rank < comm.size(); ++rank) {
      parts.push_back({rank, 1});
    }
    auto const all = static_cast<std::size_t>(comm.size());
    SliceTransfer transfer{*device, *model, *ranks, comm.size(), comm.size(), nullptr, nullptr};
    std::vector<std::byte> gradient(all);
    std::binary_semaphore gathered{0};
    bool in_time = false;
    std::promise<void> gate;
    model->enqueue([&, open = gate.get_future().share()] {
      open.wait();
      std::ranges::fill(gradient, static_cast<std::byte>(7 + comm.rank()));
    });
    {
      std::jthread const opener{[&] {
        in_time = gathered.try_acquire_for(std::chrono::seconds{30});
        gate.set_value();
      }};
      transfer.begin(0, gradient, parts, parts);
      std::vector<std::byte> parameters(all);
      ranks->all_gather(*other, parameters, parts);
      other->synchronize();
      gathered.release();
    }
    EXPECT_TRUE(in_time) << "parameters came behind a gradient";
    auto const there = transfer.exchange();
    auto const received = transfer.finish(std::vector<Range>{{0, std::ssize(there)}});
    for (std::size_t rank = 0; rank < all; ++rank) {
      EXPECT_EQ(received[rank], static_cast<std::byte>(7 + rank));
    }
  }
}

TEST(GradientAccumulator, HoldsOnTheDeviceWhatFitsAndGivesItWithoutALease) {
  Fixture<bfloat16> gradients{{.subgroup_chunks = 1,
                               .emulation = link,
                               .held_room = 2 * chunk_elements * Bytes{sizeof(float)}}};
  gradients.step();
  auto const wished = gradients.every_second();
  Bytes held = 0;
  for (state::Subgroup const& subgroup : gradients.subgroups()) {
    bool const first =
        testing::Value(std::span{wished}.first(std::min<std::size_t>(2, wished.size())),
                       testing::Contains(subgroup.index));
    auto const lease = gradients->fetch(subgroup);
    EXPECT_EQ(lease.place, first ? GradientPlace::device : GradientPlace::host) << subgroup.index;
    held += first ? subgroup.size * Bytes{sizeof(float)} : 0;
  }
  EXPECT_EQ(gradients.held().bytes(), held);
}

// By the usual link several ranks add in host memory what comes to them there.
TEST(GradientAccumulator, AHeldGradientNeverComesToTheHostButWhereAllSlicesDo) {
  for (auto const kind : state::every_link) {
    Fixture<bfloat16> gradients{
        {.subgroup_chunks = 1, .emulation = link, .link = kind, .held_room = 10 * MiB},
        kind == state::LinkKind::usual ? mpi::Communicator::self() : mpi::Communicator::world()};
    for (int step = 0; step < 2; ++step) {
      gradients.step();
      EXPECT_EQ(gradients->norm(), (expected_norm<bfloat16, float>()));
      EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
    }
    auto const held = gradients.every_second();
    for (Call const call : {Call::create, Call::commit}) {
      for (tiers::Key const key : gradients.accumulated().keys_of(call)) {
        EXPECT_FALSE(testing::Value(held, testing::Contains(key))) << key;
      }
    }
  }
}

TEST(GradientAccumulator, HoldsNothingThatIsFlushedOrThatTheHostSees) {
  EXPECT_THROW((Fixture<float>{{.flush = true, .emulation = link, .held_room = KiB}}),
               PreconditionError);
  EXPECT_THROW((Fixture<float>{{.held_room = KiB}}), PreconditionError);
}

TEST(GradientAccumulator, NeedsMemoryToSendOnlyWhatTheHostDoesNotSee) {
  using state::Route;
  auto const host = [](int ranks, Route route) {
    return GradientAccumulator<bfloat16>::exchange_bytes({layout(), ranks}, 0, route);
  };
  auto const there = [](int ranks, Route route) {
    return GradientAccumulator<bfloat16>::device_bytes({layout(), ranks}, 0, route);
  };
  Bytes const layer = 7 * 4096 * 2;
  Bytes const received = 2 * 4 * 4096 * 2;
  EXPECT_EQ(host(1, Route::in_place), 0);
  EXPECT_EQ(host(1, Route::staged), layer);
  EXPECT_EQ(host(2, Route::in_place), received);
  EXPECT_EQ(host(2, Route::staged), received + layer);
  EXPECT_EQ(host(2, Route::direct), received);
  EXPECT_EQ(there(2, Route::in_place), 0);
  EXPECT_EQ(there(1, Route::staged), layer);
  EXPECT_EQ(there(2, Route::direct), received + layer);
}

TEST(GradientAccumulator, TakesTheDeviceMemoryThatItSays) {
  EXPECT_EQ(Fixture<bfloat16>{{}}.device().used(), 0);
  for (auto const kind : state::every_link) {
    Fixture<bfloat16> gradients{{.emulation = link, .link = kind}};
    EXPECT_EQ(gradients.device().used(),
              GradientAccumulator<bfloat16>::device_bytes(gradients.map(), gradients.rank(),
                                                          gradients.link().route()));
  }
}

// Alone: other ranks' transfers would be waited for, too.
TEST(GradientAccumulator, ReturnsWhileTheGradientIsOnItsWayToTheHost) {
  constexpr std::int64_t elements = 7 * 4096;  // of layer 2, the largest
  constexpr double rate = 0.5e6;               // 230 ms for that layer
  Fixture<float> gradients{{.emulation = {.device_to_host = rate}}, mpi::Communicator::self()};
  gradients->begin_step();
  gradients->begin_round(1, true);
  gradients->add(4, gradient_of<float>(0, 4));
  gradients->add(3, gradient_of<float>(0, 3));
  Stopwatch const watch;
  gradients->add(2, gradient_of<float>(0, 2));  // waits for layer 3: 33 ms
  EXPECT_LT(watch.elapsed(), Seconds{elements * 4 / rate});
  gradients->add(1, gradient_of<float>(0, 1));
  EXPECT_GE(watch.elapsed(), Seconds{elements * 4 / rate});
  gradients->add(0, gradient_of<float>(0, 0));
  EXPECT_GT(gradients->norm(), 0.0);  // after the last add, as on any device
  gradients->end_round();
}

TEST(GradientAccumulator, ShowsInTheTraceWhatLeavesTheDevice) {
  ScratchDirectory const scratch;
  std::string const path =
      fmt::format("{}/trace-{}.json", scratch.path(), mpi::Communicator::world().rank());
  {
    trace::Trace trace{path, 0, "here"};
    Fixture<float> gradients{{.emulation = link, .trace = &trace}};
    gradients.step();
  }
  std::ifstream file{path};
  std::string const text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_THAT(text, testing::HasSubstr("gradients to host"));
}

// What loss scaling looks for: an overflow of any rank reaches every rank's norm, also where the
// sum itself has not left the range.
TEST(GradientAccumulator, AnInfiniteFloat16GradientMakesTheNormNotFinite) {
  for (bool const fp32 : {true, false}) {
    Fixture<float16> gradients{{.fp32 = fp32}};
    gradients.step();
    EXPECT_TRUE(std::isfinite(gradients->norm()));
    gradients.round(1, true, [](int layer) {
      auto gradient = gradient_of<float16>(0, layer);
      gradient[0] = layer == 1 ? to_fp16(65520.0F) : gradient[0];
      return gradient;
    });
    EXPECT_FALSE(std::isfinite(gradients->norm()));
  }
}

TEST(GradientAccumulator, ANewStepForgetsTheOneBefore) {
  for (bool const flush : {false, true}) {
    Fixture<float> gradients{{.flush = flush, .in_memory = 2}};
    gradients.step();
    EXPECT_GT(gradients->norm(), 0.0);
    gradients->begin_step();
    gradients.round(
        1, true, [](int layer) { return std::vector<float>(gradient_of<float>(0, layer).size()); });
    EXPECT_EQ(gradients->norm(), 0.0);
    EXPECT_THAT(gradients.shard<float>(), testing::Each(0.0F));
    gradients.step();
    EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
  }
}

TEST(GradientAccumulator, FetchesAndWritesEachSubgroupOnceARoundFromTheLastOn) {
  Fixture<bfloat16> gradients{{.subgroup_chunks = 3}};
  auto const order = gradients.descending();
  auto const gradient = [&](int layer) { return gradient_of<bfloat16>(0, layer); };
  gradients->begin_step();
  gradients.round(1, false, gradient);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::create), order);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), order);
  EXPECT_THAT(gradients.accumulated().keys_of(Call::fetch), testing::IsEmpty());
  gradients.accumulated().forget_events();
  gradients.round(1, true, gradient);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::fetch), order);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), order);
  EXPECT_EQ(gradients.accumulated().passes(), 2);
  gradients.shard<float>();
  EXPECT_EQ(gradients.accumulated().passes(), 3);
}

// What the update will read in FP32 needs no 16-bit version.
TEST(GradientAccumulator, FlushWritesFp32InTheLastRoundAndNothingElse) {
  Fixture<bfloat16> gradients{{.fp32 = false, .flush = true, .subgroup_chunks = 3}};
  auto const order = gradients.descending();
  auto const gradient = [&](int layer) { return gradient_of<bfloat16>(0, layer); };
  gradients->begin_step();
  gradients.round(1, false, gradient);
  EXPECT_THAT(gradients.flushed().events(), testing::IsEmpty());
  gradients.accumulated().forget_events();
  gradients.round(1, true, gradient);
  EXPECT_THAT(gradients.accumulated().keys_of(Call::commit), testing::IsEmpty());
  EXPECT_EQ(gradients.flushed().keys_of(Call::create), order);
  EXPECT_EQ(gradients.flushed().keys_of(Call::commit), order);
  gradients.shard<float>();
  EXPECT_EQ(gradients->traffic().at(0).misses, std::ssize(order));
  EXPECT_EQ(gradients->traffic().at(1).misses, std::ssize(order));
}

TEST(GradientAccumulator, WritesInTheBackgroundAndKnowsTheNormBeforeThat) {
  std::promise<void> let_go;
  auto const gate = let_go.get_future().share();
  Place place{.subgroup_chunks = 7, .buffers = 4};  // one rank has three subgroups
  place.accumulated_hook = [gate](MemoryTiers::Event event) {
    if (event.call == Call::commit) {
      gate.wait();
    }
  };
  Fixture<float> gradients{place};
  auto const gradient = [&](int layer) { return gradient_of<float>(0, layer); };
  gradients->begin_step();
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 0; --layer) {
    gradients->add(layer, gradients.rank() == 0 ? gradient(layer) : std::vector<float>{});
  }
  EXPECT_EQ(gradients.accumulated().held(), std::ssize(gradients.subgroups()));
  EXPECT_GT(gradients->norm(), 0.0);
  let_go.set_value();
  gradients->end_round();
  EXPECT_EQ(gradients.accumulated().held(), 0);
}

/// What an accumulator says of a step's gradients.
struct Finals {
  [[nodiscard]] GradientFlusher::OnFinal hear() {
    return [this](tiers::Key key, double sum) {
      std::scoped_lock const lock{mutex};
      keys.push_back(key);
      squares += sum;
    };
  }
  std::mutex mutex;
  std::vector<tiers::Key> keys;
  double squares = 0.0;
};

TEST(GradientAccumulator, SaysInTheLastRoundWhichGradientsAreFinalAndHowLargeTheyAre) {
  for (bool const flush : {false, true}) {
    for (device::Emulation const& emulation : {device::Emulation{}, link}) {
      Finals finals;
      Fixture<float> gradients{{.flush = flush,
                                .subgroup_chunks = 3,
                                .in_memory = 1,
                                .emulation = emulation,
                                .on_final = finals.hear()},
                               mpi::Communicator::self()};
      auto const gradient = [](int layer) { return gradient_of<float>(0, layer); };
      gradients->begin_step();
      gradients.round(1, false, gradient);
      EXPECT_THAT(finals.keys, testing::IsEmpty());
      gradients.round(1, true, gradient);
      EXPECT_EQ(finals.keys, gradients.descending());
      EXPECT_NEAR(std::sqrt(finals.squares), gradients->norm(), 1e-9);
    }
  }
}

TEST(GradientAccumulator, SaysWhatIsFinalOnTheDeviceTooWithoutItsSize) {
  Finals finals;
  Fixture<float> gradients{
      {.subgroup_chunks = 1, .emulation = link, .on_final = finals.hear(), .held_room = 10 * MiB},
      mpi::Communicator::self()};
  gradients.step();
  EXPECT_THAT(finals.keys, testing::UnorderedElementsAreArray(gradients.descending()));
  EXPECT_GT(finals.squares, 0.0);
  EXPECT_LT(finals.squares, gradients->norm() * gradients->norm());
}

TEST(GradientAccumulator, CanBeFetchedFromTheMomentThatTheyAreFinal) {
  // By another thread, from the only buffer, while backward goes on.
  for (bool const flush : {false, true}) {
    std::promise<Fixture<float>*> made;
    auto const there = made.get_future().share();
    std::vector<std::future<float>> fetched;
    Place place{.flush = flush, .subgroup_chunks = 1, .buffers = 1};
    place.on_final = [&](tiers::Key key, double /*squares*/) {
      fetched.push_back(std::async(std::launch::async, [key, there] {
        auto& gradients = *there.get();
        auto const lease = gradients->fetch(gradients.subgroups()[static_cast<std::size_t>(key)]);
        return std::get<std::span<float const>>(lease.view)[0];
      }));
    };
    Fixture<float> gradients{place, mpi::Communicator::self()};
    made.set_value(&gradients);
    gradients.step();
    std::vector<float> firsts;  // before a pass begins, which no lease may outlast
    for (auto& first : fetched) {
      firsts.push_back(first.get());
    }
    ASSERT_EQ(firsts.size(), gradients.subgroups().size());
    auto const expected = gradients.shard<float>();
    for (std::size_t i = 0; i < firsts.size(); ++i) {
      auto const& subgroup = gradients.subgroups()[firsts.size() - 1 - i];
      EXPECT_EQ(firsts[i], expected[static_cast<std::size_t>(subgroup.begin)]);
    }
  }
}

TEST(GradientAccumulator, NeverWaitsForItselfHoweverFewBuffersThereAre) {
  auto const slow = [](MemoryTiers::Event event) {
    std::this_thread::sleep_for(std::chrono::microseconds{(event.key * 37) % 300});
  };
  for (int const buffers : {1, 2, 3}) {
    for (bool const flush : {false, true}) {
      for (std::int64_t const in_memory : {0, 3}) {
        Fixture<float> gradients{{.flush = flush,
                                  .subgroup_chunks = 1,
                                  .in_memory = in_memory,
                                  .buffers = buffers,
                                  .accumulated_hook = slow,
                                  .flushed_hook = slow}};
        gradients.step();
        EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
      }
    }
  }
}

/// Throws at the n-th call of a kind.
auto failing(Call call, int n) {
  auto const left = std::make_shared<std::atomic<int>>(n);
  return [=](MemoryTiers::Event event) {
    if (event.call == call && --*left == 0) {
      throw IoError{"the disk is gone"};
    }
  };
}

// Alone: where one rank of several throws, the program aborts the others (see cli).
void expect_error_to_stay(device::Emulation const& emulation) {
  for (bool const flush : {false, true}) {
    for (int const n : {1, 4, 17}) {  // the last call of a kind, too
      for (auto const call : {Call::create, Call::commit}) {
        Place place{.flush = flush, .subgroup_chunks = 1, .buffers = 1, .emulation = emulation};
        (flush ? place.flushed_hook : place.accumulated_hook) = failing(call, n);
        Fixture<float> gradients{place, mpi::Communicator::self()};
        ASSERT_EQ(gradients.subgroups().size(), 17U);
        auto const gradient = [](int layer) { return gradient_of<float>(0, layer); };
        EXPECT_THROW(gradients.round(1, true, gradient), IoError);
        if (flush || call == Call::commit) {
          EXPECT_THROW(gradients->end_round(), Error);
        }
      }
    }
  }
}

TEST(GradientAccumulator, AnErrorOfABackgroundWriteReachesTheCallerAndStays) {
  expect_error_to_stay({});
  expect_error_to_stay(link);
}

TEST(GradientAccumulator, EndsItsLeasesAndTransfersWhenARoundIsGivenUp) {
  Place place{.subgroup_chunks = 3, .buffers = 3, .emulation = {.device_to_host = 10e6}};
  place.accumulated_hook = [](MemoryTiers::Event event) {
    if (event.call == Call::commit) {
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  };
  Fixture<float> gradients{place, mpi::Communicator::self()};
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 2; --layer) {
    gradients->add(layer, gradient_of<float>(0, layer));
  }
  // Destruction waits for the write and the transfer that run, and for no other.
}

TEST(GradientAccumulator, LetsGoOfTheBufferThatAFetchWaitsForWhenARoundIsGivenUp) {
  Fixture<float> gradients{{.subgroup_chunks = 3, .buffers = 1}, mpi::Communicator::self()};
  gradients->begin_step();
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 3;
       --layer) {  // the last subgroup, and part of the one before
    gradients->add(layer, gradient_of<float>(0, layer));
  }
  auto waiting = std::async(std::launch::async, [&] {
    static_cast<void>(gradients->fetch(gradients.subgroups().back()));
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds{10}), std::future_status::timeout);
  gradients->abandon();
  waiting.get();
}

TEST(GradientAccumulator, RefusesAGradientFromAnIdleRankAndNoneFromAnActiveOne) {
  Fixture<float> gradients{{}};
  gradients->begin_round(1, true);
  auto const wrong =
      gradients.rank() == 0 ? std::vector<float>{} : gradient_of<float>(0, layers - 1);
  EXPECT_THROW(gradients->add(layers - 1, wrong), PreconditionError);
}

TEST(GradientAccumulator, RefusesLayersOutOfOrderAndRoundsThatAreNotComplete) {
  Fixture<float> gradients{{}, mpi::Communicator::self()};
  auto const gradient = gradient_of<float>(0, 1);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);  // no round has begun
  EXPECT_THROW(gradients->begin_round(0, false), PreconditionError);
  EXPECT_THROW(gradients->begin_round(2, false), PreconditionError);
  gradients->begin_round(1, true);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);
  EXPECT_THROW(static_cast<void>(gradients->norm()), PreconditionError);
  EXPECT_THROW(gradients->end_round(), PreconditionError);
  EXPECT_THROW(gradients->begin_round(1, true), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
