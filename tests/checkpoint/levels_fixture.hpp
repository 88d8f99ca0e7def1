// Each rank is a node of its own, with directories of its own beside level 2, which all see.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/store_fixture.hpp"

namespace offstage::checkpoint {

class StoreLevels : public CheckpointStore {
 protected:
  [[nodiscard]] std::string of_node(int rank) const {
    return directory + "-node-" + std::to_string(rank) + "/level-1-0123456789abcdef";
  }
  [[nodiscard]] std::string mine() const { return of_node(world.rank()); }
  /// Of a node, with what it has of the one before.
  [[nodiscard]] std::string copies_of_node(int rank) const {
    return directory + "-node-" + std::to_string(rank) + "/level-3-0123456789abcdef";
  }
  [[nodiscard]] std::string my_copies() const { return copies_of_node(world.rank()); }
  [[nodiscard]] std::unique_ptr<Store> make_local(bool makes_copies = false) const {
    return std::make_unique<Store>(
        mine(), world,
        Store::Node{.ranks = self, .copies = my_copies(), .makes_copies = makes_copies});
  }
  SaveStats save_local(Store& local, std::int64_t step, std::uint64_t seed) {
    Shard shard = make_shard();
    shard.fill(seed);
    auto const stats = local.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
    local.finish_removal();
    return stats;
  }
  void save_local(std::int64_t step, std::uint64_t seed) {
    save_local(*make_local(), step, seed);
    world.barrier();
  }
  /// Restores the newest of both: step, level, and whether all bits on all ranks are those of state
  /// `seed`.
  struct Restored {
    std::int64_t step;
    int level;
    bool good;
    friend bool operator==(Restored const&, Restored const&) = default;
  };
  Restored restore_newest_level(std::uint64_t seed) {
    auto const local = make_local();
    Store global{directory, {}, world};
    Shard shard = make_shard();
    std::array<Store*, 2> const levels{local.get(), &global};
    auto const found = Store::restore_newest(levels, small_model(), shard.map, shard.subgroups,
                                             *shard.tiers, ignore_parameters);
    if (!found) {
      return {-1, 0, false};
    }
    return {found->meta.step, found->level == &global ? 2 : 1,
            world.minimum(std::int64_t{shard.holds(seed)}) == 1};
  }

  mpi::Communicator self = mpi::Communicator::self();
};

}  // namespace offstage::checkpoint
