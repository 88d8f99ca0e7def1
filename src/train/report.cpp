#include "train/report.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/log.hpp"
#include "base/simd.hpp"
#include "base/version.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/mpi/session.hpp"
#include "train/places.hpp"

namespace offstage::train {
namespace {

/// Fewer say nothing of a run: its first norms are its highest.
constexpr std::int64_t enough_steps = 6;

/// Text of fixed size, cut off where it is longer.
template <std::size_t N>
std::array<char, N> fixed(std::string const& text) {
  std::array<char, N> line{};
  std::copy_n(text.begin(), std::min(text.size(), N - 1), line.begin());
  return line;
}

/// One rank's place, of fixed size so that it travels as plain bytes.
struct FixedPlace {
  std::array<char, 96> node;
  std::array<char, 256> place;
};

FixedPlace fixed_place(launch::RankPlace const& place, std::string const& node) {
  auto const& placement = place.placement;
  std::string const host =
      node.empty() || node == place.host ? place.host : fmt::format("{} ({})", node, place.host);
  std::string const text = fmt::format(
      "GPU {}  NUMA {}  cores {}  threads {}{}",
      placement.gpu ? fmt::format("{} ({})", placement.gpu->bus, placement.gpu->name) : "-",
      placement.numa >= 0 ? fmt::format("{}", placement.numa) : "-",
      cpu::format_cpus(placement.cpus), place.threads, place.bound ? "" : "  (not bound)");
  return {fixed<96>(host), fixed<256>(text)};
}

void print_job(slurm::Job const& job) {
  log::info("Slurm job {}{}; {}", describe(job), job.nodes.empty() ? "" : ", on " + job.nodes,
            job.end ? fmt::format("it ends at {:%Y-%m-%d %H:%M:%S}",
                                  fmt::localtime(slurm::TimePoint::clock::to_time_t(*job.end)))
                    : "no end is known");
}

/// "read 6.90 GB/s, write 5.30 GB/s (given, half duplex)"
std::string describe_rates(tiers::PathSettings const& path, plan::PathRate const& rate) {
  bool const given = path.read_rate > 0.0 && path.write_rate > 0.0 && !path.measured;
  if (rate.read <= 0.0 || rate.write <= 0.0) {
    return rate.full_duplex ? "full duplex" : "half duplex";  // no split needs to know more
  }
  return fmt::format("read {:.2f} GB/s, write {:.2f} GB/s ({}, {} duplex)", rate.read / 1e9,
                     rate.write / 1e9, path.emulation ? "emulated" : (given ? "given" : "measured"),
                     rate.full_duplex ? "full" : "half");
}

/// "per rank 9 state slots of 2.86 MiB, 3 gradient slots of 488 KiB; on this node 54 MiB of 20 GiB free"
std::string describe_slots(tiers::PathSettings const& path, PathFacts const& facts) {
  std::string text;
  for (auto const& [what, slots, slot_bytes] : facts.slots) {
    text += fmt::format("{}{} {} slot{} of {}", text.empty() ? "per rank " : ", ", slots, what,
                        slots == 1 ? "" : "s", format_bytes(slot_bytes));
  }
  if (text.empty()) {
    return "no slots";
  }
  text += fmt::format("; on this node {} of {} free", format_bytes(facts.needed),
                      format_bytes(facts.free));
  if ((path.persistent || path.nearby) && facts.slots.front().what == "state") {
    text += fmt::format("; {}: up to {} more per rank for each checkpoint held",
                        path.persistent ? "persistent" : "level 1", facts.slots.front().slots);
  }
  return text;
}

std::string describe_gradients(plan::MemoryPlan const& memory, bool flush_fp32) {
  if (flush_fp32) {
    return fmt::format("gradients in host memory, flushed in FP32 through {} buffers",
                       memory.gradient_buffers);
  }
  if (memory.gradient_buffers == 0) {
    return "gradients in host memory";
  }
  return fmt::format("gradients of {} in host memory, the others spilled through {} buffers",
                     memory.gradients_cached, memory.gradient_buffers);
}

void print_parameters(RunConfig const& config, HeaderFacts const& facts) {
  using parameters::Home;
  if (config.parameter_home == Home::device) {
    return;
  }
  bool const stored = config.parameter_home == Home::storage;
  log::info("parameters: {}{}, {}", stored ? "on the storage paths" : "in host memory",
            stored ? fmt::format(" through {} buffers", facts.memory.parameter_buffers) : "",
            facts.parameter_slots > 0
                ? fmt::format("{} layers on the device at a time{}", facts.parameter_slots,
                              facts.large_slot ? ", and a larger one" : "")
                : "used where they lie");
}

void print_activations(RunConfig const& config, std::string const& why) {
  using Rule = activations::Policy::Rule;
  auto const& policy = config.train.activations;
  if (config.train.together > 0) {
    log::info(
        "schedule: vertical, {} micro-batch{} of a rank pass{} a block together; blocks' inputs "
        "wait "
        "{}, the rest is computed again",
        config.train.together, config.train.together == 1 ? "" : "es",
        config.train.together == 1 ? "es" : "",
        policy.rule == Rule::recompute ? "on the device"
        : policy.storage               ? "in host memory and on storage"
                                       : "in host memory");
    return;
  }
  if (policy.rule == Rule::recompute) {
    log::info("activations: blocks' inputs stay on the device, the rest is computed again");
  } else if (policy.rule == Rule::swap) {
    log::info(
        "activations: blocks' inputs and {:.0f}% of what products make go to {}, the "
        "rest is computed again",
        100 * policy.share, policy.storage ? "host memory and storage" : "host memory");
  }
  if (!why.empty()) {
    log::info("  train.activations=auto: {}", why);
  }
}

void print_storage(RunConfig const& config, HeaderFacts const& facts) {
  auto const bytes =
      config.optimizer.layout().bytes_per_element() * static_cast<double>(facts.parameters);
  log::info("optimizer state: {}, {}, in {} subgroup{} per rank, {}",
            format_bytes(static_cast<Bytes>(std::llround(bytes))), describe_state(config.optimizer),
            facts.subgroups, facts.subgroups == 1 ? "" : "s",
            config.paths.empty() ? "in host memory"
                                 : fmt::format("on {} storage path{}", config.paths.size(),
                                               config.paths.size() == 1 ? "" : "s"));
  for (std::size_t path = 0; path < std::min(config.paths.size(), facts.paths.size()); ++path) {
    auto const lock = describe(facts.paths[path].lock);
    log::info("  path {}  {}{}{}, {}", config.paths[path].directory,
              describe_rates(config.paths[path], facts.paths[path].rate), lock.empty() ? "" : ", ",
              lock, describe_slots(config.paths[path], facts.paths[path]));
  }
  plan::MemoryPlan const& memory = facts.memory;
  if (!config.paths.empty()) {
    log::info("per rank, of {} subgroup{} of {} parameters: {} buffers, {} cached; {}",
              memory.subgroups, memory.subgroups == 1 ? "" : "s", memory.subgroup_elements,
              memory.buffers, memory.cached, describe_gradients(memory, config.flushes_fp32()));
  }
  for (std::string const& row : facts.memory_table) {
    log::info("{}", row);
  }
  log::info("host memory per node: {} planned (state {}, gradients {}{} per rank), limit {}",
            format_bytes(memory.node_total), format_bytes(memory.state),
            format_bytes(memory.gradients),
            memory.parameters > 0 ? ", parameters " + format_bytes(memory.parameters) : "",
            format_bytes(facts.host_memory_limit));
}

}  // namespace

std::vector<std::string> node_names(std::string const& mine, mpi::Communicator const& comm) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for (auto const& each : comm.all_gather_value(fixed<256>(mine))) {
    if (known.emplace(each.data()).second) {
      names.emplace_back(each.data());
    }
  }
  return names;
}

