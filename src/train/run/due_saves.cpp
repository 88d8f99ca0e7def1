#include "train/run/due_saves.hpp"

#include <cstdint>
#include <utility>

#include "base/instantiate.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"

namespace offstage::train {
template <class T>
bool DueSaves<T>::stays(bool is_best) const {
  std::int64_t const every = config_.checkpoint.keep_every;
  return (config_.checkpoint.keep_best && is_best) || (every > 0 && at_.step() % every == 0);
}

template <class T>
bool DueSaves<T>::finish_earlier_save(bool a_step_follows, bool is_best) {
  Saves& saves = parts_.saves();
  if (!a_step_follows || stays(is_best)) {
    saves.finish();
    return true;
  }
  if (saves.finish_global_if_written() || !saves.is_saving()) {
    return true;
  }
  if (!std::exchange(postponed_, true) && comm_.rank() == 0) {
    log::dated("step {:>6}  its save waits: that of step {} is still being written", at_.step(),
               saves.step());
  }
  return false;
}

template <class T>
Seconds DueSaves<T>::settle_state() {
  Stopwatch const rest;
  parts_.runner().finish_update();
  Seconds const waited = rest.elapsed();
  journal_.waited_for_update(waited);
  at_.write_configuration();
  mpi::agree(comm_, [&] {
    journal_.sync();
    if (comm_.rank() == 0) {
      parts_.directories().look_at_checkpoints();
    }
  });
  return waited;
}

template <class T>
void DueSaves<T>::save(Decision const& due, bool a_step_follows, bool is_best) {
  if (a_step_follows && at_.is_bad() && !stays(is_best)) {
    // A run that may have diverged leaves the checkpoints from before.
    if (due.save && !std::exchange(postponed_, true) && comm_.rank() == 0) {
      log::dated("step {:>6}  its save waits for a step that is not skipped", at_.step());
    }
    return;
  }
  Saves& saves = parts_.saves();
  bool const local = saves.takes_local(at_.step(), due.save_local, a_step_follows) &&
                     saves.may_save_local(at_.step());
  bool global =
      due.save || postponed_ || (due.save_local && saves.saves_global_instead(at_.step()));
  if (local && !a_step_follows) {
    // Level 1 is complete sooner.
    saves.save_local(at_.meta(), parts_.state(), settle_state(), false);
  }
  if (global && finish_earlier_save(a_step_follows, is_best)) {
    postponed_ = false;
    global = !saves.is_saved(at_.step());
  } else {
    global = false;
  }
  if (global && config_.checkpoint.keep_best && is_best) {
    // The best checkpoint before stays until this one is saved.
    saves.store().keep_best(at_.step());
  }
  bool const local_too = local && a_step_follows;
  if (!local_too && !global) {
    return;
  }
  trace::Scope const scope{parts_.runner().trace(), "steps", "stands still for a save", at_.step()};
  Seconds const waited = settle_state();
  bool const under_steps = config_.checkpoint.overlap && a_step_follows;
  if (local_too) {
    saves.save_local(at_.meta(), parts_.state(), waited, under_steps);
    if (!under_steps) {
      saves.begin_copies();
    }
  }
  if (global && under_steps) {
    saves.begin(at_.meta(), parts_.state(), waited);
  } else if (global) {
    saves.save(at_.meta(), parts_.state(), waited);
  }
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, DueSaves)

}  // namespace offstage::train
