#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// The way in which the processes of a node use a storage path together, and the reason.
struct LockChoice {
  bool exclusive{};  ///< the processes take turns
  /// Bytes per second that the processes of a node move together, in turns and all at once; 0: not
  /// measured.
  double in_turn{}, at_once{};
  std::string problem{};  ///< why the rates could not be measured; empty otherwise
};

/// Returns whether turns pay. They do unless the processes move more all at once, because transfers
/// are shorter in turns (MLP Figure 5).
[[nodiscard]] bool turns_pay(double in_turn, double at_once);

/// The means for a trial of transfers.
struct LockTrial {
  std::string spill;  ///< a name for make_spill_file that only this rank uses
  /// tiers::shared_bytes zero bytes in memory of all processes of the node.
  std::span<std::byte> shared;
  Bytes memory{};  ///< bytes that this rank may take
};

/// Settles tiers.exclusive for each path, the same on all ranks of which the nodes have the same
/// paths on one device; otherwise it warns. For `auto` all ranks of a node
/// with several read and write the path for some tenths of a second, alternately in turns and all
/// at once. They use the locks, and transfers such as the run will make. Figures of several nodes
/// are averaged. Paths of one device have one lock, so the first of them is tried for all.
/// Processes take turns if the trial fails (the path's own errors come when the run uses it), if
/// the path is so slow that a trial would take seconds, and if its transfers pass through the page
/// cache. If no node has two ranks, turns are needed only on paths of one device.
/// Files:  those of make_spill_file; nothing is left behind. Collective over `comm` and `node`, its
///         ranks on this node.
/// Errors: mpi::AgreedError: a path that cannot be looked at.
[[nodiscard]] std::vector<LockChoice> choose_locks(config::RunConfig const& config,
                                                   mpi::Communicator const& comm,
                                                   mpi::Communicator const& node,
                                                   LockTrial const& trial);

/// The choice in words: "processes take turns (2.10 GB/s, 1.43 GB/s all at once)". Empty if nothing
/// was to be settled.
[[nodiscard]] std::string describe(LockChoice const& choice);

}  // namespace offstage::train
