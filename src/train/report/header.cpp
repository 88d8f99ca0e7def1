#include "train/report/header.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_set>

#include "base/rate.hpp"
#include "base/simd.hpp"
#include "base/version.hpp"
#include "config/effective_config.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/mpi/session.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/sums.hpp"
#include "train/report/places.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {
namespace {

PlaceLine place_line(launch::RankPlace const& place, std::string const& node) {
  auto const& placement = place.placement;
  std::string const host =
      node.empty() || node == place.host ? place.host : fmt::format("{} ({})", node, place.host);
  std::string const text = fmt::format(
      "GPU {}  NUMA {}{}  cores {}  threads {}{}{}",
      placement.gpu ? fmt::format("{} ({})", placement.gpu->bus, placement.gpu->name) : "-",
      placement.numa >= 0 ? fmt::format("{}", placement.numa) : "-",
      place.memory_given ? " (memory as numactl or Slurm says)" : "",
      cpu::format_cpus(placement.cpus), place.threads,
      place.quota > 0.0 ? fmt::format("  (CPU quota: {:.3g} cores)", place.quota) : "",
      place.bound ? "" : "  (not bound)");
  return {host, text};
}

/// A path's rates in words: "read 6.90 GB/s, write 5.30 GB/s (given, half duplex)".
std::string describe_rates(tiers::PathSettings const& path, plan::PathRate const& rate) {
  bool const given = path.rates_known() && !path.measured;
  if (!rate.known()) {
    return rate.full_duplex ? "full duplex" : "half duplex";  // no split depends on the rates
  }
  return fmt::format("read {}, write {} ({}, {} duplex)", format_rate(rate.read),
                     format_rate(rate.write),
                     path.emulation ? "emulated" : (given ? "given" : "measured"),
                     rate.full_duplex ? "full" : "half");
}

/// A path's slots in words: "per rank 9 state slots of 2.86 MiB, 3 gradient slots of 488 KiB; on
/// this node 54 MiB of 20 GiB free".
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

/// The full and the brief header while they grow.
class Lines {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    header_.full.push_back(fmt::format(format, std::forward<Args>(args)...));
    header_.brief.push_back(header_.full.back());
  }
  template <class... Args>
  void add_full(fmt::format_string<Args...> format, Args&&... args) {
    header_.full.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Adds lines. If there are many, the brief header has only the first `most` - 1, and the number
  /// of the others with the words `more`.
  void add_some(std::span<std::string const> lines, std::size_t most, std::string_view more) {
    bool const all = lines.size() <= most;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      header_.full.push_back(lines[i]);
      if (all || i + 1 < most) {
        header_.brief.push_back(lines[i]);
      }
    }
    if (!all) {
      header_.brief.push_back(fmt::format("  {} {} more", lines.size() + 1 - most, more));
    }
  }
  [[nodiscard]] Header& header() { return header_; }

 private:
  Header header_;
};

// Limits of each kind of line in the brief header. They are so small that with one line of every
// other kind there are 23, and 7 are left for keys.
constexpr std::size_t most_ranks = 3, most_paths = 3, most_files = 3, most_chosen = 2;

void add_job(Lines& lines, slurm::Job const& job) {
  lines.add("Slurm job {}{}; {}", describe(job), job.nodes.empty() ? "" : ", on " + job.nodes,
            job.end ? fmt::format("it ends at {:%Y-%m-%d %H:%M:%S %z}",
                                  fmt::localtime(slurm::TimePoint::clock::to_time_t(*job.end)))
                    : "no end is known");
}

void add_parameters(Lines& lines, config::RunConfig const& config, HeaderFacts const& facts,
                    int ranks) {
  using parameters::Home;
  if (config.parameter_home == Home::device) {
    if (gathers_once(config, ranks)) {
      lines.add("parameters: whole on the device for a step; layers gathered: {}",
                describe_gathers(config, ranks));
    }
    return;
  }
  bool const stored = config.parameter_home == Home::storage;
  bool const shared = config.parameter_home == Home::node;
  lines.add("parameters: {}{}, {}",
            stored   ? "on the storage paths"
            : shared ? "in host memory that the ranks of a node share"
                     : "in host memory",
            stored ? fmt::format(" through {} buffers", facts.memory.parameter_buffers) : "",
            facts.layer_slots > 0
                ? fmt::format("{} layers on the device at a time{}", facts.layer_slots,
                              facts.large_layer_slot ? ", and a larger one" : "")
                : "used where they lie");
}

