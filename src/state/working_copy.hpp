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
/// Memory:     device: device_bytes: the shard, and slots of layers and a large one (SlotSizes)
///             unless there is one rank, whose layers are used where they are; or memory of its own
///             for each layer. Host: host_bytes, pinned, to gather through.
/// Waiting:    acquire waits until the layer's part of this shard is ready (readiness.hpp); an
///             update may write other parts meanwhile.
/// Order:      a layer is gathered on a stream of its own, for which the model's waits, into the
///             memory that was released longest ago, or that of large layers. So on a GPU, where
///             the model's work is queued, a layer comes while the one before is in use, as soon as
///             the one before that is not; where two are held, the next waits for the one that was
///             released first. Where each layer has memory of its own, it is gathered for its first
///             use after begin() alone.
/// Collective: acquire. Which layers it gathers depends on the order of uses alone.
/// Errors:     construction: UsageError of the device. acquire: what an update failed with.
template <class T>
class WorkingCopy final : public ParameterSource<T> {
 public:
  /// Slots with which one layer comes while one is in use, and where two of a block are held.
  static constexpr int least_slots = 2;
  static constexpr int slots_for_held_blocks = 3;
  /// In the place of a number of slots: each layer has memory of its own.
  static constexpr int all_layers = 0;

  /// `stream`: that of the model. `slots`: least_slots or more, or all_layers.
  WorkingCopy(ShardMap const& map, RankLink& link, device::Device& device, device::Stream& stream,
              int slots = least_slots);

  /// Parameters may have changed: layers that stayed are gathered again. None is held.
  void begin();
  /// True if acquire gathers the layer.
  [[nodiscard]] bool gathers(int layer) const;
  [[nodiscard]] std::span<T const> acquire(int layer) override;
  void release(int layer, std::shared_ptr<device::Event> done) override;

  /// The whole shard, shard_elements long, in device memory: the update writes new parameters here.
  [[nodiscard]] std::span<T> shard() noexcept { return shard_.template as<T>(); }
  /// Copies host memory to elements [begin, begin + size) of the shard. Returns when done.
  void write(std::int64_t begin, std::span<T const> values);
  /// Whose wait acquire calls; null: everything is always ready. Must outlive the calls.
  void set_readiness(Readiness* readiness) noexcept { readiness_ = readiness; }
  /// Device memory that one object takes.
  [[nodiscard]] static Bytes device_bytes(ShardMap const& map, int rank, int slots = least_slots);
  /// Host memory that one object takes: a layer if layers are staged and there are ranks, else
  /// nothing.
  [[nodiscard]] static Bytes host_bytes(ShardMap const& map, Route route);

 private:
  struct Slot {
    int layer = -1;
    device::Buffer buffer;
    std::shared_ptr<device::Event> freed{};  ///< until when it is in use, if it is not held
    std::int64_t released{};                 ///< the number of its last release
    bool filled = false;                     ///< with its layer, which stays: all_layers
  };
  /// Memory that the layer may be gathered in, the one that is to be taken.
  [[nodiscard]] Slot& next_slot(int layer);
  /// All ranks' parts of the layer, in the slot's buffer, for what the model's stream is given from
  /// now on.
  std::span<T const> gather(int layer, std::span<T const> mine, Slot& slot);

  ShardMap const& map_;
  RankLink& link_;
  device::Stream& stream_;
  device::Buffer shard_;
  memory::HugeBuffer staging_;  ///< one gathered layer on the host
  std::unique_ptr<device::Pinned> pinned_;
  Readiness* readiness_{};
  SlotSizes sizes_;
  bool keeps_;               ///< slots are as layers
  std::vector<Slot> slots_;  ///< else the last one is for large layers
  std::int64_t releases_{};
  std::unique_ptr<device::Stream>
      gathering_;  ///< null: nothing is gathered, or host code does it all
};

}  // namespace offstage::state
