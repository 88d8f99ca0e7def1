#pragma once

#include <vector_types.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>

/// Runs the blocks of a grid one after another, the threads of a block as fibers of the calling thread. Threads that
/// can go on do so in a random order, up to the next barrier. Ends the program with a message where threads wait for
/// each other, or where one has left a barrier's threads alone.
namespace offstage::cuda_on_cpu {

constexpr unsigned warp_lanes = 32;

/// Where the kernel thread that asks is.
struct Here {
  uint3 thread;
  uint3 block;
  dim3 block_size;
  dim3 grid_size;
  unsigned lane;
};
[[nodiscard]] Here const& here();

void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              std::function<void()> const& kernel);

/// The block's, filled with NaNs before it begins.
[[nodiscard]] std::byte* shared_memory();

void sync_block();
void sync_warp();

/// What each lane of the warp brought to one exchange.
using Brought = std::array<std::array<std::byte, 64>, warp_lanes>;
/// Brings `bytes` of `mine` and waits for all lanes. Valid until the lane's next exchange but one.
[[nodiscard]] Brought const& exchange(void const* mine, std::size_t bytes);

template <class T>
[[nodiscard]] std::array<T, warp_lanes> exchange(T const& mine) {
  static_assert(sizeof(T) <= 64);
  Brought const& brought = exchange(&mine, sizeof(T));
  std::array<T, warp_lanes> all;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    std::memcpy(&all[lane], brought[lane].data(), sizeof(T));
  }
  return all;
}

/// 16 bytes, zeros if `from` is null, at the latest moment that await_copies() allows.
void copy_later(void* to, void const* from);
void end_copies();
void await_copies(int pending_groups);

}  // namespace offstage::cuda_on_cpu
