#pragma once

#include <vector_types.h>

#include <array>
#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>

/// Runs the blocks of a grid one after another, the threads of a block as fibers of the calling
/// thread. Between two barriers of the block its warps run one after another in a random order,
/// between two exchanges of a warp its lanes. Ends the program with a message where threads wait
/// for each other, or where one has left a barrier's threads alone.
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
struct alignas(64) OfLane {
  std::array<std::byte, 64> bytes;
};
using Brought = std::array<OfLane, warp_lanes>;
/// Brings `bytes` of `mine` and waits for all lanes. Valid until the lane's next exchange but one.
[[nodiscard]] Brought const& exchange(void const* mine, std::size_t bytes);

/// The same as values, as long valid.
template <class T>
class Exchanged {
 public:
  explicit Exchanged(Brought const& brought) : brought_{brought} {}
  [[nodiscard]] T const& operator[](unsigned lane) const {
    return *std::launder(reinterpret_cast<T const*>(brought_[lane].bytes.data()));
  }

 private:
  Brought const& brought_;
};

template <class T>
[[nodiscard]] Exchanged<T> exchange(T const& mine) {
  static_assert(sizeof(T) <= sizeof(OfLane) && std::is_trivially_copyable_v<T>);
  return Exchanged<T>{exchange(&mine, sizeof(T))};
}

/// So many bytes, zeros if `from` is null, at the latest moment that await_copies() allows. Both
/// addresses are multiples of `bytes`.
void copy_later(void* to, void const* from, std::size_t bytes);
void end_copies();
void await_copies(int pending_groups);

}  // namespace offstage::cuda_on_cpu
