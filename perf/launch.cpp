// Backward and what becomes of its gradients, without a model: one rank, the state in host memory,
// an emulated device whose products have a rate (device.emulate=compute=..). One configuration per
// call; launch.py calls it for one after the other.
//
//   perf_launch [parameters=N] [layers=N] [subgroup=N] [steps=N] [tokens=N] [micro-batches=N]
//   [kernels=N]
//               [numerics.dtype=..] [device.KEY=..] [update.KEY=..] [run.trace=FILE]
//
// tokens: of a micro-batch; backward makes two products with each parameter and token, in so many
// kernels a layer, which do nothing but take their time. Gradients go the way of a run's. Ends with
// one line of JSON: for each step the seconds of the last micro-batch's backward, to when all sums
// are where they belong, and those that its products take alone.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "phase_shape.hpp"
#include "platform/mpi/session.hpp"
#include "state/rank_link.hpp"
#include "state/working_copy.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/offload/offload.hpp"
#include "update/gradients/accumulator.hpp"

namespace offstage {
namespace {

struct Shape : PhaseShape {
  std::int64_t layers = 24;
  std::int64_t tokens = 8192;
  std::int64_t micro_batches = 1;
  int kernels = 16;
};

void set(Shape& shape, config::RunConfig& config, std::string const& argument) {
  auto const [key, value] = split_argument(argument);
  if (key == "layers") {
    shape.layers = parse_count(value);
  } else if (key == "tokens") {
    shape.tokens = parse_count(value);
  } else if (key == "micro-batches") {
    shape.micro_batches = parse_count(value);
  } else if (key == "kernels") {
    shape.kernels = std::stoi(value);
  } else {
    set(shape, config, key, value);
  }
}

/// Backward of a run, in the place of train::StepRunner.
class Backward {
 public:
  Backward(Shape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
           trace::Trace* trace);
  /// Seconds of the last micro-batch's.
  Seconds step();

 private:
  void pass();