void print_header(RunConfig const& config, HeaderFacts const& facts,
                  mpi::Communicator const& comm) {
  auto const fixed_places = comm.all_gather_value(fixed_place(facts.place, config.node));
  if (comm.rank() != 0) {
    return;
  }
  std::vector<PlaceLine> places;
  for (FixedPlace const& each : fixed_places) {
    places.push_back({each.node.data(), each.place.data()});
  }

  log::info("offstage {} ({}), {}, {}", version(), build_description(), mpi::library_version(),
            name_of(best_simd()));
  log::info("{} rank{} on {} node{}, device {}{}{}", comm.size(), comm.size() == 1 ? "" : "s",
            facts.nodes, facts.nodes == 1 ? "" : "s", facts.device,
            facts.libraries.empty() ? "" : ", ", facts.libraries);
  if (!facts.attention.empty()) {
    log::info("attention: {}", facts.attention);
  }
  if (!facts.link.empty()) {
    log::info("layers between ranks: {}", facts.link);
  }
  if (config.job) {
    print_job(*config.job);
  }
  for (std::string const& line : describe_places(places)) {
    log::info("  {}", line);
  }
  log::info("model: {} parameters, working copy {}", facts.parameters,
            name_of(config.numerics.dtype));
  for (std::string const& line : facts.chosen) {
    log::info("{}", line);
  }
  print_parameters(config, facts);
  print_activations(config, facts.activations);
  print_storage(config, facts);
  log::info("configuration:");
  for (Setting const& setting : config.settings) {
    log::info("  {:<28} {:<32} {}", setting.key, setting.value.empty() ? "-" : setting.value,
              setting.origin);
  }
}

