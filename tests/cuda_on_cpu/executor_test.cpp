#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace offstage::kernels::cuda {
namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFU;

/// Runs to the end.
template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), Grid const& grid, Arguments... arguments) {
  launch(kernel, grid, nullptr, arguments...);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

void write_index(int* out) {
  unsigned const block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned const thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(thread + 1);
}

TEST(CudaOnCpu, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> out(2 * 3 * 2 * 5 * 2 * 3);
  run(write_index, {dim3{2, 3, 2}, dim3{5, 2, 3}}, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<int>(i % 30) + 1);
  }
}

template <bool with_barrier>
void reverse(int* values) {
  auto* const shared = reinterpret_cast<int*>(shared_memory());
  shared[threadIdx.x] = values[threadIdx.x];
  if (with_barrier) {
    __syncthreads();
  }
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST(CudaOnCpu, ShowsThatABarrierIsMissing) {
  std::vector<int> values(200);
  std::iota(values.begin(), values.end(), 0);
  auto reversed = values;
  std::ranges::reverse(reversed);
  auto with = values;
  run(reverse<true>, {1, 200, 800}, with.data());
  EXPECT_EQ(with, reversed);
  auto without = values;
  run(reverse<false>, {1, 200, 800}, without.data());
  EXPECT_NE(without, reversed);
}

void end_early(int* out) {
  if (threadIdx.x == 3) {
    return;
  }
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST(CudaOnCpuDeathTest, EndsWhereABarrierIsNotForAll) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<int> out(64);
  EXPECT_DEATH(run(end_early, {1, 64}, out.data()), "a thread of the block has ended without it");
}

void exchange_lanes(int* out) {
  int const lane = static_cast<int>(threadIdx.x % 32);
  int sum = lane;
  for (int mask = 16; mask > 0; mask /= 2) {
    sum += __shfl_xor_sync(all_lanes, sum, mask);
  }
  out[threadIdx.x] = sum + 1000 * __shfl_sync(all_lanes, lane, 5) +
                     100'000 * __shfl_down_sync(all_lanes, lane, 1, 16) +
                     10'000'000 * __popc(__ballot_sync(all_lanes, lane < 7));
}

TEST(CudaOnCpu, ExchangesValuesInAWarp) {
  std::vector<int> out(96);
  run(exchange_lanes, {1, 96}, out.data());
  for (int i = 0; i < 96; ++i) {
    int const lane = i % 32;
    int const down = lane % 16 == 15 ? lane : lane + 1;
    EXPECT_EQ(out[static_cast<std::size_t>(i)], 496 + 5000 + 100'000 * down + 70'000'000);
  }
}

/// c (16, 8) = a (16, 16) b (16, 8), b stored by rows: by load_matrices, transposed for b, and
/// multiply_add.
void multiply(bfloat16 const* a, bfloat16 const* b, float* c) {
  auto* const shared_a = reinterpret_cast<bfloat16*>(shared_memory());
  auto* const shared_b = shared_a + 256;
  unsigned const lane = threadIdx.x;
  copy_async(shared_a + 8 * lane, a + 8 * lane, true);
  copy_async(shared_b + 8 * lane, b + 8 * lane, lane < 16);
  end_copies();
  await_copies<0>();
  __syncwarp();
  std::uint32_t of_a[4];
  std::uint32_t of_b[4];
  load_matrices(of_a, shared_a + lane % 16 * 16 + lane / 16 * 8);
  load_matrices_transposed(of_b, shared_b + lane * 8);
  float d[4] = {};
  multiply_add<bfloat16>(d, of_a, {of_b[0], of_b[1]});
  for (unsigned i = 0; i < 4; ++i) {
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}

TEST(CudaOnCpu, MultipliesLikeATensorCore) {
  std::vector<bfloat16> a(256);
  std::vector<bfloat16> b(128);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = store<bfloat16>(static_cast<float>(i * 7 % 23) - 11.0F);
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = store<bfloat16>(static_cast<float>(i * 5 % 17) - 8.0F);
  }
  b.resize(256, store<bfloat16>(1e9F));  // what copy_async must not read
  std::vector<float> c(128);
  run(multiply, {1, 32, 1024}, a.data(), b.data(), c.data());
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 0.0F;
      for (std::size_t k = 0; k < 16; ++k) {
        sum += load(a[row * 16 + k]) * load(b[k * 8 + column]);
      }
      EXPECT_EQ(c[row * 8 + column], sum) << row << ' ' << column;
    }
  }
}

TEST(CudaOnCpu, KeepsTheOrderOfStreamsAndEvents) {
  cudaStream_t first{};
  cudaStream_t second{};
  cudaEvent_t event{};
  ASSERT_EQ(cudaStreamCreateWithFlags(&first, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, 0), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  std::vector<int> order;
  offstage::cuda_on_cpu::enqueue(first, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    order.push_back(1);
  });
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  offstage::cuda_on_cpu::enqueue(second, [&] { order.push_back(2); });
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  cudaEventDestroy(event);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

}  // namespace
}  // namespace offstage::kernels::cuda
