#include "train/run/validations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/writer.hpp"
#include "train/report/data_lines.hpp"
#include "train/saves/best_loss.hpp"
#include "train/saves/continuation.hpp"
#include "train/saves/resume.hpp"
#include "train/step/mean_loss.hpp"

namespace offstage::train {

template <class T>
void Validations<T>::require_target() {
  mpi::agree(comm_, [&] {
    if (data::Dataset const* const data = parts_.valid_data(); leads() && data != nullptr) {
      train::require_target(*data, windows_per_validation(config_.train, data->windows()),
                            fmt::format("data.valid={}", config_.data.valid.front().path));
    }
  });
}

template <class T>
void Validations<T>::find_best() {
  bool is_own{};
  mpi::agree(comm_, [&] {
    is_own = leads() && at_.step() > 0 && begins_at_own_checkpoint(config_.checkpoint);
  });
  continues_own_ = comm_.broadcast_value(is_own, 0);
  BestLoss best = continues_own_ ? best_of(at_.meta().configuration) : BestLoss{};
  bool has_tried{};
  mpi::agree(comm_, [&] {
    auto const earlier = journal_.earlier();
    best = best_after(best, earlier.validations);
    has_tried = std::ranges::find(earlier.starts, at_.step()) != earlier.starts.end();
  });
  last_ = comm_.broadcast_value(best.last(), 0);
  has_tried_ = comm_.broadcast_value(has_tried, 0);
  if (at_.step() == 0) {
    best = {};  // it is another run's, or one that this start makes again
  } else if (best.last() >= 0 && at_.step() < config_.train.steps &&
             validates_otherwise(at_.meta().configuration, parts_.settings())) {
    if (leads()) {
      log::info("validation data have changed: the search for the best validation begins again");
    }
    best = BestLoss{{.loss = std::nan("")}, 0, best.last()};
    begin_anew_ = true;
  }
  at_.set_best(comm_.broadcast_value(best, 0));
  bool const is_news = at_.best().last() > best_of(at_.meta().configuration).last();
  if (continues_own_ && is_news && !begin_anew_) {
    tell_the_checkpoint();  // the start that made the validation could not
  }
  if (config_.checkpoint.keep_best && at_.best().any()) {
    parts_.saves().store().keep_best(at_.best().best().step);
  }
}

template <class T>
bool Validations<T>::make() {
  trace::Scope const scope{parts_.runner().trace(), "validation", "validation", at_.step()};
  Stopwatch watch;
  auto const loss = parts_.runner().validate(
      *parts_.valid_data(), windows_per_validation(config_.train, parts_.valid_data()->windows()),
      [&] { return !cadence_.will_stop(at_.step()); });
  if (!loss) {
    if (leads()) {
      log::dated("step {:>6}  its validation is left out, as the run stops", at_.step());
    }
    return false;
  }
  Seconds const seconds = watch.elapsed();
  cadence_.validation_took(seconds);
  mpi::agree(comm_, [&] {
    journal_.validated(at_.step(), *loss, !at_.is_bad(), seconds, cadence_.now());
  });
  at_.validated(loss->all.loss);
  return true;
}

template <class T>
bool Validations<T>::make_whatever_the_time() {
  cadence_.only_validates(true);
  bool const done = make();
  cadence_.only_validates(false);
  return done;
}

// The state is saved, so that an error is no reason to fail.
template <class T>
void Validations<T>::tell_the_checkpoint() {
  if (!leads() || !is_saved()) {
    return;
  }
  std::string const path =
      fmt::format("{}/{}", config_.checkpoint.dir, checkpoint::step_name(at_.step()));
  try {
    checkpoint::rewrite_configuration(path, with_best(at_.meta().configuration, at_.best()));
  } catch (Error const& error) {
    log::warning("{}; {} does not know of its validation", error.what(), path);
  }
}

template <class T>
bool Validations<T>::is_owed() const {
  bool const is_last_step = at_.step() == config_.train.steps;
  return continues_own_ && cadence_.validation_follows(at_.step()) && last_ < at_.step() &&
         (is_last_step || !has_tried_);
}

template <class T>
bool Validations<T>::is_best() const {
  BestLoss const& best = at_.best();
  return best.any() && best.since() == 0 && best.best().step == at_.step();
}

template <class T>
bool Validations<T>::has_lost_patience() const {
  return config_.train.patience > 0 && at_.best().since() >= config_.train.patience;
}

template <class T>
bool Validations<T>::begin_with_best() const {
  return config_.checkpoint.keep_best && continues_own_ && is_best();
}

template <class T>
bool Validations<T>::checkpoint_dir_has_best() const {
  bool const has_it = leads() && keeps_best().value_or(true);
  return comm_.broadcast_value(has_it, 0);
}

// All work is durable, so that an error is no reason to fail.
template <class T>
std::optional<bool> Validations<T>::keeps_best() const try {
  BestLoss const& best = at_.best();
  if (!config_.checkpoint.keep_best || !best.any()) {
    return std::nullopt;
  }
  return std::ranges::any_of(checkpoint::step_directories(config_.checkpoint.dir),
                             [&](checkpoint::StepDirectory const& each) {
                               return each.step == best.best().step &&
                                      checkpoint::has_master(each.path);
                             });
} catch (IoError const& error) {
  log::warning("{}", error.what());
  return std::nullopt;
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, Validations)

}  // namespace offstage::train
