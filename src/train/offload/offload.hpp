#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

/// Measures each tiers.path without rates, and writes the rates to `config`: the least of all
/// nodes, so that all ranks plan alike. One rank of each node measures, one path after the other.
/// Collective.
/// Errors: mpi::AgreedError.
void measure_paths(config::RunConfig& config, mpi::Communicator const& comm);

/// The places where state and gradients of a run wait: the storage paths of a node with the locks
/// of its ranks, and this rank's virtual tiers on them.
///
/// Collective: construction, allocate and destruction. Errors there are mpi::AgreedError.
class Offload {
 public:
  /// Opens the paths, and settles whether processes take turns on them (choose_locks). Measures
  /// paths whose rates the split needs and nobody gave, one after the other on one rank of each
  /// node, with at most `measuring_memory` for buffers.
  Offload(config::RunConfig const& config, mpi::Communicator const& comm, trace::Trace* trace,
          Bytes measuring_memory = tiers::path_turn_bytes);

  /// Takes memory and space, as planned. `subgroups` are this rank's. Before that it checks that
  /// the slots of all ranks that share a path, for state and gradients together, fit:
  /// tiers::require_room.
  /// `parameter_element_bytes` is that of a working copy on storage; 0: it is not on storage.
  /// `activations` are the extents of those that may go to storage.
  void allocate(std::vector<state::Subgroup> const& subgroups, plan::MemoryPlan const& plan,
                Bytes gradient_element_bytes, device::Device& device,
                Bytes parameter_element_bytes = 0, std::vector<Bytes> const& activations = {});

  [[nodiscard]] tiers::Tiers& state() noexcept { return *state_; }
  /// The tiers of the gradients. Call it once.
  [[nodiscard]] update::GradientSettings take_gradients(bool accumulate_fp32);
  /// The working copy's extents. Errors: PreconditionError: it does not live on storage.
  [[nodiscard]] tiers::Tiers& parameters();
  /// The tiers of activations. Errors: as parameters().
  [[nodiscard]] tiers::Tiers& activations();
  /// The state of a resident subgroup, in device memory.
  [[nodiscard]] std::span<std::byte> resident(std::int64_t subgroup) const;
  /// The order of the next update, which depends on the subgroups that are in host memory now. It
  /// has no resident subgroups.
  [[nodiscard]] std::vector<std::int64_t> next_order();
  /// The order in which gradients of the same subgroups come.
  [[nodiscard]] std::vector<std::int64_t> descending_order() const;
  /// Extents of the state that may have two versions (Tiers::fetch_on_trial).
  [[nodiscard]] std::int64_t spares() const noexcept { return spares_; }
  /// Call it after each step. The rates by which the split goes follow the reached ones.
  void follow_rates();

  /// The paths; null without storage.
  [[nodiscard]] std::shared_ptr<tiers::PathSet> const& paths() const noexcept { return paths_; }
  /// StoragePath::rate of each path, for the node.
  [[nodiscard]] std::vector<plan::PathRate> rates() const;
  /// Rates that this rank gets while all ranks of the node do the same, for the paths that are
  /// written to.
  [[nodiscard]] std::vector<plan::PathRate> rates_of_rank() const;
  /// Facts for the header.
  [[nodiscard]] std::vector<PathFacts> facts() const;

 private:
  /// The demand on one of the tiers.
  struct Demand {
    std::vector<Bytes> extents;
    tiers::VirtualSettings settings;
  };
  /// The demands on all tiers of a rank.
  struct Demands {
    Demand state;                        ///< state that is not resident
    Demand gradients;                    ///< accumulated gradients
    std::optional<Demand> flushed{};     ///< gradients that are flushed in FP32
    std::optional<Demand> parameters{};  ///< the working copy, if it lives on storage
    std::optional<Demand> activations{};

    /// Calls work(demand) for each, in this order.
    template <class Work>
    void each(Work const& work) const {
      work(state);
      work(gradients);
      for (auto const* const demand : {&flushed, &parameters, &activations}) {
        if (*demand) {
          work(**demand);
        }
      }
    }
  };
  [[nodiscard]] Demands demands(std::vector<state::Subgroup> const& subgroups,
                                plan::MemoryPlan const& plan, Bytes gradient_element_bytes,
                                Bytes parameter_element_bytes,
                                std::vector<Bytes> const& activations) const;
  void find_room(Demands const& demands);
  void find_descriptors(Demands const& demands) const;
  /// The shape of slots that have their names in `directory`; null without subgroups.
  [[nodiscard]] std::shared_ptr<tiers::KeptFileShape> shape_of_slots(
      std::span<state::Subgroup const> subgroups, std::string const& directory) const;
  void measure(mpi::Communicator const& node, Bytes memory);

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  trace::Trace* trace_;
  std::unique_ptr<mpi::SharedWindow> window_;  ///< null without paths
  std::vector<LockChoice> locks_;              ///< lock choice of each path
  std::shared_ptr<tiers::PathSet> paths_;
  std::unique_ptr<tiers::Tiers> state_;
  tiers::DeviceTiers* residents_{};  ///< state_ if some are resident; else null
  update::GradientSettings gradients_;
  std::unique_ptr<tiers::Tiers> parameters_;   ///< null unless they live on storage
  std::unique_ptr<tiers::Tiers> activations_;  ///< null unless some activations go to storage
  std::vector<PathFacts> facts_;               ///< without the rates
  plan::PathSharer sharer_;                    ///< this rank among those of its node
  std::int64_t subgroups_{};                   ///< subgroups that are not resident
  std::int64_t spares_{};
  std::int64_t passes_ = 1;  ///< pass 0 is the making of first versions, in ascending order
};

}  // namespace offstage::train
