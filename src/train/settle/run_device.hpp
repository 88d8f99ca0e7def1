#pragma once

#include <memory>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "launch/launcher.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Whether the ranks compute on GPUs, which all do or none. device.kind=auto: where each of them
/// sees one and none is to be emulated; where some see one and others do not, or a driver is there
/// that cannot be used, a rank says so in a warning. Collective. Errors: mpi::AgreedError:
/// device.kind=cuda, but a rank can use no GPU, which says why.
[[nodiscard]] bool uses_gpus(config::DeviceConfig const& config, mpi::Communicator const& comm);

/// Goes to this rank's place, which has a GPU if ranks compute on them and none otherwise.
/// device.kind=auto: where GPUs do not suffice for the ranks, on the host; rank 0 says so.
/// Collective. Errors: as uses_gpus and launch::take_place; mpi::AgreedError: a GPU that a rank
/// sees cannot be used.
[[nodiscard]] launch::RankPlace take_run_place(config::RunConfig const& config,
                                               mpi::Communicator const& comm);

/// A rank's device: its place's GPU, of whose free memory the ranks that share it have equal parts,
/// or the emulated device if it has none. Collective. Errors: as make_cuda_device, as
/// mpi::AgreedError.
[[nodiscard]] std::unique_ptr<device::Device> make_run_device(config::DeviceConfig const& config,
                                                              launch::Placement const& place,
                                                              mpi::Communicator const& comm);

}  // namespace offstage::train
