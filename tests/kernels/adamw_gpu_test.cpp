#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "base/error.hpp"
#include "kernels/adamw_support.hpp"
#include "platform/cuda/check.hpp"

namespace offstage::kernels {
namespace {

using offstage::cuda::check;

/// A device copy of a host array, copied back on demand.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::vector<T> const& from) : size_{from.size()} {
    void* data{};
    check(cudaMalloc(&data, bytes()));
    data_ = static_cast<T*>(data);
    check(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;

  [[nodiscard]] std::span<T> view(std::size_t offset, std::size_t count) const {
    return std::span{data_, size_}.subspan(offset, count);
  }
  void copy_to(std::vector<T>& to) const {
    check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
  T* data_{};
  std::size_t size_;
};

template <class G, class W>
void step_on_gpu(AdamwArrays<G, W>& arrays, AdamwStep const& step) {
  DeviceArray<float> const parameter{arrays.parameter};
  DeviceArray<float> const momentum{arrays.momentum};
  DeviceArray<float> const variance{arrays.variance};
  DeviceArray<G> const gradient{arrays.gradient};
  DeviceArray<W> const working_copy{arrays.working_copy};
  cuda::adamw(AdamwState<G, W>{.parameter = parameter.view(arrays.offset, arrays.count),
                               .momentum = momentum.view(arrays.offset, arrays.count),
                               .variance = variance.view(arrays.offset, arrays.count),
                               .gradient = gradient.view(arrays.offset, arrays.count),
                               .working_copy = working_copy.view(arrays.offset, arrays.count)},
              step, nullptr);
  check(cudaDeviceSynchronize());
  parameter.copy_to(arrays.parameter);
  momentum.copy_to(arrays.momentum);
  variance.copy_to(arrays.variance);
  working_copy.copy_to(arrays.working_copy);
}

template <class Types>
class AdamwOnGpu : public testing::Test {};
TYPED_TEST_SUITE(AdamwOnGpu, AllAdamwTypes);

TYPED_TEST(AdamwOnGpu, GivesTheBitsOfRef) {
  if (offstage::cuda::device_count() == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  using Arrays = AdamwArrays<typename TypeParam::G, typename TypeParam::W>;
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      SCOPED_TRACE(count);
      Arrays got{count, count % 5, kind};
      Arrays expected = got;
      ref::adamw(expected.state(), ordinary_step);
      step_on_gpu(got, ordinary_step);
      expect_same_bits(got, expected);
    }
  }
}

TYPED_TEST(AdamwOnGpu, ChecksItsArgumentsWithoutAGpu) {
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  AdamwArrays<G, W> arrays{8, 0, Values::ordinary};
  auto state = arrays.state();
  state.momentum = state.momentum.first(7);
  EXPECT_THROW(cuda::adamw(state, ordinary_step, nullptr), PreconditionError);
  AdamwStep step = ordinary_step;
  step.step = 0;
  EXPECT_THROW(cuda::adamw(arrays.state(), step, nullptr), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
