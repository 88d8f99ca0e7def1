#include "train/settle/run_device.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.hpp"
#include "base/log.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"
#include "platform/slurm/job.hpp"

namespace offstage::train {

namespace {

bool was_given_gpus() {
  return slurm::given_gpus([](char const* name) { return std::getenv(name); }) > 0;
}

/// The end of a start on a node that does not show the GPUs that the job was given.
/// Errors: IoError: on other nodes the job may go on; UsageError: on none.
[[noreturn]] void throw_lost_gpus(char const* kind, cuda::Gpus const& none) {
  auto const text = fmt::format(
      "device.kind={}: Slurm gave this job GPUs here, but {}; {}, or set device.kind=host to "
      "compute on the cores",
      kind, none.why, none.everywhere ? "correct that" : "exclude the node (Slurm: --exclude)");
  if (none.everywhere) {
    throw UsageError{text};
  }
  throw IoError{text};
}

/// Returns whether all ranks have GPUs, for device.kind=auto without emulation. A lack of GPUs is
/// no mistake. A rank that cannot use existing GPUs, or GPUs that others use, may be one.
/// Errors: as throw_lost_gpus, on all ranks: one of them does not see the GPUs that it was given.
bool all_have_gpus(mpi::Communicator const& comm) {
  auto const mine = cuda::find_gpus();
  bool const some = comm.maximum(std::int64_t{mine.count}) > 0;
  bool const speaks = mine.count == 0 && (some || mine.absence == cuda::Gpus::Absence::unusable);
  mpi::agree(comm, [&] {
    if (mine.count == 0 && was_given_gpus()) {
      throw_lost_gpus("auto", mine);
    }
  });
  auto const first = comm.minimum(speaks ? comm.rank() : comm.size());
  if (comm.rank() == first) {
    log::warning("device.kind=auto computes on the cores: {}{}",
                 some ? fmt::format("not all ranks see a GPU; rank {}: ", first) : "", mine.why);
  }
  return comm.minimum(mine.count) > 0;
}

}  // namespace

bool uses_gpus(config::DeviceConfig const& config, mpi::Communicator const& comm) {
  if (config.kind == config::DeviceKind::automatic) {
    return !config.emulation.any() && all_have_gpus(comm);
  }
  mpi::agree(comm, [&] {
    if (config.kind != config::DeviceKind::cuda) {
      return;
    }
    if (auto const gpus = cuda::find_gpus(); gpus.count == 0) {
      if (was_given_gpus()) {
        throw_lost_gpus("cuda", gpus);
      }
      throw UsageError{fmt::format("device.kind=cuda: {}; set device.kind=host or auto", gpus.why)};
    }
  });
  return config.kind == config::DeviceKind::cuda;
}

launch::RankPlace take_run_place(config::RunConfig const& config, mpi::Communicator const& comm) {
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
      if (config.device.kind != config::DeviceKind::automatic || error.code() == ExitCode::io) {
        throw;
      }
      if (comm.rank() == 0) {
        log::warning("device.kind=auto computes on the cores: {}", error.what());
      }
    }
  }
  auto place = take(true);  // GPUs are not used: more ranks than GPUs is no mistake
  place.placement.gpu.reset();
  return place;
}

std::unique_ptr<device::Device> make_run_device(config::DeviceConfig const& config,
                                                launch::Placement const& place,
                                                mpi::Communicator const& comm) {
  // Each process that opens a GPU takes some of its memory. All have opened it before any looks for
  // free memory.
  mpi::agree(comm, [&] {
    if (place.gpu) {
      cuda::name_own_gpu(
          fmt::format("GPU {} ({}) on {}", place.gpu->bus, place.gpu->name, cpu::host_name()));
      static_cast<void>(cuda::memory_of(place.gpu->ordinal));
    }
  });
  std::unique_ptr<device::Device> device;
  mpi::agree(comm, [&] {  // all have looked before any goes on and allocates
    device = place.gpu ? device::make_cuda_device(place.gpu->ordinal, config.memory,
                                                  place.gpu_ranks, config.check)
                       : device::make_host_device(config.memory, config.emulation);
  });
  return device;
}

}  // namespace offstage::train
