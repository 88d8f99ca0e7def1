#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "train/saves/cadence.hpp"
#include "train/saves/save_listener.hpp"

namespace offstage::train {

/// The checkpoints that a run saves, between its steps or under the next one. It reports to cadence
/// and listener.
///
/// Levels: 2 is checkpoint.dir; 1, if there is one, node storage; 3, if there is one, copies of 1
///         on other nodes, made behind the run. Saves of 1 and 2 may go on at a time, one of 1
///         waits for the copies of the one before. An I/O error of level 1 or 3 does not end the
///         run: it goes on without that level, and says so (log).
/// Collective: every member. Errors: mpi::AgreedError, those of checkpoint::Store.
class Saves {
 public:
  /// `comm`, `cadence` and `listener` must outlive this object. `local` is level 1; null: there is
  /// none.
  Saves(std::unique_ptr<checkpoint::Store> store, std::unique_ptr<checkpoint::Store> local,
        mpi::Communicator const& comm, Cadence& cadence, SaveListener& listener)
      : global_{std::move(store)},
        local_{std::move(local)},
        uses_local_{local_.store != nullptr},
        comm_{comm},
        cadence_{cadence},
        listener_{listener} {}

  [[nodiscard]] checkpoint::Store& store() noexcept { return *global_.store; }
  /// See checkpoint::Store, for both levels.
  void spare(std::string const& path);
  void set_split(checkpoint::SplitParameters const& split);
  /// Sets the trace. Its row "checkpoint" gets a span for each save, for as long as it works. Null:
  /// no trace.
  void set_trace(trace::Trace* trace) noexcept { trace_ = trace; }
  [[nodiscard]] bool is_saved(std::int64_t step) const noexcept { return step == global_.step; }

  /// The state of this rank that is saved or filled.
  struct State {
    state::ShardMap const& map;
    std::vector<state::Subgroup> const& subgroups;
    tiers::Tiers& tiers;
  };
  /// Returns whether checkpoint.resume names a checkpoint of level 1.
  [[nodiscard]] bool is_in_local(std::string const& resume) const {
    return local_.store != nullptr && resume != "auto" && resume != "none" &&
           local_.store->has(resume);
  }
  /// Loads the newest checkpoint of both levels, or that in `resume` if it is neither "auto" nor
  /// "none". If the checkpoint was not chosen by its age, later ones are passed over.
  [[nodiscard]] std::optional<checkpoint::Meta> restore(std::string const& resume,
                                                        checkpoint::RunState const& run,
                                                        State const& state,
                                                        checkpoint::OnSubgroup const& on_subgroup);

  /// Returns whether level 1 may be saved after this step. It may not while level 2 has checkpoints
  /// that were passed over, which a restart would take instead, nor if the run began at a
  /// checkpoint that was not chosen by its age. In these cases level 2 is saved first.
  [[nodiscard]] bool may_save_local(std::int64_t step) const noexcept {
    return uses_local_ && !global_first_ && step != local_.step;
  }
  /// Returns whether a save of level 1 that is due, or that waited, is made now. It waits if the
  /// one before is being copied and a step follows. Collective.
  [[nodiscard]] bool takes_local(std::int64_t step, bool is_due, bool a_step_follows);
  /// Moves pieces of copies that are being made. Not collective; does not wait.
  void look_in() {
    if (uses_local_) {
      local_.store->look_in();
    }
  }
  /// Begins to copy level 1, which has just become complete, if copies are configured. Steps
  /// follow.
  void begin_copies();
  /// Ends copies that are being made.
  void end_copies();
  /// Returns whether level 2 has to be saved when level 1 is due. A save of it that goes on is
  /// enough.
  [[nodiscard]] bool saves_global_instead(std::int64_t step) const noexcept {
    return uses_local_ && global_first_ && !is_saved(step) && !is_saving();
  }
  /// Saves level 2. Returns when the checkpoint is complete.
  void save(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Begins a save of level 2. It goes on until finish(), beside everything that
  /// checkpoint::Staging allows. `waited` is the time of waiting for the state.
  void begin(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Saves level 1, `under_next_step` until its update; else the checkpoint is complete when this
  /// returns.
  void save_local(checkpoint::Meta const& meta, State const& state, Seconds waited,
                  bool under_next_step);

  /// Call it before an update. Completes level 1, and level 2 if it is written. Returns false if no
  /// checkpoint became complete and none was copied.
  bool finish_if_written();
  /// The same for level 2 alone.
  bool finish_global_if_written();
  /// Completes the save of level 2 that has begun. Returns false if none has.
  bool finish();
  /// Returns whether a save of level 2 is under way.
  [[nodiscard]] bool is_saving() const noexcept { return global_.store->is_saving(); }
  [[nodiscard]] std::int64_t step() const noexcept { return global_.step; }
  /// Call it after an error of another part of the run, on all ranks. Never throws.
  void finish_after_error() noexcept;
  /// Removes level 1, because level 2 has the same checkpoints. Does nothing if level 2 has saved
  /// nothing of a run that was told where to begin: level 1 may have later steps of another one.
  void remove_local();

 private:
  struct Level {
    explicit Level(std::unique_ptr<checkpoint::Store> of) : store{std::move(of)} {}
    std::unique_ptr<checkpoint::Store> store;
    std::int64_t step = -1;  ///< step that the level has, or will have soon
    Seconds waited{};
    trace::Clock::time_point begun{};
    /// Begins a save of this step.
    void begin(std::int64_t of_step, Seconds for_state) {
      step = of_step;
      waited = for_state;
      begun = trace::Clock::now();
    }
  };
  bool finish_local();
  /// Makes copies count that have become complete.
  void finish_copies();
  /// Calls work(). After an I/O error there is no level 3 any more.
  template <class Work>
  void try_copies(Work&& work);
  /// Calls work(). After an I/O error there is no level 1 any more.
  template <class Work>
  void try_local(Work&& work);
  /// Removes checkpoints of level 1 that were passed over, before level 2 has a new step. If that
  /// fails, level 1 is not used any more.
  void remove_passed_over_local();
  void note(Level const& level, checkpoint::SaveStats const& stats);

  Level global_;
  Level local_;
  bool uses_local_;  ///< there is a level 1, and it has not failed
  mpi::Communicator const& comm_;
  Cadence& cadence_;
  SaveListener& listener_;
  bool global_first_ = false;
  bool local_waits_ = false;  ///< a save of level 1 was due and waits
  trace::Trace* trace_ = nullptr;
};

}  // namespace offstage::train
