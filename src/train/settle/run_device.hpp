#pragma once

#include <memory>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "launch/launcher.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Returns whether the ranks compute on GPUs; all do, or none. With device.kind=auto they do if
/// each of them sees one and none is to be emulated. If only some see one, or if there is a driver
/// that cannot be used, a rank warns. Collective.
/// Errors: mpi::AgreedError: device.kind=cuda, but a rank can use no GPU, or Slurm gave the job
///         GPUs that a rank has lost; it says why.
[[nodiscard]] bool uses_gpus(config::DeviceConfig const& config, mpi::Communicator const& comm);

/// Goes to this rank's place, which has a GPU if ranks compute on GPUs, and none otherwise. If with
/// device.kind=auto there are too few GPUs for the ranks, all compute on the host, which rank 0
/// logs. Collective. Errors: as uses_gpus and launch::take_place; mpi::AgreedError: a GPU that a
/// rank sees cannot be used.
[[nodiscard]] launch::RankPlace take_run_place(config::RunConfig const& config,
                                               mpi::Communicator const& comm);

/// Makes a rank's device: its place's GPU, or the emulated device if it has none. Ranks on one GPU
/// have equal parts of its free memory. Collective.
/// Errors: as make_cuda_device, as mpi::AgreedError.
[[nodiscard]] std::unique_ptr<device::Device> make_run_device(config::DeviceConfig const& config,
                                                              launch::Placement const& place,
                                                              mpi::Communicator const& comm);

}  // namespace offstage::train
