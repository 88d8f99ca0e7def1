#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// How the processes of a node share a storage path, and why.
struct LockChoice {
  bool exclusive{};  ///< they take turns
  /// Bytes per second that the processes of a node move together, taking turns and all at once; 0:
  /// not measured.
  double in_turn{}, at_once{};
  std::string problem{};  ///< why they could not be measured; empty otherwise
};

/// Whether taking turns pays: it does unless all at once move more, as transfers are shorter then
/// (MLP Figure 5).
[[nodiscard]] bool turns_pay(double in_turn, double at_once);

/// Where transfers are to be tried.
struct LockTrial {
  std::string spill;            ///< a name for make_spill_file, of this rank alone
  std::span<std::byte> shared;  ///< tiers::shared_bytes zero bytes that the node's processes share
  Bytes memory{};               ///< that this rank may take
};

/// Settles tiers.exclusive for each path, the same on all ranks. `auto`: on a node of several ranks
/// all of them read and write the path for some tenths of a second, taking turns and all at once,
/// alternately, through the locks and with transfers such as the run will make; figures of several
/// nodes are averaged. Paths of one device share a lock, so the first of them is tried for all.
/// Processes take turns where this fails (the path's own errors come when the run uses it), where
/// the path is so slow that it would take seconds, and where its transfers pass through the page
/// cache. No turns are needed where no node has two ranks, but on paths of one device.
/// Files:  as make_spill_file; nothing is left behind.
/// Collective over `comm` and `node`, its ranks of this node. Errors: mpi::AgreedError: a path that
///         cannot be looked at.
[[nodiscard]] std::vector<LockChoice> choose_locks(config::RunConfig const& config,
                                                   mpi::Communicator const& comm,
                                                   mpi::Communicator const& node,
                                                   LockTrial const& trial);

/// "processes take turns (2.10 GB/s, 1.43 GB/s all at once)"; empty where nothing was to be
/// settled.
[[nodiscard]] std::string describe(LockChoice const& choice);

}  // namespace offstage::train
