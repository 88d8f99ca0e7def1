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

/// The checkpoints that a run saves, between its steps or under the next one, told to cadence and
/// listener.
///
/// Levels: is checkpoint.dir; 1, if there is one, node storage; 3, if there is one, copies of 1 on
///         other nodes, made behind the run. Saves of 1 and 2 may go on at a time, one of 1 waits
///         for the copies of the one before. An I/O error of level 1 or 3 does not end the run: it
///         goes on without that level, and says so (log).
/// Collective: every member. Errors: mpi::AgreedError, those of checkpoint::Store.
class Saves {
 public:
  /// All but the stores outlive it. `local`: level 1; null: none.
  Saves(std::unique_ptr<checkpoint::Store> store, std::unique_ptr<checkpoint::Store> local,
        mpi::Communicator const& comm, Cadence& cadence, SaveListener& listener)
      : global_{std::move(store)},
        local_{std::move(local)},
        local_goes_on_{local_.store != nullptr},
        comm_{comm},
        cadence_{cadence},
        listener_{listener} {}

  [[nodiscard]] checkpoint::Store& store() noexcept { return *global_.store; }
  /// See checkpoint::Store.
  void set_split(checkpoint::SplitParameters const& split);
  /// The row "checkpoint" has a span for each save, from its begin as long as it works. Null: none.
  void set_trace(trace::Trace* trace) noexcept { trace_ = trace; }
  [[nodiscard]] bool is_saved(std::int64_t step) const noexcept { return step == global_.step; }

  /// State of this rank that is saved or filled.
  struct State {
    state::ShardMap const& map;
    std::vector<state::Subgroup> const& subgroups;
    tiers::Tiers& tiers;
  };
  /// Whether checkpoint.resume names a checkpoint of level 1.
  [[nodiscard]] bool is_in_local(std::string const& resume) const {
    return local_.store != nullptr && resume != "auto" && resume != "none" &&
           local_.store->has(resume);
  }
  /// Loads the newest checkpoint of both levels, or that in `resume` if it is neither "auto" nor
  /// "none". Where that was not chosen by its age, later ones are passed over.
  [[nodiscard]] std::optional<checkpoint::Meta> restore(std::string const& resume,
                                                        checkpoint::RunState const& run,
                                                        State const& state,
                                                        checkpoint::OnSubgroup const& on_subgroup);

  /// Whether a save of level 1 may be done after this step. Not while level 2 holds what was passed
  /// over, which a restart would take instead, nor where it was not chosen by age what the run
  /// began at: level 2's save comes first then.
  [[nodiscard]] bool may_save_local(std::int64_t step) const noexcept {
    return local_goes_on_ && !global_first_ && step != local_.step;
  }
  /// Whether a save of level 1 that is due, or that waited, is done now: it waits where copies of
  /// the one before are being made and a step follows. Collective.
  [[nodiscard]] bool takes_local(std::int64_t step, bool is_due, bool a_step_follows);
  /// Moves pieces of copies that are being made. Not collective; does not wait.
  void look_in() {
    if (local_goes_on_) {
      local_.store->look_in();
    }
  }
  /// Level 1 has just become complete, and steps follow: it begins to be copied, if that is asked
  /// for.
  void begin_copies();
  /// Nothing is being copied any more.
  void end_copies();
  /// Whether level 2 has to be saved when level 1 is due. A save of it that goes on is enough.
  [[nodiscard]] bool saves_global_instead(std::int64_t step) const noexcept {
    return local_goes_on_ && global_first_ && !is_saved(step) && !goes_on();
  }
  /// Level 2. Returns when the checkpoint is complete.
  void save(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Goes on under what is not forbidden by checkpoint::Staging, until finish(). `waited`: for the
  /// state to be as it is.
  void begin(checkpoint::Meta const& meta, State const& state, Seconds waited);
  /// Level 1. `goes_on`: under the next step, until its update; else the checkpoint is complete
  /// when this returns.
  void save_local(checkpoint::Meta const& meta, State const& state, Seconds waited, bool goes_on);

  /// Before an update. Level 1 is complete, and level 2 if it is written; false if nothing became
  /// so, nor was copied.
  bool finish_if_written();
  /// The same of level 2 alone.
  bool finish_global_if_written();
  /// The checkpoint of level 2 that has begun is complete; false if none has.
  bool finish();
  [[nodiscard]] bool goes_on() const noexcept { return global_.store->is_saving(); }
  [[nodiscard]] std::int64_t step() const noexcept { return global_.step; }
  /// After an error of something else, where all ranks are. Never throws.
  void finish_after_error() noexcept;
  /// Level 2 has all that level 1 has: nothing of that is left.
  void remove_local();

 private:
  struct Level {
    explicit Level(std::unique_ptr<checkpoint::Store> of) : store{std::move(of)} {}
    std::unique_ptr<checkpoint::Store> store;
    std::int64_t step = -1;  ///< that it has, or soon will
    Seconds waited{};
    trace::Clock::time_point begun{};
    /// A save of this step begins now.
    void begin(std::int64_t of_step, Seconds for_state) {
      step = of_step;
      waited = for_state;
      begun = trace::Clock::now();
    }
  };
  bool finish_local();
  /// Copies that have become complete count.
  void finish_copies();
  /// Calls work(); after an I/O error there is no level 3 any more.
  template <class Work>
  void try_copies(Work&& work);
  /// Calls work(); after an I/O error there is no level 1 any more.
  template <class Work>
  void try_local(Work&& work);
  /// Before level 2 has a step. Where it cannot be done nobody looks at level 1 any more.
  void remove_passed_over_local();
  void note(Level const& level, checkpoint::SaveStats const& stats);

  Level global_;
  Level local_;
  bool local_goes_on_;  ///< it is saved
  mpi::Communicator const& comm_;
  Cadence& cadence_;
  SaveListener& listener_;
  bool global_first_ = false;
  bool local_waits_ = false;  ///< one that was due
  trace::Trace* trace_ = nullptr;
};

}  // namespace offstage::train
