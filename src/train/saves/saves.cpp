#include "train/saves/saves.hpp"

#include <array>
#include <chrono>
#include <span>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/local_directory.hpp"

namespace offstage::train {

using checkpoint::Store;

template <class Work>
void Saves::try_local(Work&& work) {
  try {
    work();
  } catch (mpi::AgreedError const& error) {
    if (error.code() != ExitCode::io) {
      throw;
    }
    if (comm_.rank() == 0) {
      log::warning("{}; this run goes on without level 1", error.what());
    }
    uses_local_ = false;
    cadence_.local_level_ended();
  }
}

template <class Work>
void Saves::try_copies(Work&& work) {
  try {
    work();
  } catch (mpi::AgreedError const& error) {
    if (error.code() != ExitCode::io && error.code() != ExitCode::data) {
      throw;
    }
    if (comm_.rank() == 0) {
      log::warning("checkpoint.partner=copy: {}; this run goes on without copies on other nodes",
                   error.what());
    }
    local_.store->stop_copies();
    cadence_.copies_ended();
  }
}

bool Saves::takes_local(std::int64_t step, bool is_due, bool a_step_follows) {
  if (!is_due && !local_waits_) {
    return false;
  }
  finish_copies();
  bool const waits = a_step_follows && uses_local_ && local_.store->is_copying();
  if (waits && !local_waits_ && comm_.rank() == 0) {
    log::dated("step {:>6}  level 1 waits: that of step {} is still being copied", step,
               local_.step);
  }
  local_waits_ = waits;
  return !local_waits_;
}

void Saves::begin_copies() {
  if (uses_local_) {
    try_copies([&] { local_.store->begin_copies(local_.step); });
  }
}

void Saves::finish_copies() {
  if (!uses_local_ || !local_.store->is_copying()) {
    return;
  }
  try_copies([&] {
    if (auto const done = local_.store->finish_copies_if_done()) {
      listener_.copied(*done, cadence_.now());
    }
  });
}

void Saves::end_copies() {
  if (local_.store != nullptr) {
    local_.store->give_up_copies();
  }
}

void Saves::spare(std::string const& path) {
  for (Level const* const level : {&global_, &local_}) {
    if (level->store != nullptr) {
      level->store->spare(path);
    }
  }
}

void Saves::set_split(checkpoint::SplitParameters const& split) {
  for (Level* const level : {&global_, &local_}) {
    if (level->store != nullptr) {
      level->store->set_split(split);
    }
  }
}

std::optional<checkpoint::Meta> Saves::restore(std::string const& resume,
                                               checkpoint::RunState const& run, State const& state,
                                               checkpoint::OnSubgroup const& on_subgroup) {
  auto const& [map, subgroups, tiers] = state;
  // Level 1 comes first: of equal steps it is the nearer one.
  std::array<Store*, 2> const both{local_.store.get(), global_.store.get()};
  std::span const levels = std::span{both}.subspan(local_.store ? 0 : 1);
  std::optional<checkpoint::Meta> meta;
  Store const* found = nullptr;
  if (resume == "auto") {
    if (auto newest = Store::restore_newest(levels, run, map, subgroups, tiers, on_subgroup)) {
      meta = std::move(newest->meta);
      found = newest->level;
    }
  } else if (resume != "none") {
    Store& store = is_in_local(resume) ? *local_.store : *global_.store;
    meta = store.restore(resume, run, map, subgroups, tiers, on_subgroup);
    found = &store;
  }
  if (resume != "auto") {
    for (Store* const level : levels) {
      level->pass_over_after(meta ? meta->step : 0);
    }
  }
  if (meta) {
    (found == local_.store.get() ? local_ : global_).step = meta->step;
  }
  global_.store->keep_what_was_kept(meta ? meta->step : 0);
  // Level 2 shows scripts that a run has gone on from the checkpoint at which it was told to begin.
  global_first_ = resume != "auto" || global_.store->has_passed_over();
  return meta;
}

void Saves::remove_passed_over_local() {
  if (!uses_local_) {
    return;
  }
  try_local([&] { local_.store->remove_passed_over(); });
  if (!uses_local_) {
    if (local_.store->is_saving()) {  // a save that goes on holds the state
      try_local([&] { static_cast<void>(local_.store->finish_save()); });
    }
    mpi::agree(comm_, [&] {
      if (comm_.rank() == 0) {
        checkpoint::forget_local_directory(global_.store->directory());
      }
    });
  }
}

void Saves::save(checkpoint::Meta const& meta, State const& state, Seconds waited) {
  remove_passed_over_local();
  global_.begin(meta.step, waited);
  note(global_, global_.store->save(meta, state.map, state.subgroups, state.tiers));
  global_first_ = false;
}

void Saves::begin(checkpoint::Meta const& meta, State const& state, Seconds waited) {
  remove_passed_over_local();
  cadence_.save_began();
  auto const begun = trace::Clock::now();
  global_.store->begin_save(meta, state.map, state.subgroups, state.tiers);
  global_.begin(meta.step, waited);
  global_.begun = begun;
}

void Saves::save_local(checkpoint::Meta const& meta, State const& state, Seconds waited,
                       bool under_next_step) {
  end_copies();  // the copies of the save before; nobody waits for them if no step follows
  local_.begin(meta.step, waited);
  try_local([&] {
    if (under_next_step) {
      local_.store->begin_save(meta, state.map, state.subgroups, state.tiers);
    } else {
      note(local_, local_.store->save(meta, state.map, state.subgroups, state.tiers));
    }
  });
}

bool Saves::finish_local() {
  bool const has_begun = uses_local_ && local_.store->is_saving();
  if (has_begun) {
    try_local([&] { note(local_, local_.store->finish_save()); });
  }
  return has_begun;
}

bool Saves::finish_if_written() {
  bool const copying = uses_local_ && local_.store->is_copying();
  finish_copies();
  bool const local = finish_local();
  if (local) {
    begin_copies();
  }
  return finish_global_if_written() || local || copying;
}

bool Saves::finish_global_if_written() {
  return global_.store->is_saving() && global_.store->may_update() && finish();
}

bool Saves::finish() {
  if (!global_.store->is_saving()) {
    return false;
  }
  note(global_, global_.store->finish_save());
  global_first_ = false;
  return true;
}

void Saves::finish_after_error() noexcept {
  try {
    finish_local();
    end_copies();
  } catch (std::exception const& error) {
    log::warning("{}", error.what());
  }
  try {
    if (is_saving() && comm_.rank() == 0) {
      log::warning("an error ends the run once the save of step {} is written", step());
    }
    finish();
  } catch (std::exception const& error) {
    log::warning("{}", error.what());
  }
}

void Saves::remove_local() {
  if (local_.store != nullptr && !global_first_) {
    local_.store->remove_all();
  }
}

void Saves::note(Level const& level, checkpoint::SaveStats const& stats) {
  bool const is_local = &level == &local_;
  if (trace_ != nullptr) {
    auto const worked = std::chrono::duration_cast<trace::Clock::duration>(stats.seconds);
    trace_->span("checkpoint", is_local ? "level 1" : "level 2", level.begun, level.begun + worked,
                 level.step, stats.bytes);
  }
  SaveTime const time{.whole = level.waited + stats.seconds - stats.paused,
                      .stood_still = level.waited + stats.stood_still};
  if (is_local) {
    cadence_.local_save_took(time);
  } else {
    cadence_.save_took(time);
  }
  auto told = stats;
  told.waited = level.waited;
  listener_.saved(level.step, told, is_local ? 1 : 2, cadence_.now());
}

}  // namespace offstage::train
