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
#include "plan/layer_slots.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

struct StreamSettings {
  /// Layers on the device at a time, at least 2, beside a large one (state::LayerSlotSizes). It is
  /// the same on every rank.
  int slots = 3;
  trace::Trace* trace{};
};

/// A working copy that is brought to the device layer by layer, ahead of use, through a few slots.
///
/// One rank: a thread brings the layers in the order of their uses, each as soon as its slot is
///           free. The model's stream waits for a layer. Where the home's parameters stay in place
///           the thread does not wait, so that layers follow each other on the link.
/// Several:  acquire gathers, because one thread calls MPI: the layer itself if that was not done
///           before, then the next one. The way of the next one to the device hides under the
///           model's work with this one (a host_visible device has it at once, and nothing is
///           gathered ahead). The model's stream waits for a layer, not the thread. Every rank
///           gathers the same layers in the same order, because the slots depend on the order of
///           uses alone. If the home has whole layers, each use copies one from there.
/// Source:   Fuyou section 4.4, the FIFO of parameters on the device.
/// Memory:   on the device, device_bytes. On the host, host_bytes, pinned, for gathering, and the
///           home's memory.
/// Waiting:  a slot is free when the use before has ended. If the device has streams of its own,
///           they wait for the model's work with the slot. No use waits for a later one, so that
///           two slots are enough. Of the things that an update needs, the thread holds only leases
///           of expected parts (StoredHome).
/// Trace:    row "parameters ahead".
/// Errors:   construction: UsageError of the device (names parameters.home).
template <class T>
class StreamedParameters final : public WorkingParameters<T> {
 public:
  /// `model` is the model's stream.
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

  /// Host memory for gathering with several ranks: a layer if layers are staged, a rank's part of
  /// one if they go from device to device. None is needed if the home has whole layers.
  [[nodiscard]] static Bytes host_bytes(state::ShardMap const& map, state::Route route);
  [[nodiscard]] static Bytes device_bytes(state::ShardMap const& map, int slots);

 private:
  struct Use : plan::LayerSlots::Use {
    bool ended = false;
  };

  /// The caller of these four has locked mutex_. Uses are counted as the schedule's.
  [[nodiscard]] std::int64_t expected() const { return first_ + std::ssize(uses_); }
  [[nodiscard]] Use& use(std::int64_t index) {
    return uses_[static_cast<std::size_t>(index - first_)];
  }
  [[nodiscard]] bool has_ended(std::int64_t index) { return index < first_ || use(index).ended; }
  /// Returns whether the first use that is not filled can be filled.
  [[nodiscard]] bool may_fill() {
    return filled_ < expected() && (!use(filled_).fill || has_ended(use(filled_).after));
  }

  /// The thread's function, for one rank.
  void run_ahead() noexcept;
  /// With several ranks: gathers layers. `now`, the use of this index, is on the device when this
  /// returns.
  void gather_ahead(std::unique_lock<std::mutex>& lock, plan::LayerSlots::Use const& now,
                    std::int64_t index);
  /// Fills the first use that is not filled. The lock is released meanwhile, and after an error.
  void fill_next(std::unique_lock<std::mutex>& lock);
  /// Makes the model's stream wait for the layer.
  void wait_for_arrival(plan::LayerSlots::Use const& use);
  /// Brings a use's layer to its slot. `freed` is the event until which the slot is in use; null:
  /// it is not in use.
  void bring(plan::LayerSlots::Use const& use, std::shared_ptr<device::Event> const& freed);
  /// Brings a layer from the home to a slot, without memory between them.
  void bring_from_home(int layer, std::span<T> whole, std::shared_ptr<device::Event> const& freed);
  void gather(int layer, std::span<T> whole, std::shared_ptr<device::Event> const& freed);
  /// Makes later writes to a slot wait for this event; null: nothing uses the slot.
  void wait_for(std::shared_ptr<device::Event> const& freed);
  void copy(std::span<T> target, std::span<T const> source);
  [[nodiscard]] std::span<T> slot(plan::LayerSlots::Use const& use) const;

  state::ShardMap const& map_;
  state::RankLink& link_;
  device::Stream& model_;
  trace::Trace* trace_;
  bool visible_;  ///< host code writes to the slots
  std::unique_ptr<ShardHome<T>> home_;
  std::vector<device::Buffer> slots_;  ///< in LayerSlots's order
  memory::HugeBuffer staging_;  ///< one gathered layer on the host, or this rank's part of one
  std::unique_ptr<device::Pinned> pinned_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<std::shared_ptr<device::Event>> arrived_;  ///< arrivals in each slot
  std::shared_ptr<device::Event> sent_;  ///< event at which the layer has left staging_
  plan::LayerSlots schedule_;            ///< used by the calling thread
  state::Readiness* readiness_{};        ///< used by the calling thread

  std::mutex mutex_;  ///< guards all members below
  std::condition_variable changed_;
  std::deque<Use> uses_;       ///< uses from the first one that has not ended on
  std::int64_t first_ = 0;     ///< index of the first one of uses_
  std::int64_t filled_ = 0;    ///< uses whose layers are in their slots, or on the way there
  std::int64_t acquired_ = 0;  ///< uses that have begun
  std::vector<std::int64_t> held_;
  /// Event of each slot behind its last use that ended.
  std::vector<std::shared_ptr<device::Event>> freed_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::optional<NamedThread> thread_;  ///< last: it uses all members above
};

}  // namespace offstage::parameters
