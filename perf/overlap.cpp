// A step whose update begins under backward (update.overlap=on) or after it (off), without a model:
// one rank, the state on storage paths, the device a stand-in that sleeps. One configuration per
// call; overlap.py calls it for one machine after the other.
//
//   perf_overlap [parameters=N] [layers=N] [subgroup=N] [steps=N] [pass-seconds=X] [buffers=N]
//   [cached-share=X]
//                [update.overlap=on|off] [clipped=yes] [numerics.dtype=..] [device.KEY=..]
//                [tiers.KEY=..] [run.trace=FILE]
//
// pass-seconds: of sleep in the place of forward, in equal parts for the layers, and twice that of
// backward; a layer's forward waits for its parameters, and its gradient goes the model's way after
// its backward. buffers: extents in flight, and workers. cached-share: of the state, that stays in
// host memory. clipped: in every step the norm is above the limit, which shows when all of backward
// has ended, so that an update under it is taken back and done again. Ends with one line of JSON:
// the steps' seconds without the first step, and per step what each resource would need alone.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/pacer.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "phase_shape.hpp"
#include "plan/split.hpp"
#include "platform/mpi/session.hpp"
#include "processor_time.hpp"
#include "state/rank_link.hpp"
#include "state/working_copy.hpp"
#include "tests/update/targets_in.hpp"
#include "train/offload/offload.hpp"
#include "train/step/make_lane.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/update.hpp"

namespace offstage {
namespace {

struct Shape : PhaseShape {
  std::int64_t layers = 40;
  int buffers = 0;  ///< 0: as many as a run plans on these paths
  double cached_share = 0.0;
  bool clipped = false;
};

void set(Shape& shape, config::RunConfig& config, std::string const& argument) {
  auto const [key, value] = split_argument(argument);
  if (key == "layers") {
    shape.layers = parse_count(value);
  } else if (key == "buffers") {
    shape.buffers = std::stoi(value);
  } else if (key == "cached-share") {
    shape.cached_share = std::stod(value);
  } else if (key == "clipped") {
    shape.clipped = value == "yes";
  } else {
    set(shape, config, key, value);
  }
}

/// Steps of a run, in the place of train::StepRunner.
class Steps {
 public:
  Steps(Shape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
        trace::Trace* trace);
  ~Steps();
  Steps(Steps const&) = delete;
  Steps& operator=(Steps const&) = delete;

  Seconds step();
  /// What the last step left under way.
  void finish();
  [[nodiscard]] tiers::Traffic traffic() { return offload_.state().traffic(); }
  [[nodiscard]] std::vector<plan::PathRate> rates() const { return offload_.rates(); }
  /// Inside AdamW on the cores, of updates that have ended.
  [[nodiscard]] Seconds computed() const noexcept { return computed_; }
  /// Subgroups that were updated before the norm was known, likewise.
  [[nodiscard]] std::int64_t tried() const noexcept { return tried_; }
  /// The stand-in's.
  [[nodiscard]] Seconds device_busy() const noexcept { return device_busy_; }

 private:
  void make_parts();
  void create_state();
  /// The stand-in for what the device computes of a layer.
  void compute(char const* what, int layer, Seconds time);
  void pass_forward();
  void pass_backward();
  void end_update();
  void count(update::UpdateStats const& stats);

