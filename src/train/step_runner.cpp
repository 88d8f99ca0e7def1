#include "train/step_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "parameters/streamed_parameters.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/process_memory.hpp"
#include "state/initialize.hpp"
#include "train/device_demand.hpp"
#include "train/first_state.hpp"
#include "train/make_parameters.hpp"
#include "train/memory_demand.hpp"
#include "train/memory_table.hpp"
#include "train/step_numbers.hpp"
#include "train/storage_report.hpp"

namespace offstage::train {
namespace {

/// In host memory nothing is fetched or flushed: two workers keep the update itself busy, and four two
/// sides of it.
constexpr int host_workers = 2;
constexpr int shared_workers = 4;

}  // namespace

template <class T>
int StepRunner<T>::workers() const {
  if (memory_.buffers > 0) {
    return memory_.buffers;
  }
  return needs_lane(config_, device_->host_visible()) ? shared_workers : host_workers;
}

template <class T>
StepRunner<T>::StepRunner(RunConfig const& config, mpi::Communicator const& comm,
                          std::unique_ptr<device::Device> device,
                          std::unique_ptr<state::RankLink> link, OnPlan const& on_plan)
    : config_{config},
      comm_{comm},
      micro_batches_{config.train.global_batch / config.train.micro_batch},
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
  ranks_on_node_ = node.size();
  nodes_ = static_cast<int>(comm.sum(node.rank() == 0 ? 1 : 0));
  mpi::agree(comm, [&] {
    if (config_.parameter_home == parameters::Home::device) {
      copy_ = std::make_unique<parameters::DeviceParameters<T>>(map_, *link_, *device_, *stream_);
    }
    model_ = std::make_unique<model::Transformer<T>>(
        config_.model,
        model::RunShape{config_.train.micro_batch, config_.train.sequence, config_.train.recompute},
        *device_, *stream_);
  });
  parameter_slots_ = count_parameter_slots();
  // Activations, a working copy on the device and the memory to gather it through are taken; an emulated
  // device will take more of the host's.
  Bytes free_here{};
  mpi::agree(comm, [&] { free_here = memory::available_bytes(); });
  Bytes const free_now = std::max<Bytes>(
      0, comm.minimum(free_here) +
             ranks_on_node_ * (gathering_bytes() - comm.maximum(device_bytes_to_come())));
  host_memory_limit_ = config.host_memory > 0
                           ? config.host_memory
                           : static_cast<Bytes>(auto_host_share * static_cast<double>(free_now));
  mpi::agree(comm, [&] {
    memory_ = plan::plan_memory(memory_demand<T>(config, map_,
                                                 {.ranks_per_node = ranks_on_node_,
                                                  .route = link_->route(),
                                                  .host_memory = host_memory_limit_}));
    trace_ = make_trace();
    device_memory_ = make_device_memory();
  });
  on_plan(needs_of(node));
  subgroups_ = state::subgroups_of(map_, comm.rank(), memory_.subgroup_elements,
                                   resident_elements(config, map_, comm.rank()));
  // What state, gradients and parameters will take is free until then.
  offload_ = std::make_unique<Offload>(config, comm, trace_.get(),
                                       memory_.state + memory_.gradients + memory_.parameters);
  bool const stored = config.parameter_home == parameters::Home::storage;
  offload_->allocate(subgroups_, memory_, accumulated_bytes<T>(config), *device_,
                     stored ? static_cast<Bytes>(sizeof(T)) : 0);
  mpi::agree(comm, [&] {
    if (!copy_) {
      copy_ = make_parameters<T>(config, {.map = map_,
                                          .link = *link_,
                                          .device = *device_,
                                          .stream = *stream_,
                                          .subgroups = subgroups_,
                                          .offload = *offload_,
                                          .slots = parameter_slots_,
                                          .buffers = memory_.parameter_buffers,
                                          .trace = trace_.get()});
    }
    update::GradientSettings gradients = offload_->take_gradients(accumulates_fp32<T>(config_));
    gradients.memory = device_memory_.get();
    gradients.on_final = [this](tiers::Key key, double squares) {
      update_->complete(key, squares);
    };
    gradients_ = std::make_unique<update::GradientAccumulator<T>>(map_, *link_, *device_, *stream_,
                                                                  subgroups_, std::move(gradients));
    auto shape =
        update_shape<T>(config_, map_.shard_elements(comm_.rank()), memory_.subgroup_elements);
    shape.workers = workers();
    update_ =
        std::make_unique<SharedUpdate>(config_, shape, *device_, model_->idle_memory(), subgroups_,
                                       *offload_, trace_.get(), device_memory_.get());
    // Last: of what is left.
    if (Bytes const room = room_for_gradients(shape, 0); room > 0) {
      held_ = std::make_unique<update::HeldGradients>(*device_, room, shape.gradient_bytes,
                                                      subgroups_, device_memory_.get());
      gradients_->set_held(held_.get());
      update_->set_held(*held_);
    }
  });
  overlap_.emplace(make_overlap());
  // Last: from now on the copy's end has to come before the update's, which the destructor sees to.
  copy_->set_readiness(&update_->readiness());
}

