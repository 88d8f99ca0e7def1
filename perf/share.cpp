// Updates shared by cores and a device, without a model: one rank, the state in host memory, the
// device emulated (device.emulate) or, with device.kind=cuda, the first GPU. One configuration per
// call; share.py and gpu.py call it for one policy and share after the other.
//
//   perf_share probe [numerics.dtype=..] [device.KEY=..]
//   perf_share link [device.KEY=..]
//   perf_share kernel [parameters=N] [steps=N] [device.KEY=..]
//   perf_share update [parameters=N] [subgroup=N] [steps=N] [pass-seconds=X] [numerics.dtype=..]
//   [device.KEY=..]
//                     [update.KEY=..] [platform.KEY=..] [run.trace=FILE]
//
// probe: rates under the names of their platform.* keys. link: bytes per second, and the device's
// name. kernel: AdamW on the device (bf16 gradients in, bf16 parameters out) and the sum of a bf16
// gradient in FP32, in turns with a copy within its memory, over the same memory; steps: rounds.
// update: the steps' seconds, shares and expectations, without the first step, which touches memory
// for the first time; pass-seconds: of sleep in the place of forward, and twice that of backward.
// Each ends with one line of JSON.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "parameters/working_parameters.hpp"
#include "phase_shape.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/mpi/session.hpp"
#include "probe/measure.hpp"
#include "probe/median.hpp"
#include "state/rank_link.hpp"
#include "train/offload/offload.hpp"
#include "train/step/make_lane.hpp"
#include "train/step/step_update.hpp"
#include "update/gradients/accumulator.hpp"

namespace offstage {
namespace {

constexpr int layers = 16;

bool on_gpu(config::RunConfig const& config) {
  return config.device.kind == config::DeviceKind::cuda;
}

std::unique_ptr<device::Device> make_device(config::RunConfig const& config) {
  return on_gpu(config) ? device::make_cuda_device(0, config.device.memory)
                        : device::make_host_device(config.device.memory, config.device.emulation);
}

/// What one step took: the update as the cores see it, and all until the next step may begin.
struct StepTime {
  double update{}, iteration{};
  double share{}, expected{};
};

/// A run's part that updates, in the place of train::StepRunner.
class Phase {
 public:
  Phase(PhaseShape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
        trace::Trace* trace);
  StepTime step();

 private:
  void fill_gradient();
  void pass_forward();
  void pass_backward();

