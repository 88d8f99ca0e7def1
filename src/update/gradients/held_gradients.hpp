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

/// Sums that have their places in turn.
struct SumsInTurn {
  /// Elements of the shard where blocks begin, ascending; empty: places are for a whole step.
  std::vector<std::int64_t> blocks{};
  std::int64_t reserved{};  ///< elements of the room that gradients which stay leave to them
};

/// Device memory in which gradients are held. Gradients of subgroups that the device will update
/// stay and wait for it, so they cross the link once or never; gradients that find no room go to
/// the host and back. Room that is left may hold the sums of other subgroups, which leave when they
/// are final. They cross the link once a step then instead of once a round, and the cores add
/// nothing.
///
/// In a pass of several rounds (`in_turn`) the sums of a block are complete before the next block
/// begins, so that one block's room does for the sums of all, in turn (plan::places_in_turn).
///
/// Source:  DOS section 4.1.
/// Memory:  device: `room`, and 8 bytes per chunk of the shard. Memory of activations does not help
///          here, since they are in use while gradients come. Host: 8 bytes per chunk, too, pinned.
/// Threads: one, but a second one may call bring, a third one take, and any one give_up. Once a
///          step's gradients are complete, any thread may read.
/// Errors:  construction: UsageError of the device. Members: also what the streams throw.
class HeldGradients {
 public:
  /// Times of one gradient in a step; 0: never.
  struct Use {
    device::MemoryCounter::Clock::time_point written;  ///< the first part of it
    device::MemoryCounter::Clock::time_point read;     ///< for the last time, to the end

    [[nodiscard]] bool was_written() const {
      return written != device::MemoryCounter::Clock::time_point{};
    }
    void note_written() { written = was_written() ? written : device::MemoryCounter::Clock::now(); }
  };
  struct EndOfReading {
    void operator()(Use* use) const noexcept { use->read = device::MemoryCounter::Clock::now(); }
  };
  /// Ends when the gradient is not read any more.
  using Reading = std::unique_ptr<Use, EndOfReading>;

  /// `element_bytes`: size of the accumulated gradient's elements. `planes`: SumBlocks::planes()
  /// where sums are made here. `memory` is told of a step's gradients when the next step begins;
  /// null: nobody is.
  HeldGradients(device::Device& device, Bytes room, Bytes element_bytes,
                std::vector<state::Subgroup> const& subgroups,
                device::MemoryCounter* memory = nullptr, int planes = 1, SumsInTurn in_turn = {});
  ~HeldGradients() { tell(); }
  HeldGradients(HeldGradients const&) = delete;
  HeldGradients& operator=(HeldGradients const&) = delete;

  /// Begins a step. Gradients of `staying` are held until the update, and then sums of `leaving`
  /// are made here, in this order, as far as there is room. With blocks, sums of `leaving` have
  /// places in turn, as far as a block has room. Gradients that were held before are gone.
  void hold(std::span<std::int64_t const> staying, std::span<std::int64_t const> leaving = {});
  /// Returns whether the sums of an element of the shard are here while gradients come. That is the
  /// same for all elements that a layer and a subgroup have in common.
  [[nodiscard]] bool holds(std::int64_t element) const;
  /// Returns whether those of a subgroup stay until the update.
  [[nodiscard]] bool stays(std::int64_t subgroup) const;
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
  /// Returns the gradient of a subgroup that stays, the totals, in device memory.
  [[nodiscard]] std::span<std::byte> gradient(std::int64_t subgroup) const;
  /// Begins a reading of that gradient, whose time is noted. The reader keeps the result until its
  /// reading ends, before the next hold. Threads: any, one for a subgroup.
  [[nodiscard]] Reading read(std::int64_t subgroup);
  /// Bytes of the gradients that stay on the device.
  [[nodiscard]] Bytes bytes() const noexcept { return staying_; }
  /// Elements of a rank's shard where blocks begin, whose layers come together (GradientOrder).
  [[nodiscard]] static std::vector<std::int64_t> blocks_of(state::ShardMap const& map, int rank);
  /// Device memory beside the room, for a shard of so many elements.
  [[nodiscard]] static Bytes norm_bytes(std::int64_t shard_elements);
  /// Elements that may stay.
  [[nodiscard]] std::int64_t staying_elements() const noexcept {
    return memory_.size() / (planes_ * element_bytes_) - in_turn_.reserved;
  }

 private:
  /// Where sums are in a step. `after`: as plan::PlaceInTurn's.
  struct Place {
    Range elements;  ///< a subgroup of the shard, or the part of it that lies in one block
    Bytes offset{};
    bool stays = false;
    std::int64_t after = -1;
    Use use{};
  };
  /// The first place of a subgroup that is held.
  [[nodiscard]] Place& place_of(std::int64_t subgroup);
  template <class A>
  [[nodiscard]] SumPlaces<A> sums(Place const& place) const;
  [[nodiscard]] std::span<std::byte> totals(Place const& place) const;
  void find_places(std::span<Range const> subgroups, bool stay);
  void find_places_in_turn(std::span<Range const> subgroups);
  /// Waits until the sums that lay in this place have left.
  void wait_for(Place const& place);
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
  std::vector<Place> places_;  ///< ascending
  SumsInTurn in_turn_;
  Bytes staying_ = 0;  ///< bytes of those that stay
  device::MemoryCounter* told_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::int64_t left_ = 0;  ///< lowest element whose sums were taken
  bool given_up_ = false;
};

}  // namespace offstage::update
