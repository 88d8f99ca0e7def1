#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <boost/program_options.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/quoted.hpp"
#include "base/regular_file.hpp"
#include "base/version.hpp"
#include "cli/all_ranks.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "config/key_table.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "launch/launcher.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/memory/process_memory.hpp"
#include "probe/figures.hpp"
#include "probe/measure.hpp"
#include "tiers/spill_directory.hpp"
#include "tiers/storage_path.hpp"
#include "train/settle/run_device.hpp"
#include "train/settle/run_rank_link.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;
using probe::Figure;

constexpr char const* probe_usage =
    R"(Usage: offstage probe [--output FILE] [--dir PATH[,ATTRIBUTE...]]... [--quick]
                      [--device.kind=auto|cuda|host] [--device.emulate=...] [--key=value]...

Measures what a plan needs to know of this machine: the link to the device, each direction alone
and both at once; AdamW, products and a block's forward and backward on the device; AdamW,
memory and sums of gradients on the cores; layers between ranks; storage paths.
Under mpirun or srun each rank measures alone on its node, then all together: start as many as a
run will have. What was moved is compared with what was sent. Ranks and nodes slower than 0.8 of
the median are named.
  --output FILE  a config with the figures of all ranks together, for --config of train and plan;
                 without it the config is printed, and the table goes to standard error
  --dir PATH     a storage path as tiers.path has it; once for each
  --quick        a rough look in a moment
Keys, as train has them: device.kind, device.emulate, device.memory, device.share-gpu,
run.threads, numerics.dtype.

  offstage probe --output node.cfg --dir /local/scratch/me --dir /pfs/me
  mpirun -n 4 offstage probe --output node.cfg)";

constexpr std::array keys_taken{"device.kind",      "device.emulate", "device.memory",
                                "device.share-gpu", "run.threads",    "numerics.dtype"};

struct Effort {
  probe::Effort memory;
  Seconds storage_time{1.0};
  Bytes storage_most = 2 * GiB;
};
/// Shape of the measured products: as wide as in a model of some billions of parameters, with a
/// micro-batch's tokens as rows.
constexpr probe::ProductShape product_shape{.rows = 8192, .in = 4096, .out = 16384};
constexpr Effort quick_effort{
    {.bytes = 8 * MiB, .rounds = 2, .least = Seconds{0.02}}, Seconds{0.05}, 16 * MiB};

struct Order {
  config::RunConfig config;  ///< only the keys above are set
  std::string output;        ///< empty: the config is printed
  std::string emulation;     ///< device.emulate as it was given
  std::vector<std::string> dirs;
  Effort effort;
};

void set_key(char const* name, GivenOptions const& given, config::RunConfig& config) {
  config::Key const& key = *config::find_key(name);
  std::string const value =
      given.contains(name) ? given[name].as<std::string>() : std::string{*key.fallback};
  try {
    key.set(config, value);
  } catch (UsageError const& error) {
    throw UsageError{fmt::format("--{}={}: {}", name, value, error.what())};
  }
}

Order read_order(Arguments const& arguments) {
  po::options_description options;
  options.add_options()("output", po::value<std::string>()->default_value(""));
  options.add_options()("dir", po::value<std::vector<std::string>>()->composing());
  options.add_options()("quick", po::bool_switch());
  for (char const* key : keys_taken) {
    options.add_options()(key, po::value<std::string>());
  }
  auto const given = parse_command_options(arguments, options, "probe");
  Order order;
  for (char const* key : keys_taken) {
    set_key(key, given, order.config);
  }
  config::validate(order.config.device);
  order.output = given["output"].as<std::string>();
  if (given.contains("device.emulate")) {
    order.emulation = given["device.emulate"].as<std::string>();
  }
  if (given.contains("dir")) {
    order.dirs = given["dir"].as<std::vector<std::string>>();
  }
  for (std::string const& dir : order.dirs) {
    if (dir.find('#') != std::string::npos) {
      throw UsageError{
          fmt::format("--dir={}: '#' begins a comment in a config; use another path", dir)};
    }
    if (!fits_a_line(dir)) {
      throw UsageError{
          fmt::format("--dir={}: a config cannot hold control characters; use another path", dir)};
    }
    try {
      order.config.paths.push_back(tiers::parse_path(dir));
    } catch (UsageError const& error) {
      throw UsageError{fmt::format("--dir={}: {}", dir, error.what())};
    }
  }
  if (given["quick"].as<bool>()) {
    order.effort = quick_effort;
  }
  return order;
}

/// Refuses an --output that cannot be written, before anything is measured. The file is made at the
/// end, so that a signal in between leaves no part of it. Errors: UsageError, IoError.
void check_output(std::string const& path) {
  std::error_code ignored;
  if (path.ends_with('/') || std::filesystem::is_directory(path, ignored)) {
    throw UsageError{fmt::format("--output={}: it is a directory; name a file", path)};
  }
  WholeFile const tried{"--output", path};
}

