#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "plan/share.hpp"
#include "state/rank_link.hpp"

namespace offstage::probe {

/// How much is moved or computed for one figure, and how often; the median of the rounds counts.
struct Effort {
  Bytes bytes = 256 * MiB;
  int rounds = 5;
  Seconds least{0.1};  ///< a round does the same again and again until it takes so long
};
/// Enough for a plan, in some hundredths of a second.
constexpr Effort for_plans{.bytes = 16 * MiB, .rounds = 3, .least = Seconds{0.01}};
/// The same with at most as many bytes as fit `host_memory` of this rank: a link whose device is
/// emulated takes four times Effort::bytes there, which is to be half of it.
[[nodiscard]] Effort within(Effort effort, Bytes host_memory);

/// Bytes per second of a link, each direction alone and both at once. Moved data is verified.
struct LinkRates {
  double to_device{}, to_host{};  ///< from pinned memory
  double to_device_both{}, to_host_both{};
  double to_device_pageable{}, to_host_pageable{};
};
/// Errors: IoError (74) if what came back is not what was sent.
[[nodiscard]] LinkRates measure_link(device::Device& device, Effort const& effort);
/// Both directions at once alone, from pinned memory; what moves is not verified.
[[nodiscard]] LinkRates measure_link_both(device::Device& device, Effort const& effort);

/// Elements per second of AdamW as the update runs it: chunk by chunk, G and W of `dtype`. On the
/// CPU with the calling thread's OpenMP team and an emulated rate if there is one; on the device
/// with the state there.
[[nodiscard]] double measure_cpu_update(DType dtype, device::Emulation const& emulation,
                                        Effort const& effort);
[[nodiscard]] double measure_device_update(device::Device& device, DType dtype,
                                           Effort const& effort);

/// Bytes per second, read and written, of gradients of `dtype` that the cores add to sums in FP32,
/// with an emulated rate if there is one.
[[nodiscard]] double measure_accumulation(DType dtype, device::Emulation const& emulation,
                                          Effort const& effort);

/// Bytes per second, read and written, of a scaling in place by all threads.
[[nodiscard]] double measure_host_memory(Effort const& effort);
/// (rows, in) x (in, out)
struct ProductShape {
  std::int64_t rows{}, in{}, out{};
};
/// FLOP/s of products on the device's calling stream, which are no larger than it takes to tell
/// their rate and take no more than half of the device's free memory. `effort.bytes` does not
/// count.
[[nodiscard]] double measure_product(device::Device& device, DType dtype, ProductShape shape,
                                     Effort const& effort);

/// FLOP/s of a transformer block's forward and backward, as model::block_passes counts them.
struct BlockRates {
  double forward{}, backward{};
};
/// On the device's calling stream, of blocks as wide as it takes to tell the rates, whose memory is
/// no more than half of what the device has free; attention by the own kernels. `effort.bytes` does
/// not count.
[[nodiscard]] BlockRates measure_block(device::Device& device, DType dtype, Effort const& effort);

/// Bytes per second that come to this rank from the others while all gather what each has a part
/// of. What comes is verified. The same on all ranks.
/// Collective over the link's. Errors: mpi::AgreedError: IoError (74) if it is not what was sent.
[[nodiscard]] double measure_rank_link(device::Device& device, state::RankLink& link,
                                       Effort const& effort);

}  // namespace offstage::probe