// Threads know of each other's owners: trips of gradients and parameters, what ends gradients' leases of the
// update, what brings parameters of its readiness; and if backward has failed, trips may wait for a gradient's
// buffer that backward has.
template <class T>
StepRunner<T>::~StepRunner() {
  link_->end();  // no stream waits for another rank any more
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
OverlapChoice StepRunner<T>::make_overlap() const {
  mpi::agree(comm_, [&] {
    if (config_.overlap == Overlap::on && !update_->can_begin_ahead()) {
      throw UsageError{
          "update.overlap=on: the device's update (update.device-share, update.device-chunk) has "
          "found room in the memory of activations alone, which backward needs; raise "
          "device.memory, lower update.device-chunk, or set update.overlap=auto"};
    }
  });
  // A rank whose subgroups all stay in host memory may have no spares where others gain by theirs.
  bool const gains = comm_.maximum(offload_->spares()) > 0 || config_.overlap == Overlap::on;
  bool const possible = comm_.minimum(update_->can_begin_ahead() ? 1 : 0) > 0;
  return {config_.overlap, gains && possible};
}

template <class T>
int StepRunner<T>::count_parameter_slots() const {
  Bytes const free = device_->capacity() - device_->used() - device_bytes_beside();
  return static_cast<int>(
      comm_.minimum(train::parameter_slots<T>(config_, map_, device_->host_visible(), free)));
}

template <class T>
launch::Needs StepRunner<T>::needs_of(mpi::Communicator const& node) const {
  launch::Needs needs;
  needs.allocation =
      memory_.node_total + ranks_on_node_ * (device_bytes_to_come() - gathering_bytes());
  needs.host_memory = node.sum(memory::private_bytes()) + needs.allocation;
  needs.aio_requests = aio::EngineSettings{}.queue_depth;  // the checkpoint's
  for (tiers::PathSettings const& path : config_.paths) {
    needs.aio_requests += static_cast<std::int64_t>(path.lanes()) * path.engine.queue_depth;
    needs.storage_paths.push_back(path.directory);
  }
  return needs;
}

template <class T>
Bytes StepRunner<T>::gathering_bytes() const {
  return config_.parameter_home == parameters::Home::device
             ? state::WorkingCopy<T>::host_bytes(map_, link_->route())
             : 0;
}

template <class T>
Bytes StepRunner<T>::device_bytes_to_come() const {
  if (device_->kind() != device::Kind::host) {
    return 0;
  }
  auto const shape = update_shape<T>(config_, map_.shard_elements(0), config_.subgroup_size);
  Bytes const bytes = device_bytes_beside() +
                      parameters::StreamedParameters<T>::device_bytes(map_, parameter_slots_);
  return bytes + room_for_gradients(shape, bytes);
}

template <class T>
Bytes StepRunner<T>::device_bytes_beside() const {
  Bytes bytes = 12 * resident_elements(config_, map_, 0);
  bytes += update::GradientAccumulator<T>::device_bytes(map_, 0, link_->route());
  if (needs_lane(config_, device_->host_visible())) {
    std::int64_t const shard = map_.shard_elements(0);
    auto const shape = update_shape<T>(config_, shard, std::min(shard, config_.subgroup_size));
    bytes += update::DeviceLane::device_bytes(lane_settings(config_, shape));
  }
  return bytes;
}

template <class T>
Bytes StepRunner<T>::room_for_gradients(UpdateShape const& shape, Bytes taken) const {
  Bytes const free = device_->capacity() - device_->used() - taken -
                     update::HeldGradients::norm_bytes(shape.elements);
  return gradient_room(config_, device_->host_visible(), most_gradients(config_, shape),
                       std::max<Bytes>(0, free));
}

template <class T>
std::unique_ptr<trace::Trace> StepRunner<T>::make_trace() const {
  if (!config_.trace) {
    return nullptr;
  }
  return std::make_unique<trace::Trace>(
      fmt::format("{}/trace-{}.json", config_.run_dir, comm_.rank()), comm_.rank(),
      cpu::host_name(), trace::Trace::default_bytes, trace::Trace::Begin::later);
}

// The tables of RoPE, kilobytes that stay, count as activations.
template <class T>
std::unique_ptr<update::DeviceMemory> StepRunner<T>::make_device_memory() {
  if (!trace_) {
    return nullptr;
  }
  auto const demand = device_demand<T>(config_, map_, comm_.rank(), link_->route(),
                                       memory_.subgroup_elements, link_->device_bytes());
  activation_bytes_ = demand.model;
  auto memory = std::make_unique<update::DeviceMemory>(*trace_);
  memory->keep(update::DeviceMemory::User::parameters, demand.working_copy);
  memory->keep(update::DeviceMemory::User::resident_state, demand.resident);
  return memory;
}

template <class T>
void StepRunner<T>::tell_of_activations(trace::Clock::time_point from) {
  if (device_memory_) {
    device_memory_->used(update::DeviceMemory::User::activations, activation_bytes_, from,
                         trace::Clock::now());
  }
}

template <class T>
void StepRunner<T>::open_trace() {
  if (trace_) {
    trace_->open();
  }
}

template <class T>
Bytes StepRunner<T>::host_memory_peak() const {
  Bytes const arena = device_->kind() == device::Kind::host ? device_->peak() : 0;
  return comm_.split_by_node().sum(memory::peak_resident_bytes() - resident_before_ - arena);
}

template <class T>
std::vector<std::string> StepRunner<T>::memory_table() const {
  auto const rows = memory_rows(
      config_, {.plan = memory_,
                .device = device_demand<T>(config_, map_, comm_.rank(), link_->route(),
                                           memory_.subgroup_elements, link_->device_bytes()),
                .shard_elements = map_.shard_elements(comm_.rank()),
                .gradient_bytes = accumulated_bytes<T>(config_),
                .parameter_bytes = static_cast<Bytes>(sizeof(T)),
                .spare_slots = offload_->spares() - memory_.spares});
  return train::memory_table(
      rows, {.device = config_.device.memory, .host = host_memory_limit_ / ranks_on_node_});
}

template <class T>
checkpoint::OnSubgroup StepRunner<T>::fill_working_copy() {
  return [this](state::Subgroup const& subgroup, std::span<float const> parameter) {
    copy_->fill(subgroup, parameter);
  };
}

template <class T>
void StepRunner<T>::initialize(state::ParameterReader* first_weights) {
  mpi::agree(comm_, [&] {
    make_first_state(map_, subgroups_, config_.train.seed, first_weights, tiers(),
                     fill_working_copy());
  });
}

template <class T>
StepResult StepRunner<T>::step(data::Dataset const& data, std::int64_t first_sample,
                               double learning_rate, std::int64_t optimizer_step,
                               double loss_scale) {
  Now const now{learning_rate, optimizer_step, loss_scale, first_sample};
  StepResult result;
  Stopwatch const whole;
  tiers::Traffic const before = offload_->state().traffic();  // of the paths, whoever uses them
  run_micro_batches(data, now, result);
  Stopwatch watch;
  double const divisor = loss_scale * static_cast<double>(micro_batches_);
  result.grad_norm = gradients_->norm() *
                     targets_per_counted(config_.train, micro_batches_, result.counted_targets) /
                     divisor;
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  update_state(now, result);
  result.update = watch.elapsed();
  tiers::Traffic const after = offload_->state().traffic();
  result.read_bytes = after.read_bytes() - before.read_bytes();
  result.write_bytes = after.write_bytes() - before.write_bytes();
  result.storage = difference(before, after,
                              {.paths = config_.paths,
                               .residence = offload_->state().residence(),
                               .workers = workers(),
                               .nodes = nodes_,
                               .seconds = whole.elapsed()});
  overlap_->learn(
      {.overlapped = result.share.overlapped,
       .redone = result.skipped || clip_factor(config_.optimizer, result.grad_norm) < 1.0,
       .seconds = whole.elapsed()});
  return result;
}

template <class T>
void StepRunner<T>::run_micro_batches(data::Dataset const& data, Now const& now,
                                      StepResult& result) {
  std::int64_t const batch = config_.train.micro_batch;
  std::vector<double> losses;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(batch));
  gradients_->begin_step();
  Stopwatch watch;
  copy_->begin();
  copy_->expect(micro_batch_layers_);
  // Round by round: micro-batch g is run by rank g mod R. In the last round some ranks may be idle;
  // they still take part in gathers and exchanges.
  for (std::int64_t first = 0; first < micro_batches_; first += comm_.size()) {
    auto const active =
        static_cast<int>(std::min<std::int64_t>(comm_.size(), micro_batches_ - first));
    bool const last = first + comm_.size() >= micro_batches_;
    if (!last) {
      copy_->expect(micro_batch_layers_);  // its first layers come under this round's backward
    }
    bool const is_active = comm_.rank() < active;
    auto const began = trace::Clock::now();
    if (is_active) {
      std::int64_t const sample = now.first_sample + (first + comm_.rank()) * batch;
      for (std::int64_t i = 0; i < batch; ++i) {
        chosen[static_cast<std::size_t>(i)] = data.shuffled(sample + i, config_.train.seed);
      }
      auto const tokens = data.batch(chosen);
      result.counted_targets += data::counted_targets(tokens);
      trace::Scope const scope{trace_.get(), "model", "forward"};
      losses.push_back(model_->forward(tokens, *copy_, now.loss_scale));
    } else {
      model_->idle_forward(*copy_);
    }
    result.forward += watch.lap();
    begin_gradients(active, first == 0, last);
    if (first == 0 && device_memory_) {
      device_memory_->write(began);  // the update before has ended
    }
    if (last) {
      agree_on_loss(losses, result);
      begin_ahead(now, result);
    }
    if (is_active) {
      trace::Scope const scope{trace_.get(), "model", "backward"};
      model_->backward(*copy_, *gradients_);
      tell_of_activations(began);
    } else {
      model_->idle_backward(*copy_, *gradients_);
    }
    gradients_->end_round();
    result.backward += watch.lap();
  }
}

