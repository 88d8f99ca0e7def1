#include "train/step/step_update.hpp"

#include <cstddef>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "train/step/step_numbers.hpp"

namespace offstage::train {

template <class T>
StepUpdate<T>::StepUpdate(config::RunConfig const& config, mpi::Communicator const& comm,
                          Parts const& parts)
    : config_{config}, comm_{comm}, parts_{parts}, overlap_{make_overlap()} {}

template <class T>
OverlapChoice StepUpdate<T>::make_overlap() const {
  mpi::agree(comm_, [&] {
    if (config_.overlap == config::Overlap::on && !parts_.update.can_begin_ahead()) {
      throw UsageError{
          "update.overlap=on: the device's update (update.device-share, update.device-chunk) has "
          "found room in the memory of activations alone, which backward needs; raise "
          "device.memory, lower update.device-chunk, or set update.overlap=auto"};
    }
  });
  // A rank whose subgroups all stay in host memory may have no spares where others gain by theirs.
  bool const gains =
      comm_.maximum(parts_.offload.spares()) > 0 || config_.overlap == config::Overlap::on;
  bool const possible = comm_.minimum(parts_.update.can_begin_ahead() ? 1 : 0) > 0;
  return {config_.overlap, gains && possible};
}

template <class T>
void StepUpdate<T>::plan(Stopwatch const& step) {
  parts_.update.finish();  // it may still read the gradients of the step before
  planned_ = step.elapsed();
  overlap_.update_ended(planned_);
  ahead_ = comm_.broadcast_value(overlap_.next(), 0);
  parts_.update.plan(ahead_);
}

template <class T>
void StepUpdate<T>::begin_ahead(UpdateNumbers const& numbers) {
  require(is_ahead(), "StepUpdate: an update that was planned to begin under backward");
  parts_.update.begin_ahead(step_of(numbers, 1.0),
                            most_squares(config_.optimizer, numbers.gradient_scale),
                            gradient_source(), parameter_targets());
}

template <class T>
ShareStep StepUpdate<T>::complete(UpdateNumbers const& numbers, double clip, bool skipped) {
  bool const began = parts_.update.is_ahead();
  ShareStep share;
  if (began && !skipped && clip == 1.0) {
    share = parts_.update.confirm();
    share.overlapped = true;
    parts_.offload.follow_rates();
    return share;
  }
  std::vector<tiers::Key> reverted;
  if (began) {
    reverted = parts_.update.take_back();
  }
  if (skipped) {
    rebuild_parameters(reverted);
    parts_.update.readiness().finish();
  } else {
    parts_.gradients.begin_update();
    auto const step = step_of(numbers, clip);
    share = began ? parts_.update.redo(step, gradient_source(), parameter_targets())
                  : parts_.update.run(step, gradient_source(), parameter_targets());
    parts_.offload.follow_rates();
  }
  share.overlapped = began;
  share.redone = began;
  return share;
}

template <class T>
void StepUpdate<T>::ended(OverlapChoice::Step step) {
  step.seconds -= planned_;
  overlap_.ended(step);
}

template <class T>
void StepUpdate<T>::rebuild_parameters(std::span<tiers::Key const> subgroups) {
  for (tiers::Key const key : subgroups) {
    require(!config_.optimizer.split_parameter, "StepUpdate: split parameters are never on trial");
    state::Subgroup const& subgroup = parts_.subgroups[static_cast<std::size_t>(key)];
    auto const lease = parts_.offload.state().fetch(key);
    auto const* const parameter = reinterpret_cast<float const*>(lease.bytes().data());
    parts_.copy.fill(subgroup, {parameter, static_cast<std::size_t>(subgroup.size)});
  }
}

template <class T>
kernels::OptimizerStep StepUpdate<T>::step_of(UpdateNumbers const& numbers, double clip) const {
  return optimizer_step(config_.optimizer, numbers.learning_rate, numbers.optimizer_step,
                        clip * numbers.gradient_scale, config_.train.seed);
}

template <class T>
update::GradientSource StepUpdate<T>::gradient_source() const {
  return [&gradients = parts_.gradients](state::Subgroup const& subgroup) {
    return gradients.fetch(subgroup);
  };
}

template <class T>
parameters::Targets StepUpdate<T>::parameter_targets() const {
  return [&copy = parts_.copy](state::Subgroup const& subgroup) { return copy.target(subgroup); };
}

template class StepUpdate<float>;
template class StepUpdate<bfloat16>;
template class StepUpdate<float16>;

}  // namespace offstage::train