std::string advice_on_clipping(PhaseTimes const& times, RunConfig const& config) {
  bool const wanted = config.overlap == Overlap::on ||
                      (config.overlap == Overlap::automatic && !config.paths.empty());
  if (!wanted || times.steps < enough_steps || 2 * times.clipped <= times.steps) {
    return {};
  }
  std::string text = fmt::format(
      "updates under backward gained nothing in {} of {} steps, whose norm was above "
      "optimizer.clip={:g}: a higher limit or a longer optimizer.warmup-steps lets them gain",
      times.clipped, times.steps, config.optimizer.clip);
  if (times.redone > 0) {
    text += fmt::format("; {} were done again: update.overlap={} saves {}", times.redone,
                        config.overlap == Overlap::on ? "auto" : "off",
                        config.overlap == Overlap::on ? "most of those" : "those");
  }
  return text;
}

void print_end_table(PhaseTimes const& times, StorageTotals const& storage) {
  double const total = std::max(times.total.count(), 1e-9);
  auto const row = [total](char const* phase, Seconds seconds, Bytes bytes = 0,
                           Seconds working = {}) {
    double const rate =
        working.count() > 0.0 ? static_cast<double>(bytes) / working.count() / 1e9 : 0.0;
    log::info("  {:<12} {:>10.2f} s {:>7.1f} % {:>10}", phase, seconds.count(),
              100.0 * seconds.count() / total, bytes > 0 ? fmt::format("{:.2f}", rate) : "-");
  };
  Seconds const named =
      times.forward + times.backward + times.update + times.checkpoint + times.validation;
  log::info("  {:<12} {:>12} {:>9} {:>10}", "phase", "seconds", "share", "GB/s");
  row("forward", times.forward);
  row("backward", times.backward);
  // What went on under backward has no time of its own.
  row("update", times.update, times.overlapped > 0 ? 0 : times.update_bytes, times.update);
  row("checkpoint", times.checkpoint, times.checkpoint_bytes, times.saving);
  row("validation", times.validation);
  row("other", times.total - named);
  log::info(
      "  {:<12} {:>10.2f} s   {} steps, {:.0f} tokens/s, {:.3g} TFLOP/s (rank 0's clock and "
      "traffic)",
      "all", total, times.steps, static_cast<double>(times.tokens) / total,
      times.flops / total / 1e12);
  if (times.saving > times.checkpoint) {
    log::info("checkpoints: written in {:.2f} s, {:.2f} s of it under steps", times.saving.count(),
              (times.saving - times.checkpoint).count());
  }
  if (times.overlapped > 0) {
    log::info(
        "updates under backward: {} of {} steps, {} of them done again or undone, which took "
        "{:.2f} s",
        times.overlapped, times.steps, times.redone, times.redoing.count());
  }
  if (auto const& moved = times.activations; moved.out > 0) {
    log::info(
        "activations: {} left rank 0's device and {} came back, for which the thread that launches "
        "stood still for {:.2f} s",
        format_bytes(moved.out), format_bytes(moved.back), moved.waited.count());
  }
  for (std::string const& line : storage.lines()) {
    log::info("{}", line);
  }
  log::info(
      "host memory of state and gradients per node: peak {}, limit {}, planned {}, libraries some "
      "{}",
      format_bytes(times.host_memory_peak), format_bytes(times.host_memory_limit),
      format_bytes(times.host_memory_planned), format_bytes(times.host_memory_libraries));
  log::info("device memory per rank: peak {}, limit {}, planned {}",
            format_bytes(times.device_memory_peak),
            times.device_memory_limit > 0 ? format_bytes(times.device_memory_limit) : "none",
            format_bytes(times.device_memory_planned));
}

}  // namespace offstage::train