template <class T>
void StepRunner<T>::agree_on_loss(std::span<double const> losses, StepResult& result) {
  result.counted_targets = comm_.sum(result.counted_targets);
  result.loss = mean_in_order(comm_, losses, micro_batches_) *
                targets_per_counted(config_.train, micro_batches_, result.counted_targets);
}

template <class T>
void StepRunner<T>::begin_gradients(int active, bool first, bool last) {
  if (first) {
    update_->finish();  // it may still read those of the step before
    ahead_ = comm_.broadcast_value(overlap_->next(), 0);
    update_->plan(ahead_);
  }
  gradients_->begin_round(active, last);
}

template <class T>
double StepRunner<T>::gradient_scale(Now const& now, StepResult const& result) const {
  return targets_per_counted(config_.train, micro_batches_, result.counted_targets) /
         (now.loss_scale * static_cast<double>(micro_batches_));
}

template <class T>
kernels::AdamwStep StepRunner<T>::adamw(Now const& now, StepResult const& result,
                                        double clip) const {
  return adamw_step(config_.optimizer, now.learning_rate, now.optimizer_step,
                    clip * gradient_scale(now, result));
}

template <class T>
update::GradientSource StepRunner<T>::gradient_source() {
  return [this](state::Subgroup const& subgroup) { return gradients_->fetch(subgroup); };
}