  PhaseShape const& shape_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<state::RankLink> link_;
  state::ShardMap map_;
  std::vector<state::Subgroup> subgroups_;
  parameters::DeviceParameters<bfloat16> copy_;
  device::Buffer gradient_;
  train::Offload offload_;
  std::unique_ptr<update::GradientAccumulator<bfloat16>> gradients_;
  std::unique_ptr<update::DeviceLane> lane_;
  std::optional<train::StepUpdate<bfloat16>> update_;
  train::UpdateNumbers numbers_{.learning_rate = 1e-3, .gradient_scale = 1.0};
};

Phase::Phase(PhaseShape const& shape, config::RunConfig const& config,
             mpi::Communicator const& comm, trace::Trace* trace)
    : shape_{shape},
      device_{make_device(config)},
      stream_{device_->make_calling_stream("compute")},
      link_{state::make_mpi_link(
          comm, device_->host_visible() ? state::Route::in_place : state::Route::staged)},
      map_{make_layers(layers, shape.parameters / layers), 1},
      subgroups_{state::subgroups_of(
          map_, 0, shape.subgroup,
          std::llround(config.share.device_resident * static_cast<double>(shape.parameters)))},
      copy_{map_, *link_, *device_, *stream_},
      gradient_{device_->allocate(2 * map_.largest_layer(), "a layer's gradient")},
      offload_{config, comm, trace} {
  fill_gradient();
  offload_.allocate(subgroups_, plan::MemoryPlan{}, sizeof(bfloat16), *device_);
  gradients_ = std::make_unique<update::GradientAccumulator<bfloat16>>(
      map_, *link_, *device_, *stream_, subgroups_, offload_.take_gradients(false));
  train::UpdateShape const update{.elements = shape.parameters,
                                  .subgroup_elements = shape.subgroup,
                                  .gradient_bytes = 2,
                                  .parameter_bytes = 2,
                                  .workers = 4};
  lane_ = train::make_lane(config, update, *device_, {}, trace);
  update_.emplace(config, comm, update,
                  train::StepUpdate<bfloat16>::Parts{.device = *device_,
                                                     .subgroups = subgroups_,
                                                     .offload = offload_,
                                                     .gradients = *gradients_,
                                                     .copy = copy_,
                                                     .lane = lane_.get()},
                  trace);
  for (auto const& subgroup : subgroups_) {
    auto lease = offload_.state().create(subgroup.index);
    std::ranges::fill(lease.mutable_bytes(), std::byte{0});
    lease.commit();
  }
}

/// The host touches no device memory but by copies.
void Phase::fill_gradient() {
  std::vector<bfloat16> const values(gradient_.as<bfloat16>().size(), to_bf16(0.01F));
  stream_->copy(gradient_.as<bfloat16>().data(), values.data(), gradient_.size(),
                device::Copy::host_to_device);
  stream_->synchronize();
}

/// A layer is computed once its parameters are there.
void Phase::pass_forward() {
  for (int layer = 0; layer < layers; ++layer) {
    state::HeldLayer<bfloat16> const held{copy_, layer, *stream_};
    std::this_thread::sleep_for(shape_.pass / layers);
  }
}

void Phase::pass_backward() {
  for (int layer = layers - 1; layer >= 0; --layer) {
    std::this_thread::sleep_for(2 * shape_.pass / layers);
    auto const size =
        static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
    gradients_->add(layer, gradient_.as<bfloat16>().first(size));
  }
}

StepTime Phase::step() {
  Stopwatch watch;
  gradients_->begin_step();
  pass_forward();
  update_->plan(watch);
  gradients_->begin_round(1, true);
  pass_backward();
  gradients_->end_round();
  static_cast<void>(gradients_->norm());
  ++numbers_.optimizer_step;
  Stopwatch const update;
  auto const shared = update_->make(numbers_, 1.0, false);
  // Without a forward that hides the rest, the update lasts until all of it is done.
  if (shape_.pass == Seconds{}) {
    update_->finish();
  }
  return {update.elapsed().count(), watch.elapsed().count(), shared.share, shared.expected.count()};
}

/// A real device or its host takes more to be measured in earnest: more than its caches hold.
probe::Effort effort_for(config::RunConfig const& config, Bytes more_than_caches) {
  return on_gpu(config) ? probe::Effort{.bytes = more_than_caches, .rounds = 5}
                        : probe::Effort{.bytes = 16 * MiB, .rounds = 3};
}

probe::Effort device_effort(config::RunConfig const& config) {
  return effort_for(config, 256 * MiB);
}

int measure_rates(config::RunConfig const& config) {
  auto const host_effort = effort_for(config, GiB);
  auto const device = make_device(config);
  auto const link = probe::measure_link(*device, device_effort(config));
  auto const dtype = config.numerics.dtype;
  fmt::print(
      "{{\"cpu-update\": {:.0f}, \"device-update\": {:.0f}, \"host-to-device\": {:.0f}, "
      "\"device-to-host\": {:.0f}, \"host-to-device-both\": {:.0f}, \"device-to-host-both\": "
      "{:.0f}",
      probe::measure_cpu_update(dtype, config.device.emulation, host_effort),
      probe::measure_device_update(*device, dtype, device_effort(config)), link.to_device,
      link.to_host, link.to_device_both, link.to_host_both);
  if (on_gpu(config)) {
    // An emulated device is slower than the memory that it lies in.
    fmt::print(", \"host-memory\": {:.0f}", probe::measure_host_memory(host_effort));
  }
  fmt::print("}}\n");
  return 0;
}

int measure_link(config::RunConfig const& config) {
  auto const device = make_device(config);
  auto const link = probe::measure_link(*device, device_effort(config));
  fmt::print(
      "{{\"device\": \"{}\", \"device_bytes\": {}, \"to_device\": {:.0f}, \"to_host\": {:.0f}, "
      "\"to_device_both\": {:.0f}, \"to_host_both\": {:.0f}, \"to_device_pageable\": {:.0f}, "
      "\"to_host_pageable\": {:.0f}}}\n",
      device->name(), device->capacity(), link.to_device, link.to_host, link.to_device_both,
      link.to_host_both, link.to_device_pageable, link.to_host_pageable);
  return 0;
}

/// Seconds of what `work` queues on the stream, by the stream's own events.
template <class Work>
Seconds time_on(device::Stream& stream, Work&& work) {
  auto const begin = stream.record();
  work();
  auto const end = stream.record();
  return end->when() - begin->when();
}

/// Rates of a kernel, one for each round, and their ratios to the rate of that round's copy.
struct Rates {
  std::vector<double> bytes_per_second, vs_copy;
  void add(double rate, double copy) {
    bytes_per_second.push_back(rate);
    vs_copy.push_back(rate / copy);
  }
};

/// AdamW, the sum of gradients and their sums of squares on the device, each in turns with a copy
/// from one half of the same memory to the other.
int measure_kernel(PhaseShape const& shape, config::RunConfig const& config) {
  auto const device = make_device(config);
  auto const stream = device->make_calling_stream("kernel");
  auto const count = static_cast<std::size_t>(shape.parameters);
  auto const memory = device->allocate(shape.parameters * 16, "the kernel's operands");
  auto const bytes = memory.as<std::byte>();
  {
    // Numbers whose bits differ, as those of a model do.
    memory::HugeBuffer const host{memory.size()};
    auto const planes = host.as<float>().first(3 * count);
    for (std::size_t i = 0; i < planes.size(); ++i) {
      planes[i] = static_cast<float>(i % 1021 + 1) * 1e-5F;
    }
    auto const halves = host.as<bfloat16>().subspan(6 * count);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      halves[i] = store<bfloat16>(planes[i]);
    }
    stream->copy(bytes.data(), host.bytes().data(), memory.size(), device::Copy::host_to_device);
    stream->synchronize();
  }
  auto const floats = memory.as<float>();
  auto const numbers = memory.as<bfloat16>().subspan(6 * count);
  auto const plane = [&](std::size_t index) {
    return reinterpret_cast<std::byte*>(floats.data() + index * count);
  };
  StateLayout const layout = adamw_layout();
  kernels::OptimizerPart const part{.planes = {plane(0), plane(1), plane(2)},
                                    .gradient = std::span<bfloat16 const>{numbers.first(count)},
                                    .working_copy = numbers.subspan(count, count),
                                    .elements = shape.parameters,
                                    .decayed = shape.parameters};
  kernels::OptimizerStep step{.learning_rate = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .epsilon = 1e-8,
                              .weight_decay = 0.1,
                              .gradient_scale = 1.0};
  kernels::Accumulate<float, bfloat16> const sum{
      .accumulator = floats.first(count), .gradient = numbers.first(count), .first = false};
  // The sums of squares go to the working copy's memory.
  kernels::ChunkNorms<float> const norms{
      floats.first(count),
      {reinterpret_cast<double*>(numbers.data() + count),
       (count + chunk_elements - 1) / static_cast<std::size_t>(chunk_elements)}};
  auto const half = static_cast<Bytes>(bytes.size() / 2);
  probe::Effort const once{.bytes = 0, .rounds = 1};
  auto const rate_of = [&](double traffic, auto const& work) {
    return probe::median_rate(once, traffic, [&](int passes) {
      return time_on(*stream, [&] {
        for (int i = 0; i < passes; ++i) {
          work();
        }
      });
    });
  };
  constexpr double update_traffic = 28.0;
  constexpr double sum_traffic = 10.0;
  constexpr double norm_traffic = 4.0;
  auto const elements = static_cast<double>(count);
  Rates updates;
  Rates sums;
  Rates squares;
  std::vector<double> copies;
  for (int round = 0; round < shape.steps; ++round) {
    double const copy = rate_of(2.0 * static_cast<double>(half), [&] {
      stream->copy(bytes.data() + half, bytes.data(), half, device::Copy::device_to_device);
    });
    copies.push_back(copy);
    updates.add(rate_of(update_traffic * elements,
                        [&] {
                          ++step.step;
                          kernels::optimize(*stream, layout, part, step);
                        }),
                copy);
    sums.add(rate_of(sum_traffic * elements, [&] { kernels::accumulate(*stream, sum); }), copy);
    squares.add(rate_of(norm_traffic * elements, [&] { kernels::chunk_norms(*stream, norms); }),
                copy);
  }
  double const update = probe::median(updates.bytes_per_second);
  fmt::print(
      "{{\"parameters_per_second\": {:.0f}, \"update_bytes_per_second\": {:.0f}, "
      "\"accumulate_bytes_per_second\": {:.0f}, \"copy_bytes_per_second\": {:.0f}, "
      "\"norm_bytes_per_second\": {:.0f}, "
      "\"update_vs_copy\": {:.4f}, \"accumulate_vs_copy\": {:.4f}, \"norm_vs_copy\": {:.4f}}}\n",
      update / update_traffic, update, probe::median(sums.bytes_per_second), probe::median(copies),
      probe::median(squares.bytes_per_second), probe::median(updates.vs_copy),
      probe::median(sums.vs_copy), probe::median(squares.vs_copy));
  return 0;
}

/// The least time over all shares with these rates, without the pipeline's fill and drain; 0:
/// unknown.
double bound_of(PhaseShape const& shape, config::RunConfig const& config) {
  if (config.platform.cpu_update <= 0.0) {
    return 0.0;
  }
  plan::UpdateDemand const demand{.elements = shape.parameters,
                                  .resident = config.share.device_resident};
  return plan::update_times(demand, config.platform, plan::best_share(demand, config.platform))
      .total.count();
}

int measure_updates(PhaseShape const& shape, config::RunConfig const& config) {
  auto const comm = mpi::Communicator::self();
  std::unique_ptr<trace::Trace> trace;
  if (!shape.trace.empty()) {
    trace = std::make_unique<trace::Trace>(shape.trace, 0, "share");
  }
  Phase phase{shape, config, comm, trace.get()};
  static_cast<void>(phase.step());
  std::vector<double> updates;
  std::vector<double> iterations;
  std::vector<double> shares;
  std::vector<double> expected;
  for (int step = 0; step < shape.steps; ++step) {
    auto const time = phase.step();
    updates.push_back(time.update);
    iterations.push_back(time.iteration);
    shares.push_back(time.share);
    expected.push_back(time.expected);
  }
  fmt::print(
      "{{\"update_seconds\": [{:.4f}], \"iteration_seconds\": [{:.4f}], \"share\": [{:.4f}], "
      "\"expected_seconds\": [{:.4f}], \"bound_seconds\": [{:.4f}]}}\n",
      fmt::join(updates, ", "), fmt::join(iterations, ", "), fmt::join(shares, ", "),
      fmt::join(expected, ", "), bound_of(shape, config));
  return 0;
}

int run(std::vector<std::string> const& arguments) {
  require(!arguments.empty(), "usage: perf_share probe|link|kernel|update [KEY=VALUE]...");
  PhaseShape shape;
  config::RunConfig config;
  config.run_dir = "share";
  config.numerics.dtype = DType::bf16;
  config.share.device_chunk = std::int64_t{64} * 1024;
  config.overlap = config::Switch::off;
  for (std::string const& argument : std::span{arguments}.subspan(1)) {
    auto const [key, value] = split_argument(argument);
    set(shape, config, key, value);
  }
  require(shape.parameters > 0 && shape.subgroup > 0 && shape.steps > 0,
          "parameters, subgroup and steps are above 0");
  std::string const& mode = arguments.front();
  if (mode == "probe") {
    return measure_rates(config);
  }
  if (mode == "link") {
    return measure_link(config);
  }
  if (mode == "kernel") {
    return measure_kernel(shape, config);
  }
  require(mode == "update", "usage: perf_share probe|link|kernel|update [KEY=VALUE]...");
  return measure_updates(shape, config);
}

}  // namespace
}  // namespace offstage

int main(int argc, char** argv) {
  offstage::mpi::Session const session;
  try {
    return offstage::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_share: {}\n", error.what());
    return 1;
  }
}
