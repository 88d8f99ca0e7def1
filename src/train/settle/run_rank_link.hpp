#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/topology/topology.hpp"
#include "state/rank_link.hpp"
#include "train/settle/rank_link_needs.hpp"

namespace offstage::train {

/// Facts that decide the way of layers from rank to rank, the same on all ranks.
struct RankLinkFacts {
  int ranks = 1;
  int ranks_per_node = 1;     ///< the largest number
  bool gpus = false;          ///< the ranks compute on GPUs
  bool host_visible = true;   ///< without GPUs: the host sees the emulated device's memory
  bool mpi_is_aware = false;  ///< MPI takes addresses of GPU memory
  bool nccl = false;          ///< NCCL can be used
  std::string about_nccl{};   ///< NCCL's version, or why it cannot be used
  bool assumed = false;       ///< the nodes were not looked at; their GPUs and libnccl are assumed
  Bytes device_memory{};      ///< the least of all ranks; 0: not known
  RankLinkNeeds needs{};
};

struct RankLinkChoice {
  bool nccl = false;
  state::Route route = state::Route::in_place;
  std::string text{};    ///< in words: library, way and reason; empty for one rank
  Bytes device_bytes{};  ///< memory of a rank's device that NCCL is expected to take for itself
  /// comm.backend=auto has left NCCL out for want of device memory; else empty.
  std::string warning{};
};

/// Chooses the link.
/// Errors: UsageError: comm.backend=nccl is impossible; names the reason and the remedy.
[[nodiscard]] RankLinkChoice choose_rank_link(config::CommBackend asked,
                                              RankLinkFacts const& facts);

/// Chooses the link of a planned run, with this program, on nodes whose ranks have GPUs of their
/// own unless the device is emulated.
[[nodiscard]] RankLinkChoice plan_rank_link(config::RunConfig const& config, int ranks,
                                            int ranks_per_node);

/// The link by which the ranks of a run pass layers.
struct RunRankLink {
  std::unique_ptr<state::RankLink> link;
  std::string text;  ///< as RankLinkChoice's
};

/// Makes the link. `gpu` is this rank's; `comm` must outlive the link. On return NCCL has connected
/// all ranks. The device memory that it has taken, with a margin, is set aside and is the link's
/// device_bytes(). It is at most the expected memory, unless NCCL took more; then rank 0 warns.
/// Collective.
/// Errors: as choose_rank_link, as mpi::AgreedError; nccl::NcclError; UsageError, as
///         mpi::AgreedError, if the device has no room for it; names what helps.
[[nodiscard]] RunRankLink make_run_rank_link(config::CommBackend asked,
                                             mpi::Communicator const& comm, device::Device& device,
                                             std::optional<topology::VisibleGpu> const& gpu,
                                             RankLinkNeeds const& needs = {});

}  // namespace offstage::train
