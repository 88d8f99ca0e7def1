#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"

namespace offstage::kernels {

/// Parameters and their working copy, as optimize() leaves them.
///
/// round_parameters: copy[i] = parameters[i] rounded to nearest: to bf16 with ties away from zero,
/// to fp16 with ties to even, beyond the largest number to infinity.
/// split_parameters: copy as above, and low[i]: the lower 16 bits of parameters[i].
/// join_parameters: the parameters back, bit for bit: their bits are copy * 2^16 + low, with low as
/// a signed number.
///
/// Memory:  they take host addresses, whose views do not overlap, and return when done.
/// Threads: host uses OpenMP.
/// Exact:   ref = host. NaN: to 0x7FC0 in bf16, 0x7E00 in fp16; a split NaN comes back as
///          0x7FC00000.
/// Errors:  PreconditionError if lengths differ.
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
}  // namespace offstage::kernels
