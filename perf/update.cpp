// The update phase of a state that lives on storage, under a limit on host memory.
//
//   perf_update update DIR   AdamW over the whole state, several times
//   perf_update engine DIR   the same transfers by the I/O engine alone: extents read and written
//   in turn perf_update shape        "state_bytes request_bytes queue_depth", for fio
//
// The first two end with the median bytes per second: reads and writes, 24 bytes per parameter.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "platform/aio/engine.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"
#include "tiers/tiers.hpp"
#include "update/pipeline.hpp"

namespace offstage {
namespace {

constexpr std::int64_t subgroup_elements = 8 * MiB;
constexpr std::int64_t subgroup_count = 48;
constexpr std::int64_t parameters = subgroup_count * subgroup_elements;
constexpr Bytes state_bytes = 12 * parameters;
// What tiers.host-memory would say: 16-bit gradients, buffers and what the process needs beside
// them.
constexpr Bytes host_memory_limit = 1280 * MiB;
constexpr int buffers = 4;
constexpr int steps = 3;
constexpr aio::EngineSettings engine_settings{};

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
    subgroup.decay_ranges = {{0, subgroup_elements - 4096, true},
                             {subgroup_elements - 4096, subgroup_elements, false}};
    subgroups.push_back(subgroup);
  }
  return subgroups;
}

int run_update(std::string const& directory) {
  Bytes const at_start = memory::resident_bytes();
  memory::HugeBuffer const copy{2 * parameters};
  memory::HugeBuffer const gradient{2 * parameters};
  std::ranges::fill(gradient.as<bfloat16>(), to_bf16(0.01F));
  auto const subgroups = make_subgroups();
  tiers::PathSettings path;
  path.directory = directory;
  path.read_rate = path.write_rate = 1e9;  // any: there is nothing to split
  path.engine = engine_settings;
  tiers::VirtualSettings settings;
  settings.paths = tiers::make_paths({.paths = {path}});
  settings.spill = "offstage-perf";
  settings.buffers = buffers;
  std::vector<Bytes> const extents(subgroup_count, 12 * subgroup_elements);
  auto const tiers = tiers::make_virtual_tiers(extents, settings);
  for (auto const& subgroup : subgroups) {
    tiers->create(subgroup.index).commit();
  }

  update::UpdatePipeline pipeline{subgroups, *tiers, buffers};
  kernels::AdamwStep step{1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 0};
  std::vector<double> rates;
  for (step.step = 1; step.step <= steps + 1; ++step.step) {
    tiers::Traffic const before = tiers->traffic();
    auto const stats =
        pipeline.run(step, std::span<bfloat16 const>{gradient.as<bfloat16>()}, copy.as<bfloat16>());
    tiers::Traffic const after = tiers->traffic();
    if (step.step == 1) {
      continue;
    }  // writes slots that were never written
    double const seconds = stats.total.count();
    Bytes const moved =
        after.read_bytes() + after.write_bytes() - before.read_bytes() - before.write_bytes();
    rates.push_back(static_cast<double>(moved) / seconds);
    fmt::print("update {:.3f} s, {:.2f} GB/s; path read {:.3f} s, write {:.3f} s; AdamW {:.3f} s\n",
               seconds, rates.back() / 1e9,
               (after.paths[0].read.seconds - before.paths[0].read.seconds).count(),
               (after.paths[0].write.seconds - before.paths[0].write.seconds).count(),
               stats.compute.count());
  }
  Bytes const used = memory::peak_resident_bytes() - at_start - copy.size();
  fmt::print("state {} = {:.1f} times the limit of {}; peak RSS without working copy {}: {}\n",
             format_bytes(state_bytes),
             static_cast<double>(state_bytes) / static_cast<double>(host_memory_limit),
             format_bytes(host_memory_limit), format_bytes(used),
             used <= host_memory_limit ? "within" : "OVER");
  fmt::print("{:.0f}\n", median(rates));
  return used <= host_memory_limit ? 0 : 1;
}

int run_engine(std::string const& directory) {
  std::string const path = directory + "/engine";
  aio::File const file = aio::File::create(path);
  std::filesystem::remove(path);
  file.allocate(state_bytes);
  memory::HugeBuffer const extent{12 * subgroup_elements};
  aio::Engine engine{engine_settings};
  for (Bytes offset = 0; offset < state_bytes; offset += extent.size()) {
    engine.write(file, extent.bytes(), offset);
  }
  std::vector<double> rates;
  for (int step = 0; step < steps; ++step) {
    Stopwatch const watch;
    for (Bytes offset = 0; offset < state_bytes; offset += extent.size()) {
      engine.read(file, extent.bytes(), offset);
      engine.write(file, extent.bytes(), offset);
    }
    rates.push_back(static_cast<double>(2 * state_bytes) / watch.elapsed().count());
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
  if (arguments.size() == 2 && mode == "update") {
    return run_update(arguments[1]);
  }
  if (arguments.size() == 2 && mode == "engine") {
    return run_engine(arguments[1]);
  }
  fmt::print(stderr, "usage: perf_update update DIR | engine DIR | shape\n");
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
