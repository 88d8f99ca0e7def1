#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "memory_tiers.hpp"
#include "micro_batch_gradients.hpp"
#include "state/link_support.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/gradients/block_gradients.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::update {

/// Room on the device for the gradients of all subgroups, in each level of sums, and more.
inline constexpr Bytes room_for_all = 2 * MiB;

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
  FinalGradients* receiver{};
  /// Of gradients on the device: for every second subgroup, the last first.
  Bytes held_room = 0;
  bool sums_there = false;  ///< and then for the sums of the others
  bool in_layers = false;   ///< all rounds of a layer come before the next layer
  int sum_block = 0;        ///< SumBlocks::size
  bool whole = false;       ///< ranks sum whole gradients of these blocks (BlockGradients)
  bool of_a_block = false;  ///< all layers but the first and the last are one block's
  /// Where given, makes the accumulator's device of the emulated one.
  std::function<std::unique_ptr<device::Device>(std::unique_ptr<device::Device>)> wrap{};
};

/// Of a device that the host does not see.
inline constexpr device::Emulation link{.host_to_device = 4e9, .device_to_host = 4e9};

/// An accumulator on tiers that the test can look into.
template <class T>
class GradientFixture {
 public:
  explicit GradientFixture(Place const& place, mpi::Communicator comm = mpi::Communicator::world())
      : comm_{std::move(comm)}, place_{place} {
    GradientSettings settings;
    settings.accumulate_fp32 = place.fp32;
    settings.blocks = {place.whole ? 0 : place.sum_block};
    int const planes_there = settings.blocks.planes();
    settings.layer_sums = place.in_layers;
    auto const planes = static_cast<std::size_t>(settings.extent_planes());
    settings.accumulated = make_tiers(planes * (place.fp32 ? sizeof(float) : sizeof(T)),
                                      place.in_memory, place.accumulated_hook, accumulated_);
    if (place.flush) {
      settings.flushed = make_tiers(sizeof(float), 0, place.flushed_hook, flushed_);
    }
    settings.trace = place.trace;
    settings.host_sum_rate = place.emulation.host_sum;
    if (place.whole) {
      accumulator_ = make_block_gradients<T>(map_, *link_, *device_, *stream_, subgroups_,
                                             std::move(settings), place.sum_block);
    } else {
      accumulator_ = std::make_unique<GradientAccumulator<T>>(map_, *link_, *device_, *stream_,
                                                              subgroups_, std::move(settings));
    }
    accumulator_->set_receiver(place.receiver);
    if (place.held_room > 0) {
      bool const made_there = comm_.size() == 1 || link_->route() == state::Route::direct;
      held_ = std::make_unique<HeldGradients>(
          *device_, place.held_room, place.fp32 ? sizeof(float) : sizeof(T), subgroups_, nullptr,
          made_there ? planes_there : 1, in_turn(made_there));
      accumulator_->set_held(held_.get());
    }
  }

