#include "train/step/step_runner.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/instantiate.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "platform/memory/process_memory.hpp"
#include "state/initialize.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/offload/first_state.hpp"
#include "train/step/mean_loss.hpp"
#include "train/step/step_numbers.hpp"

namespace offstage::train {

template <class T>
StepRunner<T>::StepRunner(config::RunConfig const& config, mpi::Communicator const& comm,
                          std::unique_ptr<device::Device> device,
                          std::unique_ptr<state::RankLink> link, OnPlan const& on_plan,
                          cudnn::Attention* attention)
    : config_{config},
      comm_{comm},
      micro_batches_{micro_batches(config.train)},
      dealt_{dealt(config, comm.size())},
      forward_layers_{model::layer_order(config.model).forward},
      micro_batch_layers_{forward_layers_},
      parts_{config, comm, std::move(device), std::move(link), on_plan, attention} {
  std::ranges::copy(model::layer_order(config.model).backward,
                    std::back_inserter(micro_batch_layers_));
  if (parts_.device_memory) {
    activation_bytes_ = parts_.device_plan().model;
  }
}

template <class T>
void StepRunner<T>::tell_of_activations(trace::Clock::time_point from) {
  if (parts_.device_memory) {
    parts_.device_memory->used(device::MemoryCounter::User::activations, activation_bytes_, from,
                               trace::Clock::now());
  }
}

template <class T>
std::optional<RunForecast> StepRunner<T>::open_trace() {
  if (!parts_.trace) {
    return foresee();
  }
  parts_.trace->open();
  std::vector<plan::SimulatedEvent> events;
  auto forecast = foresee(&events);
  if (forecast) {
    auto const foreseen = parts_.make_trace("foreseen");
    foreseen->open();
    draw(events, *foreseen);
  }
  return forecast;
}

template <class T>
std::optional<RunForecast> StepRunner<T>::foresee() const {
  return foresee(nullptr);
}

template <class T>
std::optional<RunForecast> StepRunner<T>::foresee(std::vector<plan::SimulatedEvent>* events) const
    try {
  auto const device = parts_.device_plan();
  StepFacts const facts{.map = parts_.map,
                        .rank = comm_.rank(),
                        .room = parts_.run_memory->room(),
                        .memory = parts_.memory,
                        .device = device,
                        .share = parts_.update->share()};
  auto reached = reached_;
  reached.update = parts_.update->rates();
  reached.paths = parts_.offload->rates();
  return foresee_run(config_, facts, reached.steps > 0 ? &reached : nullptr, events);
} catch (std::exception const& error) {  // a missing prediction does not end a run
  log::warning("the steps of this run could not be simulated: {}", error.what());
  return std::nullopt;
}

template <class T>
Bytes StepRunner<T>::host_memory_peak() const {
  Bytes const arena = parts_.device->kind() == device::Kind::host ? parts_.device->peak() : 0;
  Bytes const shared = parts_.node_memory ? parts_.node_memory->counted_again() : 0;
  return comm_.split_by_node().sum(memory::peak_resident_bytes() - parts_.resident_before - arena -
                                   shared);
}

template <class T>
checkpoint::OnSubgroup StepRunner<T>::fill_working_copy() {
  return [this](state::Subgroup const& subgroup, std::span<float const> parameter) {
    parts_.copy->fill(subgroup, parameter);
  };
}

template <class T>
std::optional<checkpoint::SplitParameters> StepRunner<T>::split_parameters() {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (config_.optimizer.split_parameter) {
      return checkpoint::SplitParameters{
          config_.optimizer.layout(), [this](state::Subgroup const& subgroup) {
            return std::get<std::span<bfloat16>>(parts_.copy->target(subgroup).view);
          }};
    }
  }
  return std::nullopt;
}

template <class T>
void StepRunner<T>::initialize(state::ParameterReader* first_weights) {
  mpi::agree(comm_, [&] {
    auto const split = split_parameters();
    make_first_state(parts_.map, parts_.subgroups, config_.optimizer.layout(), config_.train.seed,
                     first_weights, tiers(), fill_working_copy(), split ? &*split : nullptr);
  });
}