  Shape const& shape_;
  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  bool early_;
  trace::Trace* trace_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<state::RankLink> link_;
  state::ShardMap map_;
  std::vector<state::Subgroup> subgroups_;
  state::WorkingCopy<bfloat16> copy_;
  device::Buffer gradient_;
  train::Offload offload_;
  std::unique_ptr<update::DeviceLane> lane_;
  std::unique_ptr<update::GradientAccumulator<bfloat16>> gradients_;
  std::unique_ptr<update::Update> update_;
  Pacer pacer_{1.0};  ///< a unit is a second of the device
  Seconds device_busy_{};
  Seconds computed_{};
  std::int64_t tried_ = 0;
  kernels::OptimizerStep optimizer_step_{.learning_rate = 1e-3,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .epsilon = 1e-8,
                                         .weight_decay = 0.1,
                                         .gradient_scale = 1.0};
};

Steps::Steps(Shape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
             trace::Trace* trace)
    : shape_{shape},
      config_{config},
      comm_{comm},
      early_{config.overlap == config::Switch::on},
      trace_{trace},
      device_{device::make_host_device(0, config.device.emulation)},
      stream_{device_->make_calling_stream("compute")},
      link_{state::make_mpi_link(
          comm, device_->host_visible() ? state::Route::in_place : state::Route::staged)},
      map_{make_layers(shape.layers, shape.parameters / shape.layers), 1},
      subgroups_{state::subgroups_of(map_, 0, shape.subgroup)},
      copy_{map_, *link_, *device_, *stream_},
      gradient_{device_->allocate(2 * map_.largest_layer(), "a layer's gradient")},
      offload_{config, comm, trace} {
  // The host touches no device memory but by copies.
  std::vector<bfloat16> const values(gradient_.as<bfloat16>().size(), to_bf16(0.01F));
  stream_->copy(gradient_.as<bfloat16>().data(), values.data(), gradient_.size(),
                device::Copy::host_to_device);
  stream_->synchronize();
  make_parts();
  create_state();
}

void Steps::make_parts() {
  plan::MemoryPlan plan;
  plan.buffers = shape_.buffers;
  plan.cached =
      static_cast<std::int64_t>(shape_.cached_share * static_cast<double>(subgroups_.size()));
  offload_.allocate(subgroups_, plan, sizeof(bfloat16), *device_);
  train::UpdateShape const update{.elements = shape_.parameters,
                                  .subgroup_elements = shape_.subgroup,
                                  .gradient_bytes = sizeof(bfloat16),
                                  .parameter_bytes = sizeof(bfloat16),
                                  .workers = shape_.buffers};
  lane_ = train::make_lane(config_, update, *device_, {}, trace_);
  update::GradientSettings gradients = offload_.take_gradients(false);
  gradients.trace = trace_;
  gradients_ = std::make_unique<update::GradientAccumulator<bfloat16>>(
      map_, *link_, *device_, *stream_, subgroups_, std::move(gradients));
  update_ = std::make_unique<update::Update>(
      update::UpdateParts{
          .subgroups = subgroups_,
          .state = offload_.state(),
          .gradient =
              [this](state::Subgroup const& subgroup) { return gradients_->fetch(subgroup); },
          .target = parameters::targets_in(copy_.shard()),
          .device = lane_.get()},
      update::UpdateSettings{.workers = shape_.buffers,
                             .host_update_rate = config_.device.emulation.host_update,
                             .trace = trace_});
  gradients_->set_receiver(update_.get());
  copy_.set_readiness(&update_->readiness());
}

// Trips and the threads of the gradients know of each other.
Steps::~Steps() {
  gradients_->abandon();
  update_->abandon();
}

void Steps::create_state() {
  for (auto const& subgroup : subgroups_) {
    auto lease = offload_.state().create(subgroup.index);
    std::ranges::fill(lease.mutable_bytes(), std::byte{0});
    lease.commit();
  }
}

void Steps::compute(char const* what, int layer, Seconds time) {
  trace::Scope const scope{trace_, "device (stand-in)", what, layer};
  pacer_.run(time.count(), [] {});
  device_busy_ += time;
}

void Steps::pass_forward() {
  Seconds const time = shape_.pass / static_cast<double>(shape_.layers);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    state::HeldLayer<bfloat16> const held{copy_, layer, *stream_};
    compute("forward", layer, time);
  }
}

void Steps::pass_backward() {
  Seconds const time = 2 * shape_.pass / static_cast<double>(shape_.layers);
  for (int layer = static_cast<int>(shape_.layers) - 1; layer >= 0; --layer) {
    {
      state::HeldLayer<bfloat16> const held{copy_, layer, *stream_};
      compute("backward", layer, time);
    }
    auto const size =
        static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
    gradients_->add(layer, gradient_.as<bfloat16>().first(size));
  }
}

std::vector<update::Trip> trips_of(std::vector<std::int64_t> const& order) {
  std::vector<update::Trip> trips;
  trips.reserve(order.size());
  for (std::int64_t const index : order) {
    trips.push_back({index, false});
  }
  return trips;
}

void Steps::end_update() {
  bool const early = update_->is_early();
  if (early && !shape_.clipped) {
    count(update_->confirm());
  } else {
    if (early) {
      static_cast<void>(update_->revert());
    }
    gradients_->begin_update();
    count(update_->run(optimizer_step_));
  }
  offload_.follow_rates();
}

void Steps::finish() {
  count(update_->finish());
}

void Steps::count(update::UpdateStats const& stats) {
  computed_ += stats.compute;
  tried_ += stats.tried;
}

Seconds Steps::step() {
  Stopwatch const watch;
  pass_forward();
  finish();
  ++optimizer_step_.step;
  update_->plan(trips_of(early_ ? offload_.descending_order() : offload_.next_order()));
  gradients_->begin_step();
  gradients_->begin_round(1, true);
  if (early_) {
    update_->begin_early(optimizer_step_, std::numeric_limits<double>::max());
  }
  pass_backward();
  gradients_->end_round();
  static_cast<void>(gradients_->norm());
  end_update();
  return watch.elapsed();
}

/// What a run has used so far.
struct Used {
  Bytes read{}, write{};
  Seconds device{}, computed{};
  double processor{};
};

Used used_by(Steps& steps) {
  auto const traffic = steps.traffic();
  return {traffic.read_bytes(), traffic.write_bytes(), steps.device_busy(), steps.computed(),
          processor_seconds()};
}

void print(Shape const& shape, config::RunConfig const& config, Steps& steps, Used const& before,
           std::vector<plan::PathRate> const& rates, std::vector<double> const& seconds) {
  Used const after = used_by(steps);
  auto const count = static_cast<double>(seconds.size());
  Bytes const read = (after.read - before.read) / std::ssize(seconds);
  Bytes const write = (after.write - before.write) / std::ssize(seconds);
  auto const link = [&](double rate) {
    return rate > 0.0 ? static_cast<double>(sizeof(bfloat16)) *
                            static_cast<double>(shape.parameters) / rate
                      : 0.0;
  };
  fmt::print(
      "{{\"step_seconds\": [{:.4f}], \"device_seconds\": {:.4f}, \"storage_seconds\": {:.4f}, "
      "\"cpu_seconds\": {:.4f}, \"to_device_seconds\": {:.4f}, \"to_host_seconds\": {:.4f}, "
      "\"read_bytes\": {}, \"write_bytes\": {}, \"tried\": {}, \"processor_seconds\": {:.3f}}}\n",
      fmt::join(seconds, ", "), (after.device - before.device).count() / count,
      plan::bandwidth_bound(read, write, rates).count(),
      (after.computed - before.computed).count() / count,
      link(config.device.emulation.host_to_device), link(config.device.emulation.device_to_host),
      read, write, steps.tried(), (after.processor - before.processor) / count);
}

int run(std::vector<std::string> const& arguments) {
  Shape shape;
  config::RunConfig config;
  config.run_dir = "overlap";
  config.numerics.dtype = DType::bf16;
  config.share.device_share = 0.0;  // the cores update, as in the paper
  config.share.device_chunk = std::int64_t{64} * 1024;
  for (std::string const& argument : arguments) {
    set(shape, config, argument);
  }
  require(shape.parameters > 0 && shape.subgroup > 0 && shape.layers > 0 && shape.steps > 0 &&
              shape.buffers >= 0,
          "parameters, subgroup, layers and steps are above 0, buffers not below");
  if (shape.buffers == 0) {
    shape.buffers = static_cast<int>(2 + 2 * config.paths.size());
  }
  require(!config.paths.empty(), "tiers.path=DIR,emulate-read=RATE,emulate-write=RATE is needed");
  require(config.overlap != config::Switch::automatic, "update.overlap is on or off");
  auto const comm = mpi::Communicator::self();
  std::unique_ptr<trace::Trace> trace;
  if (!shape.trace.empty()) {
    trace = std::make_unique<trace::Trace>(shape.trace, 0, "overlap");
  }
  Steps steps{shape, config, comm, trace.get()};
  // The rates as given. Those that are followed later would be too much for a path with idle times,
  // which earn it credit.
  auto const rates = steps.rates();
  static_cast<void>(steps.step());  // touches memory and slots for the first time
  Used const before = used_by(steps);
  std::vector<double> seconds;
  for (int step = 0; step < shape.steps; ++step) {
    seconds.push_back(steps.step().count());
  }
  print(shape, config, steps, before, rates, seconds);
  steps.finish();
  return 0;
}

}  // namespace
}  // namespace offstage

int main(int argc, char** argv) {
  offstage::mpi::Session const session;
  try {
    return offstage::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_overlap: {}\n", error.what());
    return 1;
  }
}
