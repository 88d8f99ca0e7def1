#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "launch/launcher.hpp"
#include "plan/memory.hpp"
#include "plan/split.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/offload/path_facts.hpp"

namespace offstage::train {

/// Facts that the header shows beside the configuration.
struct HeaderFacts {
  launch::RankPlace const& place;  ///< of this rank
  int nodes{};
  std::int64_t parameters{};
  std::string device;
  std::string libraries{};            ///< on whose versions the device's bits depend; may be empty
  std::string attention{};            ///< who computes it; empty: not on GPUs
  std::vector<std::string> chosen{};  ///< by plan.choose=on: what and why; else empty
  std::string activations{};  ///< why train.activations=auto has chosen so; empty: without rates
  std::string link{};         ///< how layers get from rank to rank; empty for one rank
  plan::MemoryPlan memory;
  int parameter_slots{};  ///< layers that are brought to the device at a time; 0: none has to be
  bool large_slot{};      ///< beside them, for layers that are larger (state::SlotSizes)
  Bytes host_memory_limit{};
  std::int64_t subgroups{};                 ///< of rank 0
  std::vector<PathFacts> paths{};           ///< in the order of tiers.path
  std::vector<std::string> memory_table{};  ///< of rank 0 (memory_table.hpp)
  std::vector<std::string> data{};          ///< a line per file (data_lines.hpp)
};

/// The nodes of the ranks in the order of ranks, each once; `mine` is this rank's. Collective.
[[nodiscard]] std::vector<std::string> node_names(std::string const& mine,
                                                  mpi::Communicator const& comm);

/// The name of the file in run.dir that has Header::full.
constexpr char const* header_name = "header.txt";

/// Facts that a reader of the log needs to repeat the run: version, build, MPI, instruction set,
/// the Slurm job with its end, each rank's host, GPU, NUMA domain, cores and threads, memory plan,
/// a line for each storage path and each file of data, every key with its origin. Empty but on rank
/// 0.
struct Header {
  /// `short_lines` at most: of many ranks, paths and files the first, and of the keys those that
  /// are no defaults.
  std::vector<std::string> brief;
  std::vector<std::string> full;

  static constexpr std::size_t short_lines = 30;
};
/// Collective.
[[nodiscard]] Header make_header(config::RunConfig const& config, HeaderFacts const& facts,
                                 mpi::Communicator const& comm);

/// Keys whose values are no defaults, "  SOURCE: KEY=VALUE KEY=VALUE", files first, in lines of about 100
/// characters, `most` at most; the last of them says how many keys more there are where these are
/// not all. Pure.
[[nodiscard]] std::vector<std::string> describe_given(std::vector<config::Setting> const& settings,
                                                      std::size_t most);

}  // namespace offstage::train
