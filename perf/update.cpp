// The update phase of a state that lives on storage, under a limit on host memory.
//
//   perf_update update DIR...   AdamW over the whole state, several times, on all paths together
//   perf_update engine DIR...   the same transfers by an I/O engine per path alone: extents are
//                               read and written in turn
//   perf_update verify DIR      the first with tiers.verify always, sample and off in turn
//   perf_update shape           "state_bytes request_bytes queue_depth", for fio
//
// `update` ends with the median bytes per second, reads and writes, 24 bytes per parameter, and the
// CPU seconds per GB of these; `engine` with the first alone; `verify` with the medians of the
// update's seconds.

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "platform/aio/engine.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"
#include "processor_time.hpp"
#include "tests/update/targets_in.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update/update.hpp"

namespace offstage {
namespace {

constexpr std::int64_t subgroup_elements = 8 * MiB;
constexpr std::int64_t subgroup_count = 48;
constexpr std::int64_t parameters = subgroup_count * subgroup_elements;
constexpr Bytes state_bytes = 12 * parameters;
constexpr int steps = 3;
constexpr aio::EngineSettings engine_settings{};

int buffers_for(std::size_t paths) {
  return 2 + 2 * static_cast<int>(paths);
}

/// The limit that tiers.host-memory would name: 16-bit gradients, buffers and what the process
/// needs beside them.
Bytes host_memory_limit(std::size_t paths) {
  return 2 * parameters + buffers_for(paths) * 12 * subgroup_elements + 128 * MiB;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<state::Subgroup> make_subgroups() {
  std::vector<state::Subgroup> subgroups;
  for (std::int64_t index = 0; index < subgroup_count; ++index) {
    state::Subgroup subgroup;
    subgroup.index = index;
    subgroup.begin = index * subgroup_elements;
    subgroup.size = subgroup_elements;
    std::int64_t const chunks = subgroup_elements / chunk_elements;
    subgroup.pieces = {{0, {index * chunks, chunks}, 0, subgroup_elements - chunk_elements}};
    subgroups.push_back(subgroup);
  }
  return subgroups;
}

std::shared_ptr<tiers::PathSet> make_paths(std::span<std::string const> directories) {
  tiers::PathSetSettings settings;
  for (std::string const& directory : directories) {
    tiers::PathSettings path;
    path.directory = directory;
    path.engine = engine_settings;
    settings.paths.push_back(path);
  }
  auto paths = tiers::make_paths(settings);
  for (auto const& path : *paths) {  // one after the other, as a run does
    auto const rate =
        tiers::measure_rates(*path, "offstage-perf", {.time = Seconds{0.3}, .most = 512 * MiB});
    path->set_rates(rate.read, rate.write);
  }
  return paths;
}

/// A state on storage, without a cache, and a gradient in host memory.
class Phase {
 public:
  Phase(std::shared_ptr<tiers::PathSet> paths, tiers::Verify verify)
      : paths_{std::move(paths)},
        buffers_{buffers_for(paths_->size())},
        tiers_{make_tiers(verify)},
        update_{
            {.subgroups = subgroups_,
             .state = *tiers_,
             .gradient = [this](state::Subgroup const& subgroup) { return gradient_of(subgroup); },
             .target = parameters::targets_in(copy_.as<bfloat16>())},
            {.workers = buffers_}} {
    std::ranges::fill(gradient_.as<bfloat16>(), to_bf16(0.01F));
    for (state::Subgroup const& subgroup : subgroups_) {
      auto lease = tiers_->create(subgroup.index);
      std::ranges::fill(lease.mutable_bytes(), std::byte{0});
      lease.commit();
    }
    for (state::Subgroup const& subgroup : subgroups_) {
      order_.push_back({subgroup.index, false});
    }
  }

  struct Step {
    double seconds{};
    double bytes{};
    double processor_seconds{};
  };
  Step step() {
    ++step_.step;
    tiers::Traffic const before = tiers_->traffic();
    double const processor = offstage::processor_seconds();
    update_.plan(order_);
    auto const stats = update_.run(step_);
    tiers::Traffic const after = tiers_->traffic();
    for (auto const& path : *paths_) {
      path->follow_rates();
    }
    Step const done{stats.total.count(),
                    static_cast<double>(after.read_bytes() + after.write_bytes() -
                                        before.read_bytes() - before.write_bytes()),
                    offstage::processor_seconds() - processor};
    fmt::print("update {:.3f} s, {:.2f} GB/s; AdamW {:.3f} s, CPU {:.3f} s;", done.seconds,
               done.bytes / done.seconds / 1e9, stats.compute.count(), done.processor_seconds);
    for (std::size_t i = 0; i < after.paths.size(); ++i) {
      fmt::print(" path {}: read {:.3f} s, write {:.3f} s;", i,
                 (after.paths[i].read.seconds - before.paths[i].read.seconds).count(),
                 (after.paths[i].write.seconds - before.paths[i].write.seconds).count());
    }
    fmt::print("\n");
    return done;
  }
  [[nodiscard]] Bytes working_copy_bytes() const { return copy_.size(); }

 private:
  [[nodiscard]] update::GradientLease gradient_of(state::Subgroup const& subgroup) {
    return {{},
            std::span<bfloat16 const>{gradient_.as<bfloat16>()}.subspan(
                static_cast<std::size_t>(subgroup.begin), static_cast<std::size_t>(subgroup.size))};
  }
  std::unique_ptr<tiers::Tiers> make_tiers(tiers::Verify verify) {
    tiers::VirtualSettings settings;
    settings.paths = paths_;
    settings.spill = "offstage-perf";
    settings.buffers = buffers_;
    settings.cached = 0;
    settings.verify = verify;
    return tiers::make_virtual_tiers(std::vector<Bytes>(subgroup_count, 12 * subgroup_elements),
                                     settings);
  }

  std::shared_ptr<tiers::PathSet> paths_;
  int buffers_;
  std::vector<state::Subgroup> subgroups_ = make_subgroups();
  memory::HugeBuffer copy_{2 * parameters};
  memory::HugeBuffer gradient_{2 * parameters};
  std::unique_ptr<tiers::Tiers> tiers_;
  update::Update update_;
  std::vector<update::Trip> order_;
  kernels::OptimizerStep step_{.learning_rate = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .epsilon = 1e-8,
                               .weight_decay = 0.1,
                               .gradient_scale = 1.0};
};

int run_update(std::span<std::string const> directories) {
  Bytes const at_start = memory::resident_bytes();
  Phase phase{make_paths(directories), tiers::Verify::always};
  static_cast<void>(phase.step());  // writes slots that were never written
  std::vector<double> rates, processor;
  for (int step = 0; step < steps; ++step) {
    auto const done = phase.step();
    rates.push_back(done.bytes / done.seconds);
    processor.push_back(done.processor_seconds / (done.bytes / 1e9));
  }
  Bytes const limit = host_memory_limit(directories.size());
  Bytes const used = memory::peak_resident_bytes() - at_start - phase.working_copy_bytes();
  fmt::print("state {} = {:.1f} times the limit of {}; peak RSS without working copy {}: {}\n",
             format_bytes(state_bytes),
             static_cast<double>(state_bytes) / static_cast<double>(limit), format_bytes(limit),
             format_bytes(used), used <= limit ? "within" : "OVER");
  fmt::print("{:.0f} {:.4f}\n", median(rates), median(processor));
  return used <= limit ? 0 : 1;
}

int run_verify(std::string const& directory) {
  constexpr int rounds = 2;
  std::vector<double> seconds[3];
  for (int round = 0; round < rounds; ++round) {
    for (auto const verify : {tiers::Verify::always, tiers::Verify::sample, tiers::Verify::off}) {
      Phase phase{make_paths({&directory, 1}), verify};
      static_cast<void>(phase.step());
      for (int step = 0; step < steps; ++step) {
        seconds[static_cast<std::size_t>(verify)].push_back(phase.step().seconds);
      }
    }
  }
  fmt::print("{:.4f} {:.4f} {:.4f}\n", median(seconds[0]), median(seconds[1]), median(seconds[2]));
  return 0;
}

/// Reads and writes `bytes` bytes of a file in turn, extent by extent, `rounds` times.
void move_extents(std::string const& directory, Bytes bytes, int rounds) {
  std::string const path = directory + "/engine";
  aio::File const file = aio::File::create(path);
  std::filesystem::remove(path);
  file.allocate(bytes);
  memory::HugeBuffer const extent{12 * subgroup_elements};
  aio::Engine engine{engine_settings};
  for (Bytes offset = 0; offset < bytes; offset += extent.size()) {
    engine.write(file, extent.bytes(), offset);
  }
  for (int round = 0; round < rounds; ++round) {
    for (Bytes offset = 0; offset < bytes; offset += extent.size()) {
      engine.read(file, extent.bytes(), offset);
      engine.write(file, extent.bytes(), offset);
    }
  }
}

int run_engine(std::span<std::string const> directories) {
  Bytes const share =
      state_bytes / std::ssize(directories) / (12 * subgroup_elements) * (12 * subgroup_elements);
  std::vector<double> rates;
  for (int step = 0; step < steps; ++step) {
    // The difference of one round and three: without the first writes.
    auto const timed = [&](int rounds) {
      Stopwatch const watch;
      std::vector<std::thread> threads;
      for (std::string const& directory : directories) {
        threads.emplace_back([&, rounds] { move_extents(directory, share, rounds); });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      return watch.elapsed().count();
    };
    double const one = timed(1);
    rates.push_back(static_cast<double>(4 * share * std::ssize(directories)) / (timed(3) - one));
  }
  fmt::print("{:.0f}\n", median(rates));
  return 0;
}

int run(std::vector<std::string> const& arguments) {
  std::string const mode = arguments.empty() ? "" : arguments[0];
  if (mode == "shape") {
    fmt::print("{} {} {}\n", state_bytes, engine_settings.request_bytes,
               engine_settings.queue_depth);
    return 0;
  }
  std::span<std::string const> const directories{arguments.begin() + (arguments.empty() ? 0 : 1),
                                                 arguments.end()};
  if (mode == "update" && !directories.empty()) {
    return run_update(directories);
  }
  if (mode == "engine" && !directories.empty()) {
    return run_engine(directories);
  }
  if (mode == "verify" && directories.size() == 1) {
    return run_verify(directories[0]);
  }
  fmt::print(stderr, "usage: perf_update update DIR... | engine DIR... | verify DIR | shape\n");
  return 64;
}

}  // namespace
}  // namespace offstage

int main(int argc, char** argv) {
  try {
    return offstage::run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    fmt::print(stderr, "perf_update: {}\n", error.what());
    return 1;
  }
}
