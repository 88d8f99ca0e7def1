#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/split.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/shared_window.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "tiers/device_tiers.hpp"
#include "tiers/storage_path.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"
#include "train/offload/lock_choice.hpp"
#include "train/offload/path_facts.hpp"
#include "update/gradients/accumulator.hpp"

namespace offstage::train {

/// Measures the tiers.path without rates, and writes the rates to `config`: of nodes the least, so
/// that all plan alike. One rank of each node measures, one path after the other. Collective.
/// Errors: mpi::AgreedError.
void measure_paths(config::RunConfig& config, mpi::Communicator const& comm);

/// Where state and gradients of a run wait: the storage paths of a node with the locks that its
/// ranks share, and this rank's virtual tiers on them.
///
/// Collective: construction, allocate and destruction. Errors there are mpi::AgreedError.
class Offload {
 public:
  /// Opens the paths; settles how processes share them (choose_locks), and measures those whose
  /// rates the split needs and nobody gave, one after the other on one rank of each node; with at
  /// most `measuring_memory` for what is moved.
  Offload(config::RunConfig const& config, mpi::Communicator const& comm, trace::Trace* trace,
          Bytes measuring_memory = tiers::path_hold_bytes);

  /// Takes memory and space, as planned. `subgroups` are this rank's. Before that, the slots of all
  /// ranks of a node and of state and gradients together have to fit: tiers::require_room.
  /// `parameter_element_bytes`: of the working copy that lives on storage; 0: none does.
  /// `activations`: extents of those that may lie on storage.
  void allocate(std::vector<state::Subgroup> const& subgroups, plan::MemoryPlan const& plan,
                Bytes gradient_element_bytes, device::Device& device,
                Bytes parameter_element_bytes = 0, std::vector<Bytes> const& activations = {});

  [[nodiscard]] tiers::Tiers& state() noexcept { return *state_; }
  /// The tiers of the gradients, once.
  [[nodiscard]] update::GradientSettings take_gradients(bool accumulate_fp32);
  /// The working copy's extents. Errors: PreconditionError: it does not live on storage.
  [[nodiscard]] tiers::Tiers& parameters();
  /// The tiers of activations, in the same way.
  [[nodiscard]] tiers::Tiers& activations();
  /// The state of a resident subgroup, in device memory.
  [[nodiscard]] std::span<std::byte> resident(std::int64_t subgroup) const;
  /// The order of the next update, by what is in host memory now; resident subgroups are not in it.
  [[nodiscard]] std::vector<std::int64_t> next_order();
  /// The order in which gradients come, of the same subgroups.
  [[nodiscard]] std::vector<std::int64_t> descending_order() const;
  /// Extents of the state that may have two versions (Tiers::fetch_on_trial).
  [[nodiscard]] std::int64_t spares() const noexcept { return spares_; }
  /// After each step: the rates that the split goes by follow what was reached.
  void follow_rates();

  /// Null without storage.
  [[nodiscard]] std::shared_ptr<tiers::PathSet> const& paths() const noexcept { return paths_; }
  /// StoragePath::rate of each path, the node's.
  [[nodiscard]] std::vector<plan::PathRate> rates() const;
  /// Rates that this rank gets while all ranks of the node do the same, of the paths that are
  /// written to.
  [[nodiscard]] std::vector<plan::PathRate> rates_of_rank() const;
  /// For the header.
  [[nodiscard]] std::vector<PathFacts> facts() const;

 private:
  /// The demand on one of the tiers.
  struct Demand {
    std::vector<Bytes> extents;
    tiers::VirtualSettings settings;
  };
  [[nodiscard]] std::vector<Demand> demands(std::vector<state::Subgroup> const& subgroups,
                                            plan::MemoryPlan const& plan,
                                            Bytes gradient_element_bytes,
                                            Bytes parameter_element_bytes) const;
  void find_room(std::vector<Demand> const& demands);
  void find_descriptors(std::vector<Demand> const& demands) const;
  /// The shape of slots that have their names in `directory`; null without subgroups.
  [[nodiscard]] std::shared_ptr<tiers::KeptFileShape> shape_of_slots(
      std::span<state::Subgroup const> subgroups, std::string const& directory) const;
  void measure(mpi::Communicator const& node, Bytes memory);

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  trace::Trace* trace_;
  std::unique_ptr<mpi::SharedWindow> window_;  ///< null without paths
  std::vector<LockChoice> locks_;              ///< of each path
  std::shared_ptr<tiers::PathSet> paths_;
  std::unique_ptr<tiers::Tiers> state_;
  tiers::DeviceTiers* residents_{};  ///< state_ if some are resident; else null
  update::GradientSettings gradients_;
  std::unique_ptr<tiers::Tiers> parameters_;   ///< null unless they live on storage
  std::unique_ptr<tiers::Tiers> activations_;  ///< likewise
  std::vector<PathFacts> facts_;               ///< without the rates
  plan::PathSharer sharer_;                    ///< this rank among those of its node
  std::int64_t subgroups_{};                   ///< that are not resident
  std::int64_t spares_{};
  std::int64_t passes_ = 1;  ///< the first versions were made in ascending order: pass 0
};

}  // namespace offstage::train
