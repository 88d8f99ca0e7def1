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

/// The machine for which a run is planned.
struct ForecastScope {
  int ranks = 1;
  int ranks_per_node = 1;
  Bytes host_memory{};        ///< a node's, for tiers.host-memory=auto
  Bytes shared_memory{};      ///< a node's that its ranks can share, for parameters.home=node
  bool memory_alone = false;  ///< without times: Forecast::step is empty
};

/// The part of a storage path in the state of a node's ranks, and in their parameters if they live
/// there.
struct PathForecast {
  std::string directory;
  plan::PathRate rate;  ///< given rate; 0: not known
  bool weighed = true;  ///< false: weight and bytes depend on rates that are not known
  double weight{};      ///< part of the extents on storage
  Bytes bytes{};        ///< state of the node's ranks, and parameters whose home is storage
  Bytes endurance{};    ///< as tiers::PathSettings'
  Bytes written{};      ///< bytes that the node's ranks write there in a step; 0 without times
};

/// The division of updates between CPU and device, and the time of one.
struct UpdateForecast {
  plan::Transfers transfers{};
  double share{};     ///< part of the elements that are not resident which the device updates
  double resident{};  ///< part of the shard that is resident
  plan::UpdateTimes times{};
  /// Why there are no times: rates that are not known, or memory that is too small; else empty.
  std::string problem{};
};

struct Forecast {
  std::int64_t parameters{};
  std::int64_t shard_elements{};  ///< elements of the rank with most, with padding
  std::int64_t layers{};
  std::string attention{};  ///< text on attention, as assumed; empty: not on GPUs
  bool cudnn{};             ///< cuDNN computes it
  std::string state{};      ///< the optimizer's state, in words
  /// With plan.choose=on: lines on the choice and its reasons; else empty.
  std::vector<std::string> chosen{};
  /// The configuration that was planned: the given one with the choices.
  config::RunConfig config{};
  std::string activations{};      ///< train.activations as it was settled
  std::string activations_why{};  ///< ActivationChoice::why
  std::string link{};        ///< way of layers from rank to rank and its reason; empty for one rank
  std::string batch{};       ///< a step's sequences and micro-batches, in words
  std::string idle_ranks{};  ///< a warning if ranks have no micro-batch (warning_of_idle_ranks)
  /// A warning if a node's ranks cannot share what the given parameters.home=node takes; else
  /// empty.
  std::string node_home{};
  std::string sums{};  ///< blocks of numerics.sum-block, in words; empty: sums have one level
  /// Number of gathers, in words; empty: none, or parameters live elsewhere.
  std::string gathers{};
  int nodes{};
  plan::MemoryPlan memory{};      ///< memory plan of this configuration
  Bytes host_limit{};             ///< per node
  DeviceDemand device{};          ///< device memory of the rank with most
  std::vector<MemoryRow> rows{};  ///< memory table of the rank with most
  std::vector<PathForecast> paths{};
  UpdateForecast update{};
  /// Times by the known rates; for forward and backward see compute_known.
  plan::Prediction step{};
  bool compute_known{};
  std::int64_t tokens{};  ///< tokens of a step, all ranks
  /// Equation 1 of DOS; none: see missing, or the device is the cores.
  std::optional<double> stride{};
  std::vector<std::string> missing{};  ///< keys of rates without which there are no times
};

/// Returns whether two runs that differ in where and when things are done alone, or in the way of
/// attention and of accumulation, have the same weights to the bit.
[[nodiscard]] bool have_same_bits(Forecast const& one, Forecast const& other);

/// Returns whether no count of activations or tokens overflows. What is not countable is beyond
/// every device.
[[nodiscard]] bool is_countable(config::RunConfig const& config);

/// Forecasts the memory and the times of a run of this configuration, from platform.* and the rates
/// of tiers.path alone. Nothing is measured or allocated. An emulated device is taken as
/// host_visible if it would be: new parameters are written in place.
///
/// Storage: an update reads and writes the extents that are not cached (all extents if the oldest
///          leave first and the order ascends), reads spilled gradients, and writes parameters that
///          live there. Paths are a node's.
/// Errors: UsageError as plan_memory.
[[nodiscard]] Forecast forecast(config::RunConfig const& config, ForecastScope const& scope);

}  // namespace offstage::train
