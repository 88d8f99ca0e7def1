#include "train/run_device.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
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

launch::RankPlace take_run_place(RunConfig const& config, mpi::Communicator const& comm) {
  auto const take = [&](bool share) {
    return launch::take_place(comm, {.threads = config.threads, .share_gpu = share});
  };
  if (uses_gpus(config.device, comm)) {
    try {
      auto place = take(config.device.share_gpu);
      mpi::agree(comm, [&] {
        if (!place.placement.gpu) {
          throw UsageError{
              "device.kind: this rank sees a GPU, but not its place on the bus; set "
              "device.kind=host"};
        }
      });
      return place;
    } catch (mpi::AgreedError const& error) {
      if (config.device.kind != DeviceKind::automatic) {
        throw;
      }
      if (comm.rank() == 0) {
        log::warning("device.kind=auto computes on the cores: {}", error.what());
      }
    }
  }
  auto place = take(true);  // GPUs are left alone: more ranks than there are is no mistake
  place.placement.gpu.reset();
  return place;
}

std::unique_ptr<device::Device> make_run_device(DeviceConfig const& config,
                                                launch::Placement const& place,
                                                mpi::Communicator const& comm) {
  // Each process that opens a GPU takes some of it: all have before any looks what is free.
  mpi::agree(comm, [&] {
    if (place.gpu) {
      static_cast<void>(cuda::free_bytes(place.gpu->ordinal));
    }
  });
  std::unique_ptr<device::Device> device;
  mpi::agree(comm, [&] {  // and all have looked before any goes on and allocates
    device = place.gpu
                 ? device::make_cuda_device(place.gpu->ordinal, config.memory, place.gpu_ranks)
                 : device::make_host_device(config.memory, config.emulation);
  });
  return device;
}

}  // namespace offstage::train
