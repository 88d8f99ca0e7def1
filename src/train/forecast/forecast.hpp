#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/share.hpp"
#include "plan/simulation.hpp"
#include "plan/split.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_table.hpp"

namespace offstage::train {

/// Where a run is to be planned for.
struct ForecastScope {
  int ranks = 1;
  int ranks_per_node = 1;
  Bytes host_memory{};        ///< of a node, where tiers.host-memory=auto
  bool memory_alone = false;  ///< no times: Forecast::step is empty
};

/// The part that a storage path holds of the state of a node's ranks, and of their parameters if they live there.
struct PathForecast {
  std::string directory;
  plan::PathRate rate;  ///< as given; 0: not known
  double weight{};      ///< share of what is on storage
  Bytes bytes{};
};

/// How updates are shared, and how long one takes.
struct UpdateForecast {
  plan::Transfers transfers{};
  double share{};     ///< of what is not resident, on the device
  double resident{};  ///< of the shard
  plan::UpdateTimes times{};
  std::string problem{};  ///< why there are no times: what is not known or does not fit; else empty
};

struct Forecast {
  std::int64_t parameters{};
  std::int64_t shard_elements{};  ///< of the rank with most, padding included
  std::int64_t layers{};
  std::string attention{};            ///< who is assumed to compute it; empty: not on GPUs
  std::string state{};                ///< of the optimizer, in words
  std::vector<std::string> chosen{};  ///< by plan.choose=on: what and why, in lines; else empty
  /// The configuration that was planned: what was given, with what was chosen.
  config::RunConfig config{};
  std::string activations{};      ///< as train.activations is settled
  std::string activations_why{};  ///< ActivationChoice::why
  std::string link{};     ///< how layers get from rank to rank, and why so; empty for one rank
  std::string sums{};     ///< blocks of numerics.sum-block, in words; empty: sums have one level
  std::string gathers{};  ///< how many of them, in words; empty: none, or parameters live elsewhere
  int nodes{};
  plan::MemoryPlan memory{};      ///< of this configuration
  Bytes host_limit{};             ///< per node
  DeviceDemand device{};          ///< of that rank
  std::vector<MemoryRow> rows{};  ///< of that rank
  std::vector<PathForecast> paths{};
  UpdateForecast update{};
  plan::Prediction step{};  ///< by rates that are known; of forward and backward see compute_known
  bool compute_known{};
  std::int64_t tokens{};  ///< of a step, all ranks
  std::optional<double>
      stride{};  ///< equation 1 of DOS; none: see missing, or the device is the cores
  std::vector<std::string> missing{};  ///< keys without which times are not known
};

/// Memory that a run of this configuration would take and the length of its update phases, by platform.* and
/// the rates of tiers.path alone: nothing is measured and nothing is allocated. The link and host
/// memory of an emulated device that is host_visible count as such: new parameters are written in place.
///
/// Storage: an update reads and writes the extents that are not cached (all, where the oldest leave
///          first and the order ascends), reads gradients that spilled and writes parameters that live there.
///          Paths are those of a node.
/// Errors: UsageError as plan_memory.
[[nodiscard]] Forecast forecast(config::RunConfig const& config, ForecastScope const& scope);

}  // namespace offstage::train
