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
#include "train/settle/link_needs.hpp"

namespace offstage::train {

/// Facts that decide how layers get from rank to rank, the same on all of them.
struct LinkFacts {
  int ranks = 1;
  int ranks_per_node = 1;     ///< the most
  bool gpus = false;          ///< the ranks compute on GPUs
  bool host_visible = true;   ///< else: of the emulated device
  bool mpi_is_aware = false;  ///< MPI takes addresses of GPU memory
  bool nccl = false;          ///< it can be used
  std::string about_nccl{};   ///< its version, or why it cannot
  bool assumed = false;   ///< nobody has looked at the nodes: their GPUs and libnccl are assumed
  Bytes device_memory{};  ///< the least that a rank has; 0: not known
  LinkNeeds needs{};
};

struct LinkChoice {
  bool nccl = false;
  state::Route route = state::Route::in_place;
  std::string text{};     ///< for people: by what, which way, and why; empty for one rank
  Bytes device_bytes{};   ///< of a rank's device, that NCCL is expected to take for itself
  std::string warning{};  ///< comm.backend=auto has left NCCL out for want of that; empty: not so
};

/// Errors: UsageError: comm.backend=nccl cannot be; names the reason and the remedy.
[[nodiscard]] LinkChoice choose_link(config::CommBackend asked, LinkFacts const& facts);

/// The same for a run that is planned, on this program and on nodes whose ranks have GPUs of their
/// own unless the device is emulated.
[[nodiscard]] LinkChoice plan_link(config::RunConfig const& config, int ranks, int ranks_per_node);

/// How the ranks of a run pass layers on.
struct RunLink {
  std::unique_ptr<state::RankLink> link;
  std::string text;  ///< as LinkChoice's
};

/// `gpu`: this rank's; `comm` outlives the link. NCCL has connected all ranks on return; what it
/// has taken of the device and a margin, but not more than is expected if it took no more (if it
/// did, rank 0 warns), is set aside there and the link's device_bytes(). Collective. Errors: as
/// choose_link, as mpi::AgreedError; nccl::NcclError; UsageError, as mpi::AgreedError: the device
/// has no room for that; names what helps.
[[nodiscard]] RunLink make_run_link(config::CommBackend asked, mpi::Communicator const& comm,
                                    device::Device& device,
                                    std::optional<topology::VisibleGpu> const& gpu,
                                    LinkNeeds const& needs = {});

}  // namespace offstage::train