void add_activations(Lines& lines, config::RunConfig const& config, std::string const& why) {
  using Rule = activations::Policy::Rule;
  auto const& policy = config.train.activations;
  if (config.train.together > 0) {
    double const part = staying_part(config);
    lines.add(
        "schedule: vertical, {} micro-batch{} of a rank pass{} a block together; blocks' inputs "
        "wait {}{}, the rest is computed again",
        config.train.together, config.train.together == 1 ? "" : "es",
        config.train.together == 1 ? "es" : "",
        policy.rule == Rule::recompute || part == 1.0 ? "on the device"
        : policy.storage                              ? "in host memory and on storage"
                                                      : "in host memory",
        part > 0.0 && part < 1.0 ? fmt::format(", {:.0f} % of them on the device", 100.0 * part)
                                 : "");
    return;
  }
  if (policy.rule == Rule::recompute) {
    lines.add("activations: blocks' inputs stay on the device, the rest is computed again");
  } else if (policy.rule == Rule::part) {
    lines.add(
        "activations: blocks' inputs and {:.0f}% of what products make stay on the device, the "
        "rest is computed again",
        100 * policy.share);
  } else if (policy.rule == Rule::swap) {
    lines.add(
        "activations: blocks' inputs and {:.0f}% of what products make go to {}, the "
        "rest is computed again",
        100 * policy.share, policy.storage ? "host memory and storage" : "host memory");
  }
  if (!why.empty()) {
    lines.add("  train.activations=auto: {}", why);
  }
}

void add_storage(Lines& lines, config::RunConfig const& config, HeaderFacts const& facts) {
  auto const bytes =
      config.optimizer.layout().bytes_per_element() * static_cast<double>(facts.parameters);
  lines.add("optimizer state: {}, {}, in {} subgroup{} per rank, {}",
            format_bytes(static_cast<Bytes>(std::llround(bytes))), describe_state(config.optimizer),
            facts.subgroups, facts.subgroups == 1 ? "" : "s",
            config.paths.empty() ? "in host memory"
                                 : fmt::format("on {} storage path{}", config.paths.size(),
                                               config.paths.size() == 1 ? "" : "s"));
  std::vector<std::string> paths;
  for (std::size_t path = 0; path < std::min(config.paths.size(), facts.paths.size()); ++path) {
    auto const lock = describe(facts.paths[path].lock);
    paths.push_back(fmt::format("  path {}  {}{}{}, {}", config.paths[path].directory,
                                describe_rates(config.paths[path], facts.paths[path].rate),
                                lock.empty() ? "" : ", ", lock,
                                describe_slots(config.paths[path], facts.paths[path])));
  }
  lines.add_some(paths, most_paths, "paths");
  plan::MemoryPlan const& memory = facts.memory;
  if (!config.paths.empty()) {
    lines.add("per rank, of {} subgroup{} of {} parameters: {} buffers, {} cached; {}",
              memory.subgroups, memory.subgroups == 1 ? "" : "s", memory.subgroup_elements,
              memory.buffers, memory.cached, describe_gradients(memory, config.flushes_fp32()));
  }
  for (std::string const& row : facts.memory_table) {
    lines.add_full("{}", row);
  }
  lines.add("host memory per node: {} planned (state {}, gradients {}{} per rank), limit {}",
            format_bytes(memory.node_total), format_bytes(memory.state),
            format_bytes(memory.gradients),
            memory.parameters > 0 ? ", parameters " + format_bytes(memory.parameters) : "",
            format_bytes(facts.host_memory_limit));
}

void add_machine(Lines& lines, config::RunConfig const& config, HeaderFacts const& facts,
                 int ranks) {
  lines.add("{}, {}, {}", program_text(config.commit), mpi::library_version(),
            name_of(best_simd()));
  lines.add("{} rank{} on {} node{}, device {}{}{}", ranks, ranks == 1 ? "" : "s", facts.nodes,
            facts.nodes == 1 ? "" : "s", facts.device, facts.libraries.empty() ? "" : ", ",
            facts.libraries);
  if (!facts.attention.empty()) {
    lines.add("attention: {}", facts.attention);
  }
  if (!facts.link.empty()) {
    lines.add("layers between ranks: {}", facts.link);
  }
  if (config.job) {
    add_job(lines, *config.job);
  }
}

