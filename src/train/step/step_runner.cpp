#include "train/step/step_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>

#include "activations/host_activations.hpp"
#include "activations/stored_activations.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/process_memory.hpp"
#include "state/initialize.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/memory/update_demand.hpp"
#include "train/offload/first_state.hpp"
#include "train/offload/make_parameters.hpp"
#include "train/step/mean_loss.hpp"
#include "train/step/step_numbers.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/gradients/block_gradients.hpp"

namespace offstage::train {

template <class T>
int StepRunner<T>::workers() const {
  return update_workers(config_, memory_, device_->host_visible());
}

template <class T>
StepRunner<T>::StepRunner(config::RunConfig const& config, mpi::Communicator const& comm,
                          std::unique_ptr<device::Device> device,
                          std::unique_ptr<state::RankLink> link, OnPlan const& on_plan,
                          cudnn::Attention* attention)
    : config_{config},
      comm_{comm},
      micro_batches_{micro_batches(config.train)},
      dealt_{dealt(config, comm.size())},
      device_{std::move(device)},
      stream_{device_->make_calling_stream("compute")},
      link_{std::move(link)},
      map_{state::layers_of(config.model), comm.size()},
      forward_layers_{model::layer_order(config.model).forward},
      micro_batch_layers_{forward_layers_},
      resident_before_{memory::resident_bytes()} {
  std::ranges::copy(model::layer_order(config.model).backward,
                    std::back_inserter(micro_batch_layers_));
  auto const node = comm.split_by_node();
  nodes_ = static_cast<int>(comm.sum(node.rank() == 0 ? 1 : 0));
  mpi::agree(comm, [&] {
    trace_ = make_trace("trace");
    if (trace_) {
      communication_.emplace(*trace_);
    }
    if (config_.parameter_home == parameters::Home::device) {
      config::RunConfig known = config_;
      known.device.memory = device_->capacity();
      copy_ = std::make_unique<parameters::DeviceParameters<T>>(
          map_, *link_, *device_, *stream_,
          gathering_slots<T>(known, map_, link_->route(), link_->device_bytes()), trace_.get());
    }
    auto shape = run_shape<T>(config_);
    shape.attention = attention;
    model_ = std::make_unique<model::Transformer<T>>(config_.model, shape, *device_, *stream_);
  });
  run_memory_.emplace(config, comm, node, map_, *link_, *device_);
  mpi::agree(comm, [&] {
    memory_ = plan::plan_memory(memory_demand<T>(config, map_,
                                                 {.ranks_per_node = run_memory_->ranks_on_node(),
                                                  .route = link_->route(),
                                                  .host_memory = run_memory_->host_limit()}));
    device_memory_ = make_device_memory();
  });
  on_plan(run_memory_->needs(node, memory_));
  subgroups_ = state::subgroups_of(map_, comm.rank(), memory_.subgroup_elements,
                                   resident_elements(config, map_, comm.rank()));
  // What state, gradients and parameters will take is free until then.
  offload_ = std::make_unique<Offload>(
      config, comm, trace_.get(),
      memory_.state + memory_.gradients + memory_.parameters + memory_.activations);
  bool const stored = config.parameter_home == parameters::Home::storage;
  offload_->allocate(subgroups_, memory_, extent_sum_bytes<T>(config), *device_,
                     stored ? static_cast<Bytes>(sizeof(T)) : 0, activation_extents<T>(config));
  mpi::agree(comm, [&] {
    if (auto const parts = model::leaving_parts<T>(config_.model, run_shape<T>(config_));
        !parts.empty()) {
      if (config_.train.activations.storage) {
        auto workers = activation_workers(memory_.activation_buffers);
        workers.on_demand = config_.train.together > 0;
        activations_ = std::make_unique<activations::StoredActivations>(
            parts, offload_->activations(), *device_, workers);
      } else {
        activations_ =
            std::make_unique<activations::HostActivations>(parts, *device_, trace_.get());
      }
      model_->set_store(*activations_);
    }
    if (!copy_) {
      copy_ = make_parameters<T>(config, {.map = map_,
                                          .link = *link_,
                                          .device = *device_,
                                          .stream = *stream_,
                                          .subgroups = subgroups_,
                                          .offload = *offload_,
                                          .slots = run_memory_->parameter_slots(),
                                          .buffers = memory_.parameter_buffers,
                                          .trace = trace_.get()});
    }
    gradients_ = make_gradients();
    auto shape =
        update_shape<T>(config_, map_.shard_elements(comm_.rank()), memory_.subgroup_elements);
    shape.workers = workers();
    shape.storage = storage_traffic(config_, shape, memory_);
    shape.sums_on_device = sums_on_device(comm_.size(), link_->route());
    update_ =
        std::make_unique<SharedUpdate>(config_, shape, *device_, model_->idle_memory(), subgroups_,
                                       *offload_, trace_.get(), device_memory_.get());
    // Last: of what is left.
    if (Bytes const room = run_memory_->room_for_gradients(shape); room > 0) {
      held_ = std::make_unique<update::HeldGradients>(*device_, room, shape.gradient_bytes,
                                                      subgroups_, device_memory_.get(),
                                                      shape.sums_on_device ? shape.sum_planes : 1);
      gradients_->set_held(held_.get());
      update_->set_held(*held_, shape.sums_on_device);
    }
  });
  step_update_.emplace(config_, comm_,
                       typename StepUpdate<T>::Parts{.update = *update_,
                                                     .gradients = *gradients_,
                                                     .copy = *copy_,
                                                     .offload = *offload_,
                                                     .subgroups = subgroups_});
  // Last: from now on the copy's end has to come before the update's, which the destructor sees to.
  copy_->set_readiness(&update_->readiness());
}

template <class T>
std::unique_ptr<update::StepGradients<T>> StepRunner<T>::make_gradients() {
  update::GradientSettings settings = offload_->take_gradients(accumulates_fp32<T>(config_));
  settings.trace = trace_.get();
  settings.memory = device_memory_.get();
  settings.layer_sums = config_.train.together > 1;
  settings.host_sum_rate = config_.device.emulation.host_sum;
  settings.on_final = [this](tiers::Key key, double squares) { update_->complete(key, squares); };
  if (sums_whole_blocks(config_)) {
    return update::make_block_gradients<T>(map_, *link_, *device_, *stream_, subgroups_,
                                           std::move(settings), sum_block(config_));
  }
  settings.blocks = {sum_block(config_)};
  return std::make_unique<update::GradientAccumulator<T>>(map_, *link_, *device_, *stream_,
                                                          subgroups_, std::move(settings));
}

// Threads know of each other's owners: trips of gradients and parameters, what ends gradients' leases of the
// update, what brings parameters of its readiness; and if backward has failed, trips may wait for a gradient's
// buffer that backward has.
template <class T>
StepRunner<T>::~StepRunner() {
  link_->end();  // no stream waits for another rank any more
  try {
    stream_->synchronize();  // what a step that failed has left there uses memory of all below
  } catch (...) {            // whoever waited for it has told
  }
  if (gradients_) {
    gradients_->abandon();
  }
  if (update_) {
    update_->abandon();
  }
  if (copy_) {
    copy_->stop();
  }
}

template <class T>
std::unique_ptr<trace::Trace> StepRunner<T>::make_trace(char const* what) const {
  if (!config_.trace) {
    return nullptr;
  }
  return std::make_unique<trace::Trace>(
      fmt::format("{}/{}-{}.json", config_.run_dir, what, comm_.rank()), comm_.rank(),
      cpu::host_name(), trace::Trace::default_bytes, trace::Trace::Begin::later);
}

// The tables of RoPE, kilobytes that stay, count as activations.
template <class T>
std::unique_ptr<device::MemoryCounter> StepRunner<T>::make_device_memory() {
  if (!trace_) {
    return nullptr;
  }
  auto const demand = device_plan();
  activation_bytes_ = demand.model;
  auto memory = std::make_unique<device::MemoryCounter>(*trace_);
  memory->keep(device::MemoryCounter::User::parameters, demand.working_copy);
  memory->keep(device::MemoryCounter::User::resident_state, demand.resident);
  return memory;
}

template <class T>
void StepRunner<T>::tell_of_activations(trace::Clock::time_point from) {
  if (device_memory_) {
    device_memory_->used(device::MemoryCounter::User::activations, activation_bytes_, from,
                         trace::Clock::now());
  }
}

template <class T>
std::optional<RunForecast> StepRunner<T>::open_trace() {
  if (!trace_) {
    return foresee();
  }
  trace_->open();
  std::vector<plan::SimulatedEvent> events;
  auto forecast = foresee(&events);
  if (forecast) {
    auto const foreseen = make_trace("foreseen");
    foreseen->open();
    draw(events, *foreseen);
  }
  return forecast;
}

template <class T>
DeviceDemand StepRunner<T>::device_plan() const {
  auto config = config_;
  if (device_->kind() == device::Kind::cuda) {
    config.device.memory = device_->capacity();  // whose share of the GPU nobody may have told
  }
  return device_demand<T>(config, map_, comm_.rank(), link_->route(), memory_.subgroup_elements,
                          link_->device_bytes());
}

template <class T>
std::optional<RunForecast> StepRunner<T>::foresee() const {
  return foresee(nullptr);
}

template <class T>
std::optional<RunForecast> StepRunner<T>::foresee(std::vector<plan::SimulatedEvent>* events) const
    try {
  auto const device = device_plan();
  StepFacts const facts{.map = map_,
                        .rank = comm_.rank(),
                        .ranks_per_node = run_memory_->ranks_on_node(),
                        .route = link_->route(),
                        .memory = memory_,
                        .device = device,
                        .share = update_->share()};
  auto reached = reached_;
  reached.update = update_->rates();
  reached.paths = offload_->rates();
  return foresee_run<T>(config_, facts, reached.steps > 0 ? &reached : nullptr, events);
} catch (std::exception const& error) {  // no run ends for want of a prediction
  log::warning("the steps of this run could not be simulated: {}", error.what());
  return std::nullopt;
}

template <class T>
Bytes StepRunner<T>::host_memory_peak() const {
  Bytes const arena = device_->kind() == device::Kind::host ? device_->peak() : 0;
  return comm_.split_by_node().sum(memory::peak_resident_bytes() - resident_before_ - arena);
}

template <class T>
checkpoint::OnSubgroup StepRunner<T>::fill_working_copy() {
  return [this](state::Subgroup const& subgroup, std::span<float const> parameter) {
    copy_->fill(subgroup, parameter);
  };
}

template <class T>
std::optional<checkpoint::SplitParameters> StepRunner<T>::split_parameters() {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (config_.optimizer.split_parameter) {
      return checkpoint::SplitParameters{
          config_.optimizer.layout(), [this](state::Subgroup const& subgroup) {
            return std::get<std::span<bfloat16>>(copy_->target(subgroup).view);
          }};
    }
  }
  return std::nullopt;
}

