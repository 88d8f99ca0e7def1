#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "platform/cuda/check.hpp"

namespace offstage::kernels {

/// A device copy of a host array, copied back on demand.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::vector<T> const& from) : size_{from.size()} {
    using offstage::cuda::check;
    if (from.empty()) {
      return;  // CUDA does not say what it makes of no bytes
    }
    void* data{};
    check(cudaMalloc(&data, bytes()));
    data_ = static_cast<T*>(data);
    check(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice));
    // A copy of pageable memory may still be on its way to the device.
    check(cudaDeviceSynchronize());
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;

  [[nodiscard]] std::span<T> view(std::size_t offset, std::size_t count) const {
    return std::span{data_, size_}.subspan(offset, count);
  }
  void copy_to(std::vector<T>& to) const {
    if (size_ > 0) {
      offstage::cuda::check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    }
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
  T* data_{};
  std::size_t size_;
};

}  // namespace offstage::kernels
