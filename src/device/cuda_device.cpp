#include "base/error.hpp"
#include "device/device.hpp"

namespace offstage::device {

std::unique_ptr<Device> make_cuda_device(int /*index*/, Bytes /*capacity*/) {
  throw UsageError{"CUDA was not compiled in; write device.kind=host, or build with nvcc"};
}

}  // namespace offstage::device
