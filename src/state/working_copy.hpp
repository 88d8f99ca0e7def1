#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/exchange.hpp"
#include "state/rank_link.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"

namespace offstage::state {

/// This rank's shard of the parameters in the type that forward and backward use, in device memory,
/// and the gathering of whole layers from all ranks' shards.
///
/// Memory:     on the device, device_bytes: the shard, and either slots for layers and a large one
///             (LayerSlotSizes), or memory of its own for each layer. With one rank there are no
///             slots, because layers are used in place. On the host, host_bytes, pinned, for
///             gathering through host memory.
/// Waiting:    acquire waits until the layer's part of this shard is ready (readiness.hpp); an
///             update may write other parts meanwhile.
/// Order:      a layer is gathered on a stream of its own, for which the model's waits, into the
///             slot that was released longest ago, or that of large layers. So on a GPU, where the
///             model's work is queued, a layer comes while the one before is in use, as soon as the
///             one before that is released. If two are held, the next waits for the one that was
///             released first. If each layer has memory of its own, it is gathered for its first
///             use after begin() only.
/// Collective: acquire. The layers that it gathers depend on the order of uses alone.
/// Errors:     construction: UsageError of the device. acquire: the error of a failed update.
template <class T>
class WorkingCopy final : public ParameterSource<T> {
 public:
  /// Least number of slots: one layer comes while another is in use, and two layers of a block can
  /// be held.
  static constexpr int least_slots = 2;
  static constexpr int slots_for_held_blocks = 3;
  /// In place of a number of slots: each layer has memory of its own.
  static constexpr int all_layers = 0;

  /// `stream` is the model's. `slots` is least_slots or more, or all_layers.
  WorkingCopy(ShardMap const& map, RankLink& link, device::Device& device, device::Stream& stream,
              int slots = least_slots);

  /// Says that parameters may have changed: layers that stayed are gathered again. No layer is
  /// held.
  void begin();
  /// Returns true if acquire gathers the layer.
  [[nodiscard]] bool gathers(int layer) const;
  [[nodiscard]] std::span<T const> acquire(int layer) override;
  void release(int layer, std::shared_ptr<device::Event> done) override;

  /// The whole shard, shard_elements long, in device memory: the update writes new parameters here.
  [[nodiscard]] std::span<T> shard() noexcept { return shard_.template as<T>(); }
  /// Copies host memory to elements [begin, begin + size) of the shard. Returns when done.
  void write(std::int64_t begin, std::span<T const> values);
  /// Sets the object whose wait() acquire calls; null: everything is always ready. It must outlive
  /// the calls.
  void set_readiness(Readiness* readiness) noexcept { readiness_ = readiness; }
  /// Device memory that one object takes.
  [[nodiscard]] static Bytes device_bytes(ShardMap const& map, int rank, int slots = least_slots);
  /// Host memory that one object takes: one layer if layers are staged and there are several ranks,
  /// else none.
  [[nodiscard]] static Bytes host_bytes(ShardMap const& map, Route route);

 private:
  struct Slot {
    int layer = -1;
    device::Buffer buffer;
    std::shared_ptr<device::Event> freed{};  ///< point until which it is in use, if it is not held
    std::int64_t released{};                 ///< the number of its last release
    bool filled = false;                     ///< with all_layers: it has its layer, which stays
  };
  /// The slot to take for gathering the layer.
  [[nodiscard]] Slot& next_slot(int layer);
  /// Gathers all ranks' parts of the layer in the slot's buffer, for work that is enqueued on the
  /// model's stream from now on.
  std::span<T const> gather(int layer, std::span<T const> mine, Slot& slot);

  ShardMap const& map_;
  RankLink& link_;
  device::Stream& stream_;
  device::Buffer shard_;
  memory::HugeBuffer staging_;  ///< one gathered layer on the host
  std::unique_ptr<device::Pinned> pinned_;
  Readiness* readiness_{};
  LayerSlotSizes sizes_;
  bool keeps_;               ///< there is a slot for each layer
  std::vector<Slot> slots_;  ///< without keeps_ the last one is for large layers
  std::int64_t releases_{};
  /// Null: nothing is gathered, or host code does all of it.
  std::unique_ptr<device::Stream> gathering_;
};

}  // namespace offstage::state
