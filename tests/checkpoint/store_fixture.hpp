// Stores under MPI, on 1, 2 and 3 ranks; `self` plays a run on one rank beside the one on all
// ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/sample.hpp"
#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {

/// The last of so many ranks that owns something of the small model: those behind it may own
/// nothing.
inline int last_owner(int ranks) {
  state::ShardMap const map{state::layers_of(small_model()), ranks};
  int rank = ranks - 1;
  while (rank > 0 && map.shard_elements(rank) == 0) {
    --rank;
  }
  return rank;
}

namespace fs = std::filesystem;

/// Tiers that fail when the state is fetched.
class FailingTiers final : public tiers::Tiers {
 public:
  tiers::Lease fetch(tiers::Key) override { throw IoError{"the disk is gone"}; }
  tiers::Lease create(tiers::Key) override { throw IoError{"the disk is gone"}; }
  [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
  [[nodiscard]] Bytes host_bytes() const override { return 0; }

 protected:
  void commit(tiers::Key) override {}
  void discard(tiers::Key, bool) noexcept override {}
};

/// A directory that all ranks know, and a run on all ranks.
class CheckpointStore : public ::testing::Test {
 protected:
  void TearDown() override { world.barrier(); }

  /// Saves state `seed` as this step, as a run of its own.
  SaveStats save(std::int64_t step, std::uint64_t seed) {
    Shard shard = make_shard();
    shard.fill(seed);
    auto const stats = store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
    store.finish_removal();
    return stats;
  }

  /// Restores the newest; the step and whether all bits on all ranks are those of state `seed`.
  std::pair<std::int64_t, bool> restore_newest(std::uint64_t seed) {
    Shard shard = make_shard();
    Store fresh{directory, {}, world};
    auto const found = load_newest(fresh, shard);
    if (!found) {
      return {-1, false};
    }
    return {found->step, world.minimum(shard.holds(seed) ? 1 : 0) == 1};
  }

  /// The message that every rank gets when nothing can be restored.
  std::string refusal(state::ModelShape const& model) {
    Shard shard = make_shard(model);
    Store fresh{directory, {}, world};
    return message_of<mpi::AgreedError>([&] { (void)load_newest(fresh, shard, model); });
  }

  [[nodiscard]] Shard make_shard(state::ModelShape const& model = small_model()) const {
    return {model, world.size(), world.rank(), two_chunks};
  }
  [[nodiscard]] Meta meta(std::int64_t step) const {
    Meta made = sample_meta(small_model(), step);
    made.ranks = world.size();
    return made;
  }
  [[nodiscard]] std::string path(std::int64_t step) const {
    return directory + "/" + step_name(step);
  }
  /// Puts a shard on a persistent path beside the checkpoints, but for one extent.
  void put_on_persistent_path(Shard& shard) const {
    std::int64_t largest = chunk_elements;
    for (state::Subgroup const& subgroup : shard.subgroups) {
      largest = std::max(largest, subgroup.size);
    }
    tiers::PathSettings path;
    path.directory = fs::path{directory}.parent_path().string();
    path.persistent = true;
    tiers::VirtualSettings settings;
    settings.paths = tiers::make_paths({.paths = {path}});
    settings.spill = "offstage-test-" + std::to_string(world.rank());
    settings.cached = 1;
    settings.buffers = 1;
    settings.kept = std::make_shared<tiers::KeptFileShape>(
        shape_of_slots(directory, world.rank(), shard.layout, largest));
    shard.tiers = tiers::make_virtual_tiers(shard.sizes(), settings);
  }
  /// Runs on rank 0, between barriers.
  template <class Action>
  void on_one_rank(Action&& action) {
    world.barrier();
    if (world.rank() == 0) {
      action();
    }
    world.barrier();
  }
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    world.barrier();
    std::vector<std::int64_t> found;
    for (StepDirectory const& step : step_directories(directory)) {
      found.push_back(step.step);
    }
    world.barrier();
    return found;
  }
  /// Loads the newest checkpoint of one level alone.
  static std::optional<Meta> load_newest(Store& store, Shard const& shard,
                                         RunState const& run = small_model(),
                                         OnSubgroup const& on_subgroup = ignore_parameters) {
    Store* const level = &store;
    auto found = Store::restore_newest({&level, 1}, run, shard.map, shard.subgroups, *shard.tiers,
                                       on_subgroup);
    return found ? std::optional{std::move(found->meta)} : std::nullopt;
  }
  static void ignore_parameters(state::Subgroup const&, std::span<float const>) {}

  mpi::Communicator world = mpi::Communicator::world();
  std::unique_ptr<ScratchDirectory> scratch =
      world.rank() == 0 ? std::make_unique<ScratchDirectory>() : nullptr;
  std::string directory = world.broadcast(scratch ? *scratch / "checkpoints" : std::string{}, 0);
  Store store{directory, {}, world};
};

}  // namespace offstage::checkpoint