/// Adds keys in the room that is left at the end.
void add_configuration(Lines& lines, config::RunConfig const& config) {
  Header& header = lines.header();
  header.full.emplace_back("configuration:");
  for (config::Setting const& setting : config.settings) {
    header.full.push_back(fmt::format("  {:<28} {:<32} {}", setting.key,
                                      setting.value.empty() ? "-" : setting.value, setting.origin));
  }
  header.brief.push_back(fmt::format("configuration: beside defaults, all of which are in {}/{}",
                                     config.run_dir, header_name));
  auto const used = std::min(header.brief.size(), Header::short_lines);
  for (auto& line : describe_given(config.settings, Header::short_lines - used)) {
    header.brief.push_back(std::move(line));
  }
}

constexpr char const* command_line = "command line";

/// The source of a setting: "a.cfg" of "a.cfg:12".
std::string source_of(config::Setting const& setting) {
  if (setting.origin.starts_with("--")) {
    return command_line;
  }
  auto const colon = setting.origin.rfind(':');
  bool const has_line =
      colon != std::string::npos && colon + 1 < setting.origin.size() &&
      setting.origin.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return setting.origin.substr(0, has_line ? colon : std::string::npos);
}

}  // namespace

std::vector<std::string> node_names(std::string const& mine, mpi::Communicator const& comm) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for (std::string const& each : comm.all_gather_texts(mine)) {
    if (known.insert(each).second) {
      names.push_back(each);
    }
  }
  return names;
}

std::vector<std::string> describe_given(std::vector<config::Setting> const& settings,
                                        std::size_t most) {
  constexpr std::size_t width = 100;
  struct Line {
    std::string text;
    std::size_t keys{};
  };
  std::vector<std::string> sources;
  for (config::Setting const& setting : settings) {
    if (!is_usual(setting) && std::ranges::find(sources, source_of(setting)) == sources.end()) {
      sources.push_back(source_of(setting));
    }
  }
  std::ranges::stable_partition(sources, [](auto const& s) { return s != command_line; });
  std::vector<Line> lines;
  for (std::string const& source : sources) {
    lines.push_back({fmt::format("  {}:", source)});
    for (config::Setting const& setting : settings) {
      if (is_usual(setting) || source_of(setting) != source) {
        continue;
      }
      auto const word = fmt::format(" {}={}", setting.key, setting.value);
      if (lines.back().keys > 0 && lines.back().text.size() + word.size() > width) {
        lines.push_back({"   "});
      }
      lines.back().text += word;
      ++lines.back().keys;
    }
  }
  std::vector<std::string> shown;
  std::size_t left = 0;
  for (Line& line : lines) {
    if (shown.size() < most) {
      shown.push_back(std::move(line.text));
    } else {
      left += line.keys;
    }
  }
  if (left > 0 && !shown.empty()) {
    shown.back() += fmt::format(" and {} more", left);
  }
  return shown;
}

Header make_header(config::RunConfig const& config, HeaderFacts const& facts,
                   mpi::Communicator const& comm) {
  auto const mine = place_line(facts.place, config.node);
  auto const node_texts = comm.gather_texts(mine.node);
  auto const place_texts = comm.gather_texts(mine.place);
  if (comm.rank() != 0) {
    return {};
  }
  Lines lines;
  add_machine(lines, config, facts, comm.size());
  std::vector<PlaceLine> places;
  for (std::size_t rank = 0; rank < node_texts.size(); ++rank) {
    places.push_back({node_texts[rank], place_texts[rank]});
  }
  std::vector<std::string> ranks;
  for (std::string const& line : describe_places(places)) {
    ranks.push_back("  " + line);
  }
  lines.add_some(ranks, most_ranks, "places of ranks");
  lines.add("model: {} parameters, working copy {}", facts.parameters,
            name_of(config.numerics.dtype));
  lines.add("a step: {}", describe_step(config, comm.size()));
  lines.add_some(facts.data, most_files, "files");
  lines.add_some(facts.chosen, most_chosen, "lines on what was planned");
  add_parameters(lines, config, facts, comm.size());
  if (auto const sums = describe_sums(config); !sums.empty()) {
    lines.add("gradients: summed in {}", sums);
  }
  add_activations(lines, config, facts.activations);
  add_storage(lines, config, facts);
  add_configuration(lines, config);
  return std::move(lines.header());
}

}  // namespace offstage::train