template <class T>
void StepRunner<T>::initialize(state::ParameterReader* first_weights) {
  mpi::agree(comm_, [&] {
    auto const split = split_parameters();
    make_first_state(map_, subgroups_, config_.optimizer.layout(), config_.train.seed,
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
  tiers::Traffic traffic_before = fetched_before_.value_or(offload_->state().traffic());
  traffic_before.paths = offload_->state().traffic().paths;  // whoever uses them
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
  Stopwatch watch;
  double const divisor = loss_scale * static_cast<double>(micro_batches_);
  result.grad_norm = gradients_->norm() *
                     targets_per_counted(config_.train, micro_batches_, result.counted_targets) /
                     divisor;
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  double const clip = clip_factor(config_.optimizer, result.grad_norm);
  result.share = step_update_->complete(update_numbers(now, result), clip, result.skipped);
  result.update = watch.elapsed();
  tiers::Traffic const after = offload_->state().traffic();
  fetched_before_ = after;
  result.read_bytes = after.read_bytes() - traffic_before.read_bytes();
  result.write_bytes = after.write_bytes() - traffic_before.write_bytes();
  result.storage = difference(traffic_before, after,
                              {.paths = config_.paths,
                               .residence = offload_->state().residence(),
                               .workers = workers(),
                               .nodes = nodes_,
                               .seconds = now.step.elapsed()});
  reached_.forward = result.forward;
  reached_.backward = result.backward;
  ++reached_.steps;
  reached_.clipped += clip < 1.0 ? 1 : 0;
  if (result.disturbed) {
    step_update_->disturbed();
  } else {
    step_update_->ended({.overlapped = result.share.overlapped,
                         .redone = result.skipped || clip < 1.0,
                         .seconds = now.step.elapsed() - result.stood_still});
  }
  return result;
}

template <class T>
void StepRunner<T>::run_micro_batches(data::Dataset const& data, Now const& now,
                                      StepResult& result) {
  std::vector<double> losses;
  gradients_->begin_step();
  Stopwatch watch;
  copy_->begin();
  copy_->expect(micro_batch_layers_);
  // Round by round. In the last ones some ranks may be idle; they still take part in gathers and exchanges.
  for (std::int64_t round = 0; round < dealt_.count(); ++round) {
    auto const mine = dealt_.micro_batch(round, comm_.rank());
    bool const last = round + 1 == dealt_.count();
    if (!last) {
      copy_->expect(micro_batch_layers_);  // its first layers come under this round's backward
    }
    auto const began = trace::Clock::now();
    if (mine) {
      auto const tokens = micro_batch(data, now, *mine);
      result.counted_targets += data::counted_targets(tokens);
      trace::Scope const scope{trace_.get(), "model", "forward"};
      losses.push_back(model_->forward(tokens, source_, now.loss_scale));
    } else {
      model_->idle_forward(source_);
    }
    result.forward += watch.lap();
    if (round == 0) {
      step_update_->plan(now.step);
    }
    gradients_->begin_round(dealt_.round(round).active, last);
    if (round == 0 && device_memory_) {
      device_memory_->write(began);  // the update before has ended
    }
    if (last) {
      begin_ahead(losses, now, result);
    }
    if (mine) {
      trace::Scope const scope{trace_.get(), "model", "backward"};
      model_->backward(source_, *gradients_);
      tell_of_activations(began);
    } else {
      model_->idle_backward(source_, *gradients_);
    }
    gradients_->end_round();
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

// Micro-batches are dealt alike here, and a layer's gradients are exchanged round by round.
template <class T>
void StepRunner<T>::run_layers(data::Dataset const& data, Now const& now, StepResult& result) {
  gradients_->begin_step();
  Stopwatch watch;
  copy_->begin();
  copy_->expect(micro_batch_layers_);
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
    trace::Scope const scope{trace_.get(), "model", "forward"};
    model_->forward(batches, rounds, source_);
    step_update_->plan(now.step);
    gradients_->begin_rounds_in_layers(static_cast<int>(micro_batches_));
    if (device_memory_) {
      device_memory_->write(began);  // the update before has ended
    }
    losses = model_->head(source_, *gradients_, now.loss_scale);
  }
  result.forward += watch.lap();
  begin_ahead(losses, now, result);
  {
    trace::Scope const scope{trace_.get(), "model", "backward"};
    model_->backward_all(source_, *gradients_);
    tell_of_activations(began);
  }
  gradients_->end_round();
  result.backward += watch.lap() - result.stood_still;
}

template <class T>
void StepRunner<T>::begin_ahead(std::span<double const> losses, Now const& now,
                                StepResult& result) {
  agree_on_loss(losses, result);
  if (step_update_->is_ahead() && std::isfinite(result.loss)) {
    call_before_update(result);
    step_update_->begin_ahead(update_numbers(now, result));
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
double StepRunner<T>::validate(data::Dataset const& data, std::int64_t windows) {
  step_update_->disturbed();  // the last step's update goes on under this
  copy_->begin();
  LossCalls const calls{.evaluate =
                            [this](data::TokenBatch const& tokens) {
                              auto const began = trace::Clock::now();
                              double const loss = model_->evaluate(tokens, source_);
                              tell_of_activations(began);
                              return loss;
                            },
                        .idle = [this] { model_->idle_forward(source_); },
                        .expect = [this] { copy_->expect(forward_layers_); }};
  return mean_loss(comm_, data, windows, config_.train.micro_batch, calls).loss;
}

template class StepRunner<float>;
template class StepRunner<bfloat16>;
template class StepRunner<float16>;

}  // namespace offstage::train