  void step() {
    if (held_) {
      held_->hold(every_second(), place_.sums_there ? others() : std::vector<std::int64_t>{});
    }
    accumulator_->begin_step();
    if (place_.in_layers) {
      rounds_in_layers();
      return;
    }
    for (std::int64_t number = 0; number < dealt_.count(); ++number) {
      round(dealt_.round(number).active, number + 1 == dealt_.count(), [&](int layer) {
        return gradient_of<T>(static_cast<int>(*dealt_.micro_batch(number, comm_.rank())), layer);
      });
    }
  }
  void rounds_in_layers() {
    accumulator_->begin_rounds_in_layers(micro_batches);
    using Together = std::vector<int>;
    auto const order = place_.of_a_block ? std::vector<Together>{{4}, {3, 2, 1}, {0}}
                                         : std::vector<Together>{{4}, {3}, {2}, {1}, {0}};
    for (Together const& together : order) {
      for (std::int64_t number = 0; number < dealt_.count(); ++number) {
        auto const mine = dealt_.micro_batch(number, comm_.rank());
        for (int const layer : together) {
          bring(layer, mine ? gradient_of<T>(static_cast<int>(*mine), layer) : std::vector<T>{},
                layer == 0 && number + 1 == dealt_.count());
        }
      }
    }
    accumulator_->end_round();
  }
  /// `gradient` of a layer is asked for on the active ranks.
  template <class Gradient>
  void round(int active, bool last, Gradient const& gradient) {
    accumulator_->begin_round(active, last);
    for (int layer = layers - 1; layer >= 0; --layer) {
      bring(layer, comm_.rank() < active ? gradient(layer) : std::vector<T>{}, layer == 0);
    }
    accumulator_->end_round();
  }
  void bring(int layer, std::vector<T> gradient) { bring(layer, std::move(gradient), layer == 0); }
  /// Adds a gradient as the model does, in two buffers in turn. `last`: of the round, or of all of
  /// them.
  void bring(int layer, std::vector<T> gradient, bool last) {
    turn_ = 1 - turn_;
    auto& before = brought_[1 - turn_];
    auto& now = brought_[turn_];
    now = std::move(gradient);
    if (auto const left = accumulator_->add(layer, now)) {
      left->wait();
    }
    std::ranges::fill(before, store<T>(1e9F));  // that memory is the model's again
    if (last) {
      std::ranges::fill(now, store<T>(1e9F));
    }
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
      auto const& sum = expected_sum<T, Stored>(layer, place_.sum_block);
      state::ChunkRange const mine = map_.chunks(layer, comm_.rank());
      for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
        all.push_back(
            store<A>(load(sum[static_cast<std::size_t>(mine.first * chunk_elements + i)])));
      }
    }
    return all;
  }

  StepGradients<T>& operator*() { return *accumulator_; }
  StepGradients<T>* operator->() { return accumulator_.get(); }
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
  [[nodiscard]] std::vector<std::int64_t> others() const {
    std::vector<std::int64_t> chosen;
    for (std::int64_t index = std::ssize(subgroups_) - 2; index >= 0; index -= 2) {
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
  /// Half of the room is reserved.
  [[nodiscard]] SumsInTurn in_turn(bool made_there) const {
    if (!made_there || !place_.in_layers) {
      return {};
    }
    auto const element = place_.fp32 ? sizeof(float) : sizeof(T);
    return {
        HeldGradients::blocks_of(map_, comm_.rank()),
        place_.held_room / static_cast<Bytes>(2 * element) / SumBlocks{place_.sum_block}.planes()};
  }
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

  [[nodiscard]] std::vector<state::LayerLayout> layout_here() const {
    auto all = layout();
    for (std::size_t layer = 1; place_.of_a_block && layer + 1 < all.size(); ++layer) {
      all[layer].block = 0;
    }
    return all;
  }

  mpi::Communicator comm_;
  Place place_;
  BlockRounds dealt_{micro_batches, comm_.size(), place_.whole ? place_.sum_block : 1};
  state::ShardMap map_{layout_here(), comm_.size()};
  std::vector<state::Subgroup> subgroups_ =
      state::subgroups_of(map_, comm_.rank(), place_.subgroup_chunks* chunk_elements);
  std::unique_ptr<device::Device> device_ =
      place_.wrap ? place_.wrap(device::make_host_device(0, place_.emulation))
                  : device::make_host_device(0, place_.emulation);
  std::unique_ptr<device::Stream> stream_ = device_->make_calling_stream("compute");
  std::unique_ptr<state::RankLink> link_ =
      state::make_link(place_.link, comm_, device_->host_visible());
  MemoryTiers* accumulated_{};
  MemoryTiers* flushed_{};
  std::size_t turn_ = 0;
  std::array<std::vector<T>, 2> brought_;  ///< what the accumulator may read until it ends
  std::unique_ptr<HeldGradients> held_;
  std::unique_ptr<StepGradients<T>> accumulator_;
};

}  // namespace offstage::update