template <class T>
StepResult StepRunner<T>::step(data::Dataset const& data, std::int64_t first_sample,
                               double learning_rate, std::int64_t optimizer_step,
                               double loss_scale) {
  Now const now{learning_rate, optimizer_step, loss_scale, first_sample};
  StepResult result;
  told_ = false;
  if (!last_look_) {
    last_look_.emplace(parts_.offload->state().traffic());
  }
  auto const moved_before = moved_activations();
  if (config_.train.together > 0) {
    run_layers(data, now, result);
  } else {
    run_micro_batches(data, now, result);
  }
  auto const moved = moved_activations();
  result.activations = {.out = moved.out - moved_before.out,
                        .back = moved.back - moved_before.back,
                        .waited = moved.waited - moved_before.waited};
  call_before_update(result);
  auto const moved_bytes = [this] {
    auto const traffic = parts_.offload->state().traffic();
    return traffic.read_bytes() + traffic.write_bytes();
  };
  Bytes const bytes_before = moved_bytes();
  Stopwatch watch;
  double const divisor = loss_scale * static_cast<double>(micro_batches_);
  result.grad_norm = parts_.gradients->norm() *
                     targets_per_counted(config_.train, micro_batches_, result.counted_targets) /
                     divisor;
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  double const clip = clip_factor(config_.optimizer, result.grad_norm);
  result.clipped = !result.skipped && clip < 1.0;
  result.share = parts_.update->make(update_numbers(now, result), clip, result.skipped);
  result.update = watch.elapsed();
  result.update_bytes = moved_bytes() - bytes_before;
  Look const look{parts_.offload->state().traffic()};
  result.storage = difference(last_look_->traffic, look.traffic,
                              {.paths = config_.paths,
                               .residence = parts_.offload->state().residence(),
                               .workers = parts_.workers(),
                               .nodes = parts_.nodes,
                               .seconds = last_look_->since.elapsed()});
  last_look_ = look;
  reached_.forward = result.forward;
  reached_.backward = result.backward;
  ++reached_.steps;
  reached_.clipped += result.clipped ? 1 : 0;
  if (result.disturbed) {
    parts_.update->disturbed();
  } else {
    parts_.update->ended({.overlapped = result.share.overlapped,
                          .redone = result.skipped || result.clipped,
                          .seconds = now.step.elapsed() - result.stood_still});
  }
  return result;
}

template <class T>
void StepRunner<T>::run_micro_batches(data::Dataset const& data, Now const& now,
                                      StepResult& result) {
  std::vector<double> losses;
  parts_.gradients->begin_step();
  Stopwatch watch;
  parts_.copy->begin();
  parts_.copy->expect(micro_batch_layers_);
  // Rounds follow each other. In the last ones some ranks may be idle; they still take part in
  // gathers and exchanges.
  for (std::int64_t round = 0; round < dealt_.count(); ++round) {
    auto const mine = dealt_.micro_batch(round, comm_.rank());
    bool const last = round + 1 == dealt_.count();
    if (!last) {
      parts_.copy->expect(
          micro_batch_layers_);  // its first layers are brought under this round's backward
    }
    auto const began = trace::Clock::now();
    if (mine) {
      auto const tokens = micro_batch(data, now, *mine);
      result.counted_targets += data::counted_targets(tokens);
      trace::Scope const scope{parts_.trace.get(), "model", "forward"};
      losses.push_back(parts_.model->forward(tokens, source_, now.loss_scale));
    } else {
      parts_.model->idle_forward(source_);
    }
    result.forward += watch.lap();
    if (round == 0) {
      parts_.update->plan(now.step);
    }
    parts_.gradients->begin_round(dealt_.round(round).active, last);
    if (round == 0 && parts_.device_memory) {
      parts_.device_memory->write(began);  // the update before has ended
    }
    if (last) {
      begin_early(losses, now, result);
    }
    if (mine) {
      trace::Scope const scope{parts_.trace.get(), "model", "backward"};
      parts_.model->backward(source_, *parts_.gradients);
      tell_of_activations(began);
    } else {
      parts_.model->idle_backward(source_, *parts_.gradients);
    }
    parts_.gradients->end_round();
    result.backward += watch.lap();
  }
  result.backward -= result.stood_still;
}