/// Runs `work`. An error of a storage path names the option that it came from here, --dir.
template <class Work>
void name_dir_in_errors(Work const& work) {
  constexpr std::string_view key = "tiers.path = ";
  try {
    work();
  } catch (IoError const& error) {
    std::string const text = error.what();
    if (!text.starts_with(key)) {
      throw;
    }
    throw IoError{"--dir=" + text.substr(key.size()), error.error_number()};
  }
}

std::string host_of_rank(int rank, mpi::Communicator const& comm) {
  return comm.broadcast(comm.rank() == rank ? cpu::host_name() : std::string{}, rank);
}

/// The measurements, in steps that all ranks take together.
class Probing {
 public:
  Probing(Order const& order, mpi::Communicator const& comm)
      : order_{order},
        comm_{comm},
        node_{comm.split_by_node()},
        cuda_{train::uses_gpus(order.config.device, comm)},
        place_{launch::take_place(comm, {.threads = order.config.threads,
                                         .share_gpu = order.config.device.share_gpu || !cuda_})} {
    device_ = make_device();
    for (int rank = 0; rank < comm.size(); ++rank) {
      hosts_.push_back(host_of_rank(rank, comm));
    }
    nodes_ = static_cast<int>(comm.sum(node_.rank() == 0 ? 1 : 0));
    effort_ = probe::within(effort_, least_memory());
  }

  [[nodiscard]] probe::Measured measure();
  [[nodiscard]] std::vector<probe::ProbedPath> measure_paths();
  [[nodiscard]] probe::Occasion occasion() const;

 private:
  [[nodiscard]] std::unique_ptr<device::Device> make_device() const;
  [[nodiscard]] Bytes least_memory() const;
  void measure_step(int step, probe::Figures& figures);
  [[nodiscard]] double measure_rank_link();
  static constexpr int steps = 7;

  Order const& order_;
  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  bool cuda_;
  launch::RankPlace place_;
  std::unique_ptr<device::Device> device_;
  std::vector<std::string> hosts_;
  int nodes_{};
  probe::Effort effort_ = order_.effort.memory;
};

std::unique_ptr<device::Device> Probing::make_device() const {
  mpi::agree(comm_, [&] {
    if (cuda_ && !place_.placement.gpu) {
      throw UsageError{"--device.kind=cuda: this rank has no GPU; start fewer ranks"};
    }
  });
  return train::make_run_device(order_.config.device,
                                cuda_ ? place_.placement : launch::Placement{}, comm_);
}

/// Host memory of the rank that has least. Collective.
Bytes Probing::least_memory() const {
  Bytes mine{};
  mpi::agree(comm_, [&] { mine = memory::available_bytes() / node_.size(); });
  return comm_.minimum(mine);
}

void Probing::measure_step(int step, probe::Figures& figures) {
  auto const at = [&](Figure figure) -> double& {
    return figures.at(static_cast<std::size_t>(figure));
  };
  auto const& effort = effort_;
  DType const dtype = order_.config.numerics.dtype;
  switch (step) {
    case 0: {
      auto const link = probe::measure_link(*device_, effort);
      at(Figure::to_device) = link.to_device;
      at(Figure::to_host) = link.to_host;
      at(Figure::to_device_both) = link.to_device_both;
      at(Figure::to_host_both) = link.to_host_both;
      at(Figure::to_device_pageable) = link.to_device_pageable;
      at(Figure::to_host_pageable) = link.to_host_pageable;
      return;
    }
    case 1:
      at(Figure::cpu_update) =
          probe::measure_cpu_update(dtype, order_.config.device.emulation, effort);
      return;
    case 2:
      at(Figure::device_update) = probe::measure_device_update(*device_, dtype, effort);
      return;
    case 3:
      at(Figure::host_memory) = probe::measure_host_memory(effort);
      return;
    case 4:
      at(Figure::product) = probe::measure_product(*device_, dtype, product_shape, effort);
      return;
    case 5: {
      auto const block = probe::measure_block(*device_, dtype, effort);
      at(Figure::block_forward) = block.forward;
      at(Figure::block_backward) = block.backward;
      return;
    }
    default:
      at(Figure::accumulation) =
          probe::measure_accumulation(dtype, order_.config.device.emulation, effort);
  }
}

