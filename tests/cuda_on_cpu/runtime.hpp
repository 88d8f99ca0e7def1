#pragma once

#include <vector_types.h>

#include <cstddef>
#include <functional>

#include "base/units.hpp"

struct CUstream_st;

namespace offstage::cuda_on_cpu {

/// Queues work; null: the default stream.
void enqueue(CUstream_st* stream, std::function<void()> work);
/// Ends the program, with a message, where a GPU would refuse the launch.
void check_launch(dim3 blocks, dim3 threads, std::size_t shared_bytes);

/// What a library takes of the device's memory, or gives back if below 0, as cudaMemGetInfo counts it.
void take(Bytes size);

}  // namespace offstage::cuda_on_cpu
