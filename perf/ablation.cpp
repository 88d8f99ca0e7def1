// The update phase of a node's ranks over storage paths, without a model: gradients are added,
// flushed where the policy says so, and every subgroup is updated. One configuration per call;
// ablation.py calls it for one principle after the other.
//
//   mpirun -n R perf_ablation [parameters=N] [subgroup=N] [cached-share=X] [steps=N] [rounds=N]
//                             [pass-seconds=X] [numerics.dtype=..] [tiers.KEY=..] [update.KEY=..]
//                             [run.trace=FILE]
//
// parameters: of each rank; cached-share: of the state, that stays in host memory; rounds:
// micro-batches per step, each followed by pass-seconds of sleep in the place of forward and
// backward. Ends with one line of JSON.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "phase_shape.hpp"
#include "platform/mpi/session.hpp"
#include "processor_time.hpp"
#include "state/rank_link.hpp"
#include "tests/update/targets_in.hpp"
#include "train/offload/offload.hpp"
#include "update/update.hpp"

namespace offstage {
namespace {

struct Shape : PhaseShape {
  double cached_share = 0.2;
  int rounds = 1;
};

void set(Shape& shape, config::RunConfig& config, std::string const& argument) {
  auto const [key, value] = split_argument(argument);
  if (key == "cached-share") {
    shape.cached_share = std::stod(value);
  } else if (key == "rounds") {
    shape.rounds = std::stoi(value);
  } else {
    set(shape, config, key, value);
  }
}

/// This rank's part of a run, in the place of train::StepRunner.
class Phase {
 public:
  Phase(Shape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
        trace::Trace* trace);

  /// Seconds of gradients and update, passes left out; the slowest rank's.
  double step();
  [[nodiscard]] tiers::Tiers& state() { return offload_.state(); }
  [[nodiscard]] std::vector<plan::PathRate> rates() const { return offload_.rates(); }
  /// What a run's header would say of each path's lock, as JSON strings.
  [[nodiscard]] std::vector<std::string> locks() const {
    std::vector<std::string> all;
    for (train::PathFacts const& path : offload_.facts()) {
      all.push_back(fmt::format("\"{}\"", train::describe(path.lock)));
    }
    return all;
  }