// One rank of each node measures at a time, because nodes do not disturb each other.
probe::Measured Probing::measure() {
  probe::Figures alone{};
  auto const most = static_cast<int>(comm_.maximum(static_cast<std::int64_t>(node_.size())));
  for (int turn = 0; turn < most; ++turn) {
    mpi::agree(comm_, [&] {
      for (int step = 0; turn == node_.rank() && step < steps; ++step) {
        measure_step(step, alone);
      }
    });
  }
  probe::Measured measured{comm_.all_gather_value(alone), {}, hosts_};
  if (comm_.size() > 1) {
    probe::Figures together{};
    for (int step = 0; step < steps; ++step) {
      comm_.barrier();
      mpi::agree(comm_, [&] { measure_step(step, together); });
    }
    together.at(static_cast<std::size_t>(Figure::rank_link)) = measure_rank_link();
    measured.together = comm_.all_gather_value(together);
  }
  return measured;
}

// This measurement is the last, because a library that passes layers on takes device memory for
// good.
double Probing::measure_rank_link() {
  auto const made = train::make_run_rank_link(config::CommBackend::automatic, comm_, *device_,
                                              cuda_ ? place_.placement.gpu : std::nullopt);
  return probe::measure_rank_link(*device_, *made.link, effort_);
}

std::vector<probe::ProbedPath> Probing::measure_paths() {
  std::vector<probe::ProbedPath> probed;
  std::shared_ptr<tiers::PathSet> paths;
  mpi::agree(comm_, [&] {
    name_dir_in_errors([&] { paths = tiers::make_paths({.paths = order_.config.paths}); });
  });
  for (std::size_t i = 0; i < paths->size(); ++i) {
    if (comm_.rank() == 0 && tiers::lies_in_memory(order_.config.paths[i].directory)) {
      log::warning("--dir={} lies in host memory (tmpfs): these are the memory's rates",
                   order_.config.paths[i].directory);
    }
    plan::PathRate rate;
    bool const mine = node_.rank() == 0;
    comm_.barrier();
    mpi::agree(comm_, [&] {
      if (mine) {
        auto const spill =
            tiers::spill_name({.job = "",
                               .run = "probe",
                               .host = hosts_[static_cast<std::size_t>(comm_.rank())],
                               .process = getpid(),
                               .rank = comm_.rank()});
        name_dir_in_errors([&] {
          rate = tiers::measure_rates(
              *(*paths)[i], spill,
              {.time = order_.effort.storage_time, .most = order_.effort.storage_most});
        });
      }
    });
    struct OfRank {
      plan::PathRate rate;
      bool measured;
    };
    auto const all = comm_.all_gather_value(OfRank{rate, mine});
    auto& path = probed.emplace_back(probe::ProbedPath{order_.dirs[i], {}, {}});
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].measured) {
        path.rates.push_back(all[rank].rate);
        path.hosts.push_back(hosts_[rank]);
      }
    }
  }
  return probed;
}

probe::Occasion Probing::occasion() const {
  auto const now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {.version = version(),
          .date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(now)),
          .device = device_->name(),
          .emulation = order_.emulation,
          .on_host = !cuda_,
          .nodes = nodes_,
          .threads = place_.threads};
}

/// `aside`: the tables go to standard error.
void print(Probing const& probing, probe::Measured const& measured,
           std::vector<probe::ProbedPath> const& paths, bool aside) {
  auto const write_line = aside ? log::write_aside : log::write_info;
  auto const occasion = probing.occasion();
  write_line(fmt::format("{} rank{} on {} node{}, device {}, {} thread{} each",
                         measured.hosts.size(), measured.hosts.size() == 1 ? "" : "s",
                         occasion.nodes, occasion.nodes == 1 ? "" : "s", occasion.device,
                         occasion.threads, occasion.threads == 1 ? "" : "s"));
  for (auto const& lines : {probe::table(measured), probe::table(paths)}) {
    for (std::string const& line : lines) {
      write_line(line);
    }
  }
  for (auto const& lines : {probe::outliers(measured), probe::outliers(paths)}) {
    for (std::string const& line : lines) {
      log::write_warning(line);
    }
  }
}

void probe_together(Arguments const& arguments, mpi::Communicator const& comm) {
  Order order;
  mpi::agree(comm, [&] {
    order = read_order(arguments);
    if (comm.rank() == 0 && !order.output.empty()) {
      check_output(order.output);
    }
  });
  Probing probing{order, comm};
  // Storage is first, so that its errors are found before the rest has taken its time.
  auto const paths = probing.measure_paths();
  auto const measured = probing.measure();
  mpi::agree(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    print(probing, measured, paths, /*aside=*/order.output.empty());
    auto const text = probe::platform_config(measured, paths, probing.occasion());
    if (order.output.empty()) {
      log::write_lines(text);
    } else {
      WholeFile{"--output", order.output}.commit(text);
      log::info("wrote {}", order.output);
    }
  });
}

}  // namespace

ExitCode probe_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(probe_usage);
    return ExitCode::done;
  }
  std::signal(SIGPIPE, SIG_IGN);  // --output is written for a reader of the table that is gone, too
  return on_all_ranks([&](mpi::Communicator const& comm) { probe_together(arguments, comm); });
}

}  // namespace offstage::cli
