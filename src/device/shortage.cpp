#include "device/shortage.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace offstage::device {

void throw_shortage(Shortage const& shortage) {
  throw UsageError{fmt::format(
      "out of device memory: {} needs {}, but only {} of {} are free; lower train.micro-batch or "
      "train.sequence, set train.activations=host, lower update.device-resident, "
      "update.device-share, update.device-chunk or update.device-gradients, keep parameters "
      "elsewhere (parameters.home=host), {}or raise device.memory",
      shortage.purpose, format_bytes(shortage.wanted), format_bytes(shortage.available),
      format_bytes(shortage.capacity),
      shortage.set_aside > 0 ? fmt::format("set comm.backend=mpi ({} are set aside for NCCL), ",
                                           format_bytes(shortage.set_aside))
                             : "")};
}

}  // namespace offstage::device