template <class T>
update::ParameterTargets StepRunner<T>::parameter_targets() {
  return [this](state::Subgroup const& subgroup) { return copy_->target(subgroup); };
}

template <class T>
void StepRunner<T>::begin_ahead(Now const& now, StepResult const& result) {
  if (!ahead_ || !std::isfinite(result.loss)) {
    return;
  }
  update_->begin_ahead(adamw(now, result, 1.0),
                       most_squares(config_.optimizer, gradient_scale(now, result)),
                       gradient_source(), parameter_targets());
}

template <class T>
void StepRunner<T>::update_state(Now const& now, StepResult& result) {
  double const clip = clip_factor(config_.optimizer, result.grad_norm);
  bool const began = update_->is_ahead();
  if (began && !result.skipped && clip == 1.0) {
    result.share = update_->confirm();
    result.share.overlapped = true;
    offload_->follow_rates();
    return;
  }
  std::vector<tiers::Key> reverted;
  if (began) {
    reverted = update_->take_back();
  }
  if (result.skipped) {
    rebuild_parameters(reverted);
    update_->readiness().finish();
  } else {
    gradients_->begin_update();
    result.share = update_->run(adamw(now, result, clip), gradient_source(), parameter_targets());
    offload_->follow_rates();
  }
  result.share.overlapped = began;
  result.share.redone = began;
}

