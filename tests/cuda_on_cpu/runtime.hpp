#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/units.hpp"

struct CUstream_st;

namespace offstage::cuda_on_cpu {

/// Queues work; null: the default stream.
void enqueue(CUstream_st* stream, std::function<void()> work);
/// The error with which a GPU would refuse the launch, or cudaSuccess.
[[nodiscard]] int begin_launch(dim3 blocks, dim3 threads, std::size_t shared_bytes);
/// Runs a kernel that was queued, unless this one or one before it is to fail.
void run_kernel(std::function<void()> const& kernel);
/// The number-th kernel from now on fails as one that writes where it must not: from then on so
/// does every call. 0: none does, and what has failed is forgotten.
void break_kernel(std::int64_t number);

/// Counts a product that was called and refused; how many there were.
void refuse_product() noexcept;
[[nodiscard]] std::int64_t refused_products() noexcept;

/// What a library takes of the device's memory, or gives back if below 0, as cudaMemGetInfo counts
/// it.
void take(Bytes size);

}  // namespace offstage::cuda_on_cpu
