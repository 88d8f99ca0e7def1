#pragma once

#include <memory>
#include <optional>

#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/topology/topology.hpp"
#include "train/run_config.hpp"

namespace offstage::train {

/// Whether the ranks compute on GPUs, which all do or none. device.kind=auto: where each of them sees one and
/// none is to be emulated.
/// Collective. Errors: mpi::AgreedError: device.kind=cuda, but a rank sees no GPU, or they were not compiled in.
[[nodiscard]] bool uses_gpus(DeviceConfig const& config, mpi::Communicator const& comm);

/// A rank's device: that GPU if there is one, else the emulated device.
/// Errors: as make_cuda_device.
[[nodiscard]] std::unique_ptr<device::Device> make_run_device(
    DeviceConfig const& config, std::optional<topology::VisibleGpu> const& gpu);

}  // namespace offstage::train
