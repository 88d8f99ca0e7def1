#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// Parameters and their working copy, as optimize() leaves them.
///
/// round_parameters: copy[i] = parameters[i] rounded to nearest: to bf16 with ties away from zero, to fp16 with ties to even,
/// beyond the largest number to infinity.
/// split_parameters: copy as above, and low[i]: the lower 16 bits of parameters[i]. join_parameters: the parameters
/// back, bit for bit: their bits are copy * 2^16 + low, with low as a signed number.
///
/// Memory:  host functions take host addresses and return when done; cuda takes device addresses and only
///          enqueues on `stream`: the views must stay alive until that work completes. Views do not overlap.
/// Threads: host uses OpenMP.
/// Exact:   ref = host = cuda. NaN: to 0x7FC0 in bf16, 0x7E00 in fp16; a split NaN comes back as 0x7FC00000.
/// Errors:  PreconditionError if lengths differ; CudaError if the launch fails.
namespace ref {
void round_parameters(std::span<float const> parameters, std::span<bfloat16> copy);
void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy);
void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters);
}  // namespace ref
namespace host {
void round_parameters(std::span<float const> parameters, std::span<float> copy);
void round_parameters(std::span<float const> parameters, std::span<bfloat16> copy);
void round_parameters(std::span<float const> parameters, std::span<float16> copy);
void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy);
void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters);
}  // namespace host
namespace cuda {
void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy, CUstream_st* stream);
void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters, CUstream_st* stream);
}  // namespace cuda

/// Queued on `stream`, whose device holds the views; they return before the work is done.
/// Errors: PreconditionError as above, at once; UsageError if the stream's backend was not compiled in.
void split_parameters(device::Stream& stream, std::span<float const> parameters,
                      std::span<std::uint16_t> low, std::span<bfloat16> copy);
void join_parameters(device::Stream& stream, std::span<bfloat16 const> copy,
                     std::span<std::uint16_t const> low, std::span<float> parameters);

}  // namespace offstage::kernels
