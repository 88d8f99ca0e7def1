#include "train/saves.hpp"

#include "base/log.hpp"

namespace offstage::train {

void Saves::save(checkpoint::Meta const& meta, State const& state, Seconds waited) {
  step_ = meta.step;
  waited_ = waited;
  note(store_->save(meta, state.map, state.subgroups, state.tiers));
}

void Saves::begin(checkpoint::Meta const& meta, State const& state, Seconds waited) {
  store_->begin_save(meta, state.map, state.subgroups, state.tiers);
  step_ = meta.step;
  waited_ = waited;
}

bool Saves::finish_if_written() {
  return store_->is_saving() && store_->may_update() && finish();
}

bool Saves::finish() {
  if (!store_->is_saving()) {
    return false;
  }
  note(store_->finish_save());
  return true;
}

void Saves::finish_after_error() noexcept {
  try {
    if (store_->is_saving() && comm_.rank() == 0) {
      log::warning("an error ends the run once the save of step {} is written", step_);
    }
    finish();
  } catch (std::exception const& error) {
    log::warning("{}", error.what());
  }
}

void Saves::note(checkpoint::SaveStats const& stats) {
  cadence_.save_took(
      {.whole = waited_ + stats.seconds, .stood_still = waited_ + stats.stood_still});
  journal_.saved(step_, stats);
}

}  // namespace offstage::train
