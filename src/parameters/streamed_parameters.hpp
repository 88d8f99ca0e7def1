#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/thread.hpp"
#include "device/device.hpp"
#include "parameters/shard_home.hpp"
#include "parameters/working_parameters.hpp"
#include "plan/slot_schedule.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

struct StreamSettings {
  /// Layers on the device at a time, 2 at least, beside a large one (state::SlotSizes); as many on
  /// every rank.
  int slots = 3;
  trace::Trace* trace{};
};

/// A working copy that is brought to the device layer by layer, ahead of use, through a few slots.
///
/// One rank: a thread brings the layers in the order of their uses, each as soon as its slot is free.
/// Several:  acquire gathers, for one thread calls MPI: the layer itself if that was not done before, then the
///           next one, whose way to the device hides under what the model does with this one (a host_visible
///           device has it at once, and nothing is gathered ahead). The model's stream waits for a layer, not
///           the thread. Every rank gathers the same layers in the same order, as the slots depend on the
///           order of uses alone.
///           A home that has whole layers gathers them once in a step, and each use copies one from there.
/// Source:   Fuyou section 4.4, the FIFO of parameters on the device.
/// Memory:   device: device_bytes. Host: host_bytes, pinned, to gather through; the home's.
/// Waiting:  a slot is free when the use before has ended (where the device has streams of its own, they wait
///           for what the model's still has to do with it), and no use waits for a later one: any number of
///           slots from 2 on is enough. The thread holds nothing that an update needs but leases of parts that
///           are expected (StoredHome).
/// Trace:    row "parameters ahead".
/// Errors:   construction: UsageError of the device (names parameters.home).
template <class T>
class StreamedParameters final : public WorkingParameters<T> {
 public:
  /// `model`: its stream.
  StreamedParameters(state::ShardMap const& map, state::RankLink& link, device::Device& device,
                     device::Stream& model, std::unique_ptr<ShardHome<T>> home,
                     StreamSettings const& settings);
  ~StreamedParameters() override { stop(); }
  StreamedParameters(StreamedParameters const&) = delete;
  StreamedParameters& operator=(StreamedParameters const&) = delete;

  void begin() override;
  void expect(std::span<int const> layers) override;
  [[nodiscard]] std::span<T const> acquire(int layer) override;
  void release(int layer, std::shared_ptr<device::Event> done) override;
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override {
    return home_->target(subgroup);
  }
  void set_readiness(state::Readiness* readiness) override;
  void stop() noexcept override;

  /// Of several ranks: a layer if layers are staged, a rank's part of one if they go from device to device. Nothing is
  /// gathered through it where the home has whole layers.
  [[nodiscard]] static Bytes host_bytes(state::ShardMap const& map, state::Route route);
  [[nodiscard]] static Bytes device_bytes(state::ShardMap const& map, int slots);

 private:
  struct Use : plan::SlotSchedule::Use {
    bool ended = false;
  };

  /// Under mutex_, these four. Uses count as those of the schedule.
  [[nodiscard]] std::int64_t expected() const { return first_ + std::ssize(uses_); }
  [[nodiscard]] Use& use(std::int64_t index) {
    return uses_[static_cast<std::size_t>(index - first_)];
  }
  [[nodiscard]] bool has_ended(std::int64_t index) { return index < first_ || use(index).ended; }
  /// Whether the first use that is not filled can be.
  [[nodiscard]] bool may_fill() {
    return filled_ < expected() && (!use(filled_).fill || has_ended(use(filled_).after));
  }

  /// The thread of a rank alone.
  void run_ahead() noexcept;
  /// Several ranks: `now`, the use of this index, is on the device when this returns.
  void gather_ahead(std::unique_lock<std::mutex>& lock, plan::SlotSchedule::Use const& now,
                    std::int64_t index);
  /// The first use that is not filled; without the lock meanwhile, and after an error.
  void fill_next(std::unique_lock<std::mutex>& lock);
  /// `freed`: until when the slot is in use; null: it is not.
  void bring(plan::SlotSchedule::Use const& use, std::shared_ptr<device::Event> const& freed);
  /// Brings a layer from the home to a slot, without memory between them.
  void bring_from_home(int layer, std::span<T> whole, std::shared_ptr<device::Event> const& freed);
  void gather(int layer, std::span<T> whole, std::shared_ptr<device::Event> const& freed);
  /// What is written to a slot from now on comes after that; null: nothing uses it.
  void wait_for(std::shared_ptr<device::Event> const& freed);
  void copy(std::span<T> target, std::span<T const> source);
  [[nodiscard]] std::span<T> slot(plan::SlotSchedule::Use const& use) const;

  state::ShardMap const& map_;
  state::RankLink& link_;
  device::Stream& model_;
  trace::Trace* trace_;
  bool visible_;  ///< host code writes to the slots
  std::unique_ptr<ShardHome<T>> home_;
  std::vector<device::Buffer> slots_;  ///< as SlotSchedule counts them
  memory::HugeBuffer staging_;  ///< one gathered layer on the host, or this rank's part of one
  std::unique_ptr<device::Pinned> pinned_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<std::shared_ptr<device::Event>> arrived_;  ///< of each slot; several ranks
  std::shared_ptr<device::Event> sent_;                  ///< what is in staging_ has left it
  plan::SlotSchedule schedule_;                          ///< the caller's
  state::Readiness* readiness_{};                        ///< likewise

  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::deque<Use> uses_;       ///< that have not ended, and those after them
  std::int64_t first_ = 0;     ///< of uses_
  std::int64_t filled_ = 0;    ///< uses whose layers are in their slots, or on the way there
  std::int64_t acquired_ = 0;  ///< uses that have begun
  std::vector<std::int64_t> held_;
  std::vector<std::shared_ptr<device::Event>>
      freed_;  ///< of each slot: behind its last use that ended
  std::exception_ptr error_;
  bool stopping_ = false;
  std::optional<NamedThread> thread_;  ///< last: it uses all of the above
};

}  // namespace offstage::parameters
