#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/range.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/shard.hpp"
#include "update/gradients/sum_blocks.hpp"

namespace offstage::update {

/// Device memory in which gradients are held. Gradients of subgroups that the device will update
/// stay and wait for it, so they cross the link once or never; gradients that find no room go to
/// the host and back. Room that is left may hold the sums of other subgroups, which leave when they
/// are final. They cross the link once a step then instead of once a round, and the cores add
/// nothing.
///
/// In a pass of several rounds (`blocks`) the sums of a block are complete before the next block
/// begins, so that two blocks' room does for the sums of all, in turn (plan::places_in_turn).
///
/// Source:  DOS section 4.1.
/// Memory:  device: `room`, and 8 bytes per chunk of the shard. Memory of activations does not help
///          here, since they are in use while gradients come. Host: 8 bytes per chunk, too, pinned.
/// Threads: one, but a second one may call bring, and a third one take. Once a step's gradients are
///          complete, any thread may read.
/// Errors:  construction: UsageError of the device. Members: also what the streams throw.
class HeldGradients {
 public:
  /// Times of one gradient in a step; 0: never.
  struct Use {
    device::MemoryCounter::Clock::time_point written;  ///< the first part of it
    device::MemoryCounter::Clock::time_point read;     ///< for the last time, to the end
  };
  struct EndOfReading {
    void operator()(Use* use) const noexcept { use->read = device::MemoryCounter::Clock::now(); }
  };
  /// Ends when the gradient is not read any more.
  using Reading = std::unique_ptr<Use, EndOfReading>;

  /// `element_bytes`: size of the accumulated gradient's elements. `planes`: SumBlocks::planes()
  /// where sums are made here. `memory` is told of a step's gradients when the next step begins;
  /// null: nobody is. `blocks`: elements of the shard where blocks begin, ascending, for passes of
  /// several rounds; empty: sums have their places for the whole step.
  HeldGradients(device::Device& device, Bytes room, Bytes element_bytes,
                std::vector<state::Subgroup> const& subgroups,
                device::MemoryCounter* memory = nullptr, int planes = 1,
                std::vector<std::int64_t> blocks = {});
  ~HeldGradients() { tell(); }
  HeldGradients(HeldGradients const&) = delete;
  HeldGradients& operator=(HeldGradients const&) = delete;

  /// Begins a step. Gradients of `staying` are held until the update, and then sums of `leaving`
  /// are made here, in this order, as far as there is room. Gradients that were held before are
  /// gone.
  void hold(std::span<std::int64_t const> staying, std::span<std::int64_t const> leaving = {});
  /// Returns whether the subgroup's sums are here while gradients come.
  [[nodiscard]] bool holds(std::int64_t subgroup) const;
  /// Returns whether they stay until the update.
  [[nodiscard]] bool stays(std::int64_t subgroup) const {
    return holds(subgroup) && places_[static_cast<std::size_t>(subgroup)].stays;
  }
  /// Adds a gradient in device memory, elements [begin, begin + size) of the shard, to the held
  /// sums. Takes the norms of its chunks if the totals are final then. Queued on `stream`. Returns
  /// the parts of the gradient that are not held, ascending. Waits until sums that lay in the same
  /// place have been taken, by another thread.
  template <class A, class T>
  [[nodiscard]] std::vector<Range> add(device::Stream& stream, std::int64_t begin,
                                       std::span<T const> gradient, Addition const& how);
  /// Puts a complete sum from host memory in its place. Returns when it is there.
  void bring(std::int64_t subgroup, std::span<std::byte const> sum);
  /// Takes final sums to host memory: elements [begin, begin + count) of a subgroup that leaves,
  /// and the sums of squares of its chunks. The adds are done. Returns when they are there.
  void take(std::int64_t subgroup, Range range, std::span<std::byte> to, std::span<double> norms);
  /// Ends the waiting of add, now and later: nobody takes any more.
  void give_up() noexcept;
  /// Writes the sums of squares of gradients that stay, taken by the `last` adds, to those of all
  /// chunks of the shard. Waits for the stream.
  void collect_norms(device::Stream& stream, std::span<double> chunk_norms) const;
  /// Returns the gradient of a held subgroup, the totals, in device memory.
  [[nodiscard]] std::span<std::byte> gradient(std::int64_t subgroup) const;
  /// Begins a reading of a held subgroup's gradient, whose time is noted. The reader keeps the
  /// result until its reading ends, and this object outlives it. Threads: any, one for a subgroup.
  [[nodiscard]] Reading read(std::int64_t subgroup);
  /// Bytes of the gradients that stay on the device.
  [[nodiscard]] Bytes bytes() const noexcept { return staying_; }
  /// Elements of a rank's shard where blocks begin, whose layers come together (GradientOrder).
  [[nodiscard]] static std::vector<std::int64_t> blocks_of(state::ShardMap const& map, int rank);
  /// Device memory beside the room, for a shard of so many elements.
  [[nodiscard]] static Bytes norm_bytes(std::int64_t shard_elements);
  [[nodiscard]] std::int64_t most_elements() const noexcept {
    return (memory_.size() - turn_bytes_) / (planes_ * element_bytes_);
  }

 private:
  /// Device memory of a subgroup's sums.
  [[nodiscard]] Bytes place_bytes(state::Subgroup const& subgroup) const {
    return subgroup.size * element_bytes_ * planes_;
  }
  template <class A>
  [[nodiscard]] SumPlaces<A> sums(std::int64_t subgroup) const;
  void find_places(std::span<std::int64_t const> subgroups, bool stay);
  void find_places_in_turn(std::span<std::int64_t const> subgroups);
  void wait_for_place(std::int64_t subgroup);
  void note_written(std::int64_t subgroup);
  void tell() noexcept;
  /// Norms of elements [begin, begin + count) of the shard, whole chunks.
  [[nodiscard]] static std::span<double> norms_of(std::span<double> norms, std::int64_t begin,
                                                  std::int64_t count);
  /// Queues the copy of those norms to host memory. Returns where they will be.
  std::span<double> fetch_norms(device::Stream& stream, std::int64_t begin,
                                std::int64_t count) const;

  std::vector<state::Subgroup> const& subgroups_;
  Bytes element_bytes_;
  int planes_;  ///< totals, and behind them a subgroup's sums of a block
  device::Buffer memory_;
  device::Buffer norms_;           ///< norms of the shard's chunks
  memory::HugeBuffer host_norms_;  ///< the same, on their way to whoever asks
  std::unique_ptr<device::Pinned> pinned_;
  std::unique_ptr<device::Stream> bring_, take_;
  struct Place {
    Bytes offset = -1;  ///< below 0: not held
    bool stays = false;
    std::int64_t after = -1;  ///< subgroup that has to leave before; below 0: none
  };
  std::vector<Place> places_;
  std::vector<std::int64_t> blocks_;
  Bytes turn_bytes_ = 0;  ///< bytes that those that stay leave to sums in turn
  Bytes taken_ = 0;
  Bytes staying_ = 0;  ///< bytes of those that stay
  device::MemoryCounter* told_;
  std::vector<Use> uses_;  ///< by subgroup
  std::mutex mutex_;       ///< guards what follows
  std::condition_variable changed_;
  std::int64_t left_ = 0;  ///< lowest subgroup whose sums were taken
  bool given_up_ = false;
};

}  // namespace offstage::update