  Shape const& shape_;
  trace::Trace* trace_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<state::RankLink> link_;
  state::ShardMap map_;
  std::vector<state::Subgroup> subgroups_;
  state::WorkingCopy<bfloat16> copy_;
  std::array<device::Buffer, 2> gradient_;  ///< in turn
  train::Offload offload_;
  std::unique_ptr<update::HeldGradients> held_;  ///< null: the cores add
  std::unique_ptr<update::GradientAccumulator<bfloat16>> gradients_;
};

Backward::Backward(Shape const& shape, config::RunConfig const& config,
                   mpi::Communicator const& comm, trace::Trace* trace)
    : shape_{shape},
      trace_{trace},
      device_{device::make_host_device(config.device.memory, config.device.emulation)},
      stream_{device_->make_calling_stream("compute")},
      link_{state::make_mpi_link(
          comm, device_->host_visible() ? state::Route::in_place : state::Route::staged)},
      map_{make_layers(shape.layers, shape.parameters / shape.layers), 1},
      subgroups_{state::subgroups_of(map_, 0, shape.subgroup)},
      copy_{map_, *link_, *device_, *stream_},
      offload_{config, comm, trace} {
  std::vector<bfloat16> const values(static_cast<std::size_t>(map_.largest_layer()),
                                     to_bf16(0.01F));
  for (auto& gradient : gradient_) {
    gradient = device_->allocate(2 * map_.largest_layer(), "a layer's gradient");
    stream_->copy(gradient.as<bfloat16>().data(), values.data(), gradient.size(),
                  device::Copy::host_to_device);
  }
  stream_->synchronize();
  offload_.allocate(subgroups_, plan::MemoryPlan{}, train::accumulated_bytes(config), *device_);
  auto settings = offload_.take_gradients(train::accumulates_fp32(config));
  settings.trace = trace;
  settings.host_sum_rate = config.device.emulation.host_sum;
  gradients_ = std::make_unique<update::GradientAccumulator<bfloat16>>(
      map_, *link_, *device_, *stream_, subgroups_, std::move(settings));
  train::UpdateShape const update{.elements = shape.parameters,
                                  .subgroup_elements = shape.subgroup,
                                  .gradient_bytes = train::accumulated_bytes(config),
                                  .sums_on_device = train::sums_on_device(1, link_->route())};
  Bytes const room = train::gradient_room(config, update, device_->host_visible(),
                                          device_->capacity() - device_->used());
  if (room > 0) {
    held_ =
        std::make_unique<update::HeldGradients>(*device_, room, update.gradient_bytes, subgroups_);
    gradients_->set_held(held_.get());
  }
}

/// Products with a layer's input and with its weights.
double layer_flops(Shape const& shape) {
  return 4.0 * static_cast<double>(shape.parameters / shape.layers) *
         static_cast<double>(shape.tokens);
}

// The order of calls is model::Transformer's.
void Backward::pass() {
  std::array<std::shared_ptr<device::Event>, 2> freed;
  for (int layer = static_cast<int>(shape_.layers) - 1; layer >= 0; --layer) {
    auto const turn = static_cast<std::size_t>(layer % 2);
    {
      if (freed[turn]) {
        stream_->wait(*freed[turn]);
      }
      state::HeldLayer<bfloat16> const held{copy_, layer, *stream_};
      trace::Scope const scope{trace_, "model", "launch", layer};
      for (int kernel = 0; kernel < shape_.kernels; ++kernel) {
        stream_->enqueue([] {}, {.flops = layer_flops(shape_) / shape_.kernels});
      }
    }
    auto const size =
        static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
    trace::Scope const scope{trace_, "model", "hand on", layer};
    freed[1 - turn] = gradients_->add(layer, gradient_[turn].as<bfloat16>().first(size));
  }
  stream_->synchronize();
}

Seconds Backward::step() {
  if (held_) {
    std::vector<std::int64_t> all(subgroups_.size());
    std::iota(all.rbegin(), all.rend(), 0);
    held_->hold({}, all);  // the cores update all
  }
  gradients_->begin_step();
  Stopwatch watch;
  for (std::int64_t micro_batch = 1; micro_batch <= shape_.micro_batches; ++micro_batch) {
    gradients_->begin_round(1, micro_batch == shape_.micro_batches);
    static_cast<void>(watch.lap());
    pass();
    gradients_->end_round();
  }
  return watch.elapsed();
}

int run(std::vector<std::string> const& arguments) {
  Shape shape;
  config::RunConfig config;
  config.run_dir = "launch";
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.share.device_share = 0.0;
  for (std::string const& argument : arguments) {
    set(shape, config, argument);
  }
  require(shape.parameters > 0 && shape.subgroup > 0 && shape.layers > 0 && shape.steps > 0 &&
              shape.tokens > 0 && shape.micro_batches > 0 && shape.kernels > 0,
          "all numbers are above 0");
  require(config.device.emulation.compute > 0.0, "device.emulate=compute=RATE is needed");
  config.train.micro_batch = 1;
  config.train.global_batch = shape.micro_batches;
  auto const comm = mpi::Communicator::self();
  std::unique_ptr<trace::Trace> trace;
  if (!shape.trace.empty()) {
    trace = std::make_unique<trace::Trace>(shape.trace, 0, "launch");
  }
  Backward backward{shape, config, comm, trace.get()};
  static_cast<void>(backward.step());  // touches memory for the first time
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(shape.steps));
  for (int step = 0; step < shape.steps; ++step) {
    seconds.push_back(backward.step().count());
  }
  fmt::print(
      "{{\"backward_seconds\": [{:.4f}], \"compute_seconds\": {:.4f}}}\n", fmt::join(seconds, ", "),
      static_cast<double>(shape.layers) * layer_flops(shape) / config.device.emulation.compute);
  return 0;
}

}  // namespace
}  // namespace offstage

int main(int argc, char** argv) {
  offstage::mpi::Session const session;
  try {
    return offstage::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_launch: {}\n", error.what());
    return 1;
  }
}
