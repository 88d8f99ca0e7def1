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
  launch::RankPlace const& place;  ///< this rank's place
  int nodes{};
  std::int64_t parameters{};
  std::string device;
  std::string libraries{};  ///< libraries on whose versions the device's bits depend; may be empty
  std::string attention{};  ///< text on attention (RunAttention); empty: not on GPUs
  /// With plan.choose=on: the choice and its reasons; else empty.
  std::vector<std::string> chosen{};
  /// Reason for the choice of train.activations=auto; empty: it was made without rates.
  std::string activations{};
  std::string link{};  ///< way of layers from rank to rank; empty for one rank
  plan::MemoryPlan memory;
  /// Layers that are brought to the device at a time; 0: none has to be brought.
  int layer_slots{};
  bool large_layer_slot{};  ///< there is another slot for larger layers (state::LayerSlotSizes)
  Bytes host_memory_limit{};
  std::int64_t subgroups{};                 ///< rank 0's
  std::vector<PathFacts> paths{};           ///< in the order of tiers.path
  std::vector<std::string> memory_table{};  ///< rank 0's (memory_table.hpp)
  std::vector<std::string> data{};          ///< a line per file (data_lines.hpp)
};

/// Names of the ranks' nodes in the order of ranks, each once; `mine` is this rank's. Collective.
[[nodiscard]] std::vector<std::string> node_names(std::string const& mine,
                                                  mpi::Communicator const& comm);

/// The name of the file in run.dir that has Header::full.
constexpr char const* header_name = "header.txt";

/// Facts that a reader of the log needs to repeat the run: version, build, MPI, instruction set,
/// the Slurm job with its end, each rank's host, GPU, NUMA domain, cores and threads, memory plan,
/// a line for each storage path and each file of data, every key with its origin. Empty but on rank
/// 0.
struct Header {
  /// The brief header, of at most `short_lines` lines: the first of many ranks, paths and files,
  /// and the keys that are no defaults.
  std::vector<std::string> brief;
  std::vector<std::string> full;

  static constexpr std::size_t short_lines = 30;
};
/// Makes the header. Collective.
[[nodiscard]] Header make_header(config::RunConfig const& config, HeaderFacts const& facts,
                                 mpi::Communicator const& comm);

/// Keys whose values are no defaults, as "SOURCE: KEY=VALUE KEY=VALUE" behind two blanks, files
/// first, in at most `most` lines of about 100 characters. If these are not all keys, the last line
/// says how many more there are. Pure.
[[nodiscard]] std::vector<std::string> describe_given(std::vector<config::Setting> const& settings,
                                                      std::size_t most);

}  // namespace offstage::train
