#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "train/cadence.hpp"
#include "train/journal.hpp"

namespace offstage::train {

/// The checkpoints that a run saves, between its steps or under the next one, told to cadence and journal.
///
/// Collective: every member. Errors: mpi::AgreedError, those of checkpoint::Store.
class Saves {
 public:
  /// All but `store` outlive it.
  Saves(std::unique_ptr<checkpoint::Store> store, mpi::Communicator const& comm, Cadence& cadence,
        Journal& journal)
      : store_{std::move(store)}, comm_{comm}, cadence_{cadence}, journal_{journal} {}

  [[nodiscard]] checkpoint::Store& store() noexcept { return *store_; }
  /// That step is in a checkpoint, or soon will be.
  void has(std::int64_t step) noexcept { step_ = step; }
  [[nodiscard]] bool is_saved(std::int64_t step) const noexcept { return step == step_; }

  /// What is saved, of this rank.
  struct State {
    state::ShardMap const& map;
    std::vector<state::Subgroup> const& subgroups;
    tiers::Tiers& tiers;
  };
  /// Returns when the checkpoint is complete.
  void save(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Goes on under what is not forbidden by checkpoint::Staging, until finish(). `waited`: for the state to be
  /// as it is.
  void begin(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Before an update. The checkpoint that has begun is complete; false if none has, or if it goes on beside updates.
  bool finish_if_written();
  /// The checkpoint that has begun is complete; false if none has.
  bool finish();
  [[nodiscard]] bool goes_on() const noexcept { return store_->is_saving(); }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  /// After an error of something else, where all ranks are. Never throws.
  void finish_after_error() noexcept;

 private:
  void note(checkpoint::SaveStats const& stats);

  std::unique_ptr<checkpoint::Store> store_;
  mpi::Communicator const& comm_;
  Cadence& cadence_;
  Journal& journal_;
  std::int64_t step_ = -1;
  Seconds waited_{};
};

}  // namespace offstage::train