 private:
  Shape const& shape_;
  mpi::Communicator const& comm_;
  mpi::Communicator alone_ = mpi::Communicator::self();
  std::unique_ptr<device::Device> device_ = device::make_host_device(0);
  std::unique_ptr<device::Stream> stream_ = device_->make_calling_stream("compute");
  std::unique_ptr<state::RankLink> link_ =
      state::make_mpi_link(alone_, state::Route::in_place);  ///< the device is host_visible
  state::ShardMap map_;
  std::vector<state::Subgroup> subgroups_;
  memory::HugeBuffer copy_;
  memory::HugeBuffer gradient_;
  train::Offload offload_;
  std::unique_ptr<update::GradientAccumulator<bfloat16>> gradients_;
  std::unique_ptr<update::Update> update_;
  kernels::OptimizerStep optimizer_step_{.learning_rate = 1e-3,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .epsilon = 1e-8,
                                         .weight_decay = 0.1,
                                         .gradient_scale = 1.0};
};

Phase::Phase(Shape const& shape, config::RunConfig const& config, mpi::Communicator const& comm,
             trace::Trace* trace)
    : shape_{shape},
      comm_{comm},
      // Half a subgroup each.
      map_{make_layers(2 * shape.parameters / shape.subgroup, shape.subgroup / 2), 1},
      subgroups_{state::subgroups_of(map_, 0, shape.subgroup)},
      copy_{2 * shape.parameters},
      gradient_{2 * map_.largest_layer()},
      offload_{config, comm, trace} {
  std::ranges::fill(gradient_.as<bfloat16>(), to_bf16(0.01F));
  plan::MemoryPlan plan;
  plan.buffers = static_cast<int>(2 + 2 * config.paths.size());
  plan.cached =
      static_cast<std::int64_t>(shape.cached_share * static_cast<double>(subgroups_.size()));
  bool const accumulate_fp32 = config.numerics.accumulate_fp32 && shape.rounds > 1;
  offload_.allocate(subgroups_, plan,
                    static_cast<Bytes>(accumulate_fp32 ? sizeof(float) : sizeof(bfloat16)),
                    *device_);
  gradients_ = std::make_unique<update::GradientAccumulator<bfloat16>>(
      map_, *link_, *device_, *stream_, subgroups_, offload_.take_gradients(accumulate_fp32));
  update_ = std::make_unique<update::Update>(
      update::UpdateParts{
          .subgroups = subgroups_,
          .state = offload_.state(),
          .gradient =
              [this](state::Subgroup const& subgroup) { return gradients_->fetch(subgroup); },
          .target = parameters::targets_in(copy_.as<bfloat16>())},
      update::UpdateSettings{.workers = plan.buffers, .trace = trace});
  for (auto const& subgroup : subgroups_) {
    auto lease = offload_.state().create(subgroup.index);
    std::ranges::fill(lease.mutable_bytes(), std::byte{0});
    lease.commit();
  }
}

double Phase::step() {
  comm_.barrier();
  Stopwatch watch;
  gradients_->begin_step();
  for (int round = 0; round < shape_.rounds; ++round) {
    gradients_->begin_round(1, round + 1 == shape_.rounds);
    for (int layer = static_cast<int>(map_.layers().size()) - 1; layer >= 0; --layer) {
      auto const size = static_cast<std::size_t>(
          map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
      gradients_->add(layer, gradient_.as<bfloat16>().first(size));
    }
    std::this_thread::sleep_for(shape_.pass);
    gradients_->end_round();
  }
  static_cast<void>(gradients_->norm());
  ++optimizer_step_.step;
  std::vector<update::Trip> order;
  for (std::int64_t const index : offload_.next_order()) {
    order.push_back({index, false});
  }
  gradients_->begin_update();
  update_->plan(std::move(order));
  update_->run(optimizer_step_);
  offload_.follow_rates();
  double const mine = watch.elapsed().count();
  return comm_.maximum(mine);
}

/// What one rank's paths did, as numbers that ranks can add.
struct Figures {
  Bytes read{}, write{};
  Seconds transfer{}, waited{}, longest_wait{}, longest_transfer{};
  std::int64_t transfers{};
};

Figures figures_of(tiers::Traffic const& traffic) {
  Figures figures;
  for (tiers::PathTraffic const& path : traffic.paths) {
    figures.read += path.read.bytes;
    figures.write += path.write.bytes;
    for (tiers::DirectionTraffic const& way : {path.read, path.write}) {
      figures.transfers += way.transfers;
      figures.transfer += way.seconds;
      figures.waited += way.waited;
      figures.longest_wait = std::max(figures.longest_wait, way.longest_wait);
      figures.longest_transfer = std::max(figures.longest_transfer, way.longest_transfer);
    }
  }
  return figures;
}

/// Of all ranks together.
struct NodeFigures : Figures {
  std::vector<double> rank_waits;  ///< seconds, the mean of each rank's transfers
};

/// Between the two; the longest ones are those since the start.
NodeFigures sum_since(Figures const& before, Figures const& after, mpi::Communicator const& comm) {
  Figures mine = after;
  mine.read -= before.read;
  mine.write -= before.write;
  mine.transfer -= before.transfer;
  mine.waited -= before.waited;
  mine.transfers -= before.transfers;
  NodeFigures sum;
  for (Figures const& rank : comm.all_gather_value(mine)) {
    sum.read += rank.read;
    sum.write += rank.write;
    sum.transfer += rank.transfer;
    sum.waited += rank.waited;
    sum.transfers += rank.transfers;
    sum.longest_wait = std::max(sum.longest_wait, rank.longest_wait);
    sum.longest_transfer = std::max(sum.longest_transfer, rank.longest_transfer);
    sum.rank_waits.push_back(rank.waited.count() / static_cast<double>(rank.transfers));
  }
  return sum;
}

int run(std::vector<std::string> const& arguments) {
  auto const comm = mpi::Communicator::world();
  Shape shape;
  shape.parameters = 16'777'216;
  shape.steps = 4;
  config::RunConfig config;
  config.run_dir = "ablation";
  for (std::string const& argument : arguments) {
    set(shape, config, argument);
  }
  config.subgroup_size = shape.subgroup;
  std::unique_ptr<trace::Trace> trace;
  if (!shape.trace.empty()) {
    trace = std::make_unique<trace::Trace>(fmt::format("{}-{}.json", shape.trace, comm.rank()),
                                           comm.rank(), "ablation");
  }
  Phase phase{shape, config, comm, trace.get()};
  auto const rates = phase.rates();
  static_cast<void>(phase.step());  // slots that were never written
  Figures const before = figures_of(phase.state().traffic());
  double const processor_before = processor_seconds();
  std::vector<double> seconds;
  for (int step = 0; step < shape.steps; ++step) {
    seconds.push_back(phase.step());
  }
  double processor = 0.0;
  for (double const rank : comm.all_gather_value(processor_seconds() - processor_before)) {
    processor += rank;
  }
  NodeFigures const sum = sum_since(before, figures_of(phase.state().traffic()), comm);
  auto const residence = phase.state().residence();
  std::vector<double> share{static_cast<double>(residence.host)};
  share.insert(share.end(), residence.paths.begin(), residence.paths.end());
  for (double& part : share) {
    part /= static_cast<double>(12 * shape.parameters);
  }
  Bytes const read = sum.read / shape.steps;
  Bytes const write = sum.write / shape.steps;
  // A single real path is not measured: nothing depends on its rates.
  bool const known = !rates.empty() && std::ranges::all_of(rates, [](plan::PathRate const& rate) {
    return rate.read > 0.0 && rate.write > 0.0;
  });
  if (comm.rank() == 0) {
    fmt::print(
        "{{\"step_seconds\": [{:.4f}], \"read_bytes\": {}, \"write_bytes\": {}, "
        "\"bound_seconds\": {:.4f}, \"residence\": [{:.4f}], \"transfers\": {}, "
        "\"mean_transfer_seconds\": {:.6f}, \"longest_transfer_seconds\": {:.6f}, "
        "\"mean_wait_seconds\": {:.6f}, \"longest_wait_seconds\": {:.6f}, "
        "\"rank_wait_seconds\": [{:.6f}], \"locks\": [{}], \"processor_seconds\": {:.3f}}}\n",
        fmt::join(seconds, ", "), read, write,
        known ? plan::bandwidth_bound(read, write, rates).count() : 0.0, fmt::join(share, ", "),
        sum.transfers, sum.transfer.count() / static_cast<double>(sum.transfers),
        sum.longest_transfer.count(), sum.waited.count() / static_cast<double>(sum.transfers),
        sum.longest_wait.count(), fmt::join(sum.rank_waits, ", "), fmt::join(phase.locks(), ", "),
        processor / shape.steps);
  }
  return 0;
}

}  // namespace
}  // namespace offstage

int main(int argc, char** argv) {
  offstage::mpi::Session const session;  // outlives what abort_job reports
  try {
    return offstage::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_ablation: {}\n", error.what());
    offstage::mpi::abort_job(1);
  }
}
