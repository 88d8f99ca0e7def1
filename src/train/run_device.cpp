#include "train/run_device.hpp"

#include "base/error.hpp"
#include "platform/cuda/check.hpp"

namespace offstage::train {

bool uses_gpus(DeviceConfig const& config, mpi::Communicator const& comm) {
  if (config.kind == DeviceKind::automatic) {
    return comm.minimum(cuda::device_count()) > 0 && !config.emulation.any();
  }
  mpi::agree(comm, [&] {
    if (config.kind == DeviceKind::cuda && cuda::device_count() == 0) {
      throw UsageError{
          "device.kind=cuda: no GPU is to be seen here (nvidia-smi -L lists them; "
          "CUDA_VISIBLE_DEVICES may hide them); set device.kind=host or auto"};
    }
  });
  return config.kind == DeviceKind::cuda;
}

std::unique_ptr<device::Device> make_run_device(DeviceConfig const& config,
                                                std::optional<topology::VisibleGpu> const& gpu) {
  return gpu ? device::make_cuda_device(gpu->ordinal, config.memory)
             : device::make_host_device(config.memory, config.emulation);
}

}  // namespace offstage::train