template <class T>
data::TokenBatch StepRunner<T>::micro_batch(data::Dataset const& data, Now const& now,
                                            std::int64_t number) const {
  std::int64_t const batch = config_.train.micro_batch;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(batch));
  for (std::int64_t i = 0; i < batch; ++i) {
    chosen[static_cast<std::size_t>(i)] =
        data.shuffled(now.first_sample + number * batch + i, config_.train.seed);
  }
  return data.batch(chosen);
}

// Micro-batches are dealt as in run_micro_batches. A layer's gradients are exchanged round by
// round.
template <class T>
void StepRunner<T>::run_layers(data::Dataset const& data, Now const& now, StepResult& result) {
  parts_.gradients->begin_step();
  Stopwatch watch;
  parts_.copy->begin();
  parts_.copy->expect(micro_batch_layers_);
  auto const began = trace::Clock::now();
  std::vector<data::TokenBatch> batches;
  auto const rounds = static_cast<int>(dealt_.count());
  for (int round = 0; round < rounds; ++round) {
    if (auto const mine = dealt_.micro_batch(round, comm_.rank())) {
      result.counted_targets +=
          data::counted_targets(batches.emplace_back(micro_batch(data, now, *mine)));
    }
  }
  std::vector<double> losses;
  {
    trace::Scope const scope{parts_.trace.get(), "model", "forward"};
    parts_.model->forward(batches, rounds, source_);
    parts_.update->plan(now.step);
    parts_.gradients->begin_rounds_in_layers(static_cast<int>(micro_batches_));
    if (parts_.device_memory) {
      parts_.device_memory->write(began);  // the update before has ended
    }
    losses = parts_.model->head(source_, *parts_.gradients, now.loss_scale);
  }
  result.forward += watch.lap();
  begin_early(losses, now, result);
  {
    trace::Scope const scope{parts_.trace.get(), "model", "backward"};
    parts_.model->backward_all(source_, *parts_.gradients);
    tell_of_activations(began);
  }
  parts_.gradients->end_round();
  result.backward += watch.lap() - result.stood_still;
}

template <class T>
void StepRunner<T>::begin_early(std::span<double const> losses, Now const& now,
                                StepResult& result) {
  agree_on_loss(losses, result);
  if (parts_.update->is_planned_early() && std::isfinite(result.loss)) {
    call_before_update(result);
    parts_.update->begin_early(update_numbers(now, result));
  }
}

template <class T>
void StepRunner<T>::call_before_update(StepResult& result) {
  if (std::exchange(told_, true)) {
    return;
  }
  Stopwatch const watch;
  if (before_update_ && before_update_()) {
    result.disturbed = true;
  }
  result.stood_still += watch.elapsed();
}

template <class T>
void StepRunner<T>::agree_on_loss(std::span<double const> losses, StepResult& result) {
  result.counted_targets = comm_.sum(result.counted_targets);
  result.loss = mean_in_order(comm_, losses, dealt_) *
                targets_per_counted(config_.train, micro_batches_, result.counted_targets);
}

template <class T>
UpdateNumbers StepRunner<T>::update_numbers(Now const& now, StepResult const& result) const {
  return {
      .learning_rate = now.learning_rate,
      .optimizer_step = now.optimizer_step,
      .gradient_scale = targets_per_counted(config_.train, micro_batches_, result.counted_targets) /
                        (now.loss_scale * static_cast<double>(micro_batches_))};
}

template <class T>
std::optional<MeanLosses> StepRunner<T>::validate(data::Dataset const& data, std::int64_t windows,
                                                  std::function<bool()> still_wanted) {
  parts_.update->disturbed();  // the last step's update goes on under this
  parts_.copy->begin();
  LossCalls const calls{.evaluate =
                            [this](data::TokenBatch const& tokens) {
                              auto const began = trace::Clock::now();
                              double const loss = parts_.model->evaluate(tokens, source_);
                              tell_of_activations(began);
                              return loss;
                            },
                        .idle = [this] { parts_.model->idle_forward(source_); },
                        .expect = [this] { parts_.copy->expect(forward_layers_); },
                        .still_wanted = std::move(still_wanted)};
  return mean_loss(comm_, data, windows, config_.train.micro_batch, calls);
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, StepRunner)

}  // namespace offstage::train