template <class T>
void StepRunner<T>::rebuild_parameters(std::span<tiers::Key const> subgroups) {
  auto const write = fill_working_copy();
  for (tiers::Key const key : subgroups) {
    state::Subgroup const& subgroup = subgroups_[static_cast<std::size_t>(key)];
    auto const lease = tiers().fetch(key);
    auto const* const parameter = reinterpret_cast<float const*>(lease.bytes().data());
    write(subgroup, {parameter, static_cast<std::size_t>(subgroup.size)});
  }
}

template <class T>
double StepRunner<T>::validate(data::Dataset const& data, std::int64_t micro_batches) {
  std::int64_t const batch = config_.train.micro_batch;
  std::vector<double> losses;
  std::int64_t counted = 0;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(batch));
  copy_->begin();
  copy_->expect(forward_layers_);
  for (std::int64_t first = 0; first < micro_batches; first += comm_.size()) {
    if (first + comm_.size() < micro_batches) {
      copy_->expect(forward_layers_);
    }
    std::int64_t const mine = first + comm_.rank();
    if (mine < micro_batches) {
      for (std::int64_t i = 0; i < batch; ++i) {
        // A short file is shown from its start again rather than not at all.
        chosen[static_cast<std::size_t>(i)] = (mine * batch + i) % data.windows();
      }
      auto const tokens = data.batch(chosen);
      counted += data::counted_targets(tokens);
      auto const began = trace::Clock::now();
      losses.push_back(model_->evaluate(tokens, *copy_));
      tell_of_activations(began);
    } else {
      model_->idle_forward(*copy_);
    }
  }
  return mean_in_order(comm_, losses, micro_batches) *
         targets_per_counted(config_.train, micro_batches, comm_.sum(counted));
}

template class StepRunner<float>;
template class StepRunner<bfloat16>;
template class StepRunner<float16>;

}  // namespace offstage::train
